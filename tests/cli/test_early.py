"""What a command can refuse without a model, it refuses before PyTorch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "openvino", "numpy")
NOWHERE = "/nowhere/model"
MISSING = f"there is no folder '{NOWHERE}'"
UNFIT = "shape '2-2' was given, but method 'ar' drafts nothing"
REFUSED = [
    *((f"{command} --target {NOWHERE}", MISSING) for command in ("generate x", "chat", "chat x", "serve", "check", "tune")),
    *((f"{command} --target {NOWHERE}", MISSING) for command in ("bench", "translate x", "trace x", "trace --translate x")),
    *((f"train {kind} --out o --target {NOWHERE}", MISSING) for kind in ("drafter", "chats", "draft --data .")),
    (f"train spec-drafter --out o --data . --target {NOWHERE}", MISSING),
    ("generate x --target none.gguf", "there is no file 'none.gguf'"),
    ("generate x --draft d", "draft 'd' was given without a target"),
    *((f"{command} --method ar --shape 2-2", UNFIT) for command in ("generate x", "chat", "serve", "check", "trace x")),
    ("generate x --method shared-noise --verifier traversal", "is not exact for drafter 'shared-noise'"),
    ("generate x --temperature 1 --verifier greedy", "is for temperature 0 only, but temperature is 1"),
    ("generate x --method rsd-c --target org/name --draft org/draft --shape 3x4", "does not fit method 'rsd-c'"),
    ("generate x --weights int8 --backend torch", "weights 'int8' are for OpenVINO"),
    ("generate x --device openvino:GPU --backend torch", "device 'openvino:GPU' is for OpenVINO"),
    ("generate x --dtype float16 --backend openvino", "dtype float16 is impossible with OpenVINO"),
    ("generate", "there is no prompt"),
    ("generate --input none.jsonl", "none.jsonl cannot be read: No such file"),
    ("generate --input . --output o", ". cannot be read: Is a directory"),
    ("generate --input lines.jsonl --output none/o", "output folder none does not exist"),
    ("generate --input lines.jsonl --output lines.jsonl", "are the same file"),
    ("generate --input lines.jsonl --compare", "--compare is for a single prompt"),
    ("translate", "there is no text"),
    ("translate --input none.txt", "none.txt cannot be read: No such file"),
    ("chat --compare", "--compare is for a single answer"),
    ("check --seed -1", "seed is -1"),
    ("check --weights int8", "--weights is int8"),
    ("trace x --json none/a.json", "output folder none does not exist"),
    ("trace x --html none/a.html", "output folder none does not exist"),
    ("trace x --svg lines.jsonl", "output folder lines.jsonl cannot be written"),
    ("trace --input none.json", "none.json cannot be read: No such file"),
    ("tune --report none/a.svg", "output folder none does not exist"),
    ("bench --json none/a.json", "output folder none does not exist"),
    ("generat x", "Did you mean 'generate'?"),
    ("modls", "Did you mean 'models'?"),
]
CODE = """
import json, sys
for name in {heavy}:
    sys.modules[name] = None  # an import of it fails
from click.testing import CliRunner
from draftwood.cli import main
print(json.dumps([(found.exit_code, found.stderr) for one in json.loads(sys.argv[1])
                  for found in [CliRunner().invoke(main, one.split())]]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    folder: Path = tmp_path_factory.mktemp("early")
    (folder / "lines.jsonl").write_text('{"prompt": "x"}\n', encoding="utf-8")
    commands = [command for command, _ in REFUSED] + ["info"]
    code = CODE.format(heavy=HEAVY)
    arguments = [sys.executable, "-c", code, json.dumps(commands)]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=folder)
    return dict(zip(commands, map(tuple, json.loads(shown.stdout.splitlines()[-1])), strict=True))


@pytest.mark.parametrize(("command", "said"), REFUSED, ids=[command for command, _ in REFUSED])
def test_it_is_refused_without_pytorch(answers: dict[str, tuple[int, str]], command: str, said: str) -> None:
    code, stderr = answers[command]
    assert said in " ".join(stderr.split()), stderr
    assert code in (1, 2)


def test_control_a_command_that_needs_pytorch_fails_here(answers: dict[str, tuple[int, str]]) -> None:
    assert "torch" in answers["info"][1]
