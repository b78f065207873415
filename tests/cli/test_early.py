"""What a command can say without a model, it says before PyTorch is imported, which takes seconds."""

import gc
import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main as benchmarks
from draftwood.cli import main
from draftwood.cli.chat import SECTIONS as CHAT_SECTIONS
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import importing
from draftwood.cli.settings import SECTIONS
from draftwood.cli.translate import SECTIONS as TRANSLATE_SECTIONS

ROOT = Path(__file__).parents[2]
NOWHERE = "/nowhere/model"
MISSING = f"there is no folder '{NOWHERE}'"
UNSHAPED = "--method ngram --shape 2-2"
UNFIT = "shape '2-2' was given, but method 'ar' drafts nothing"
TO_FILES = ["generate --input lines.jsonl --output", "translate --input lines.jsonl --output", "trace x --json"]
TO_FILES += ["trace x --html", "tune --out"]
REFUSED = [
    *((f"{command} --target {NOWHERE}", MISSING) for command in ("generate x", "chat", "chat x", "serve", "check", "tune")),
    *((f"{command} --target {NOWHERE}", MISSING) for command in ("translate x", "trace x", "trace --translate x")),
    *((f"train {kind} --out o --target {NOWHERE}", MISSING) for kind in ("drafter", "chats")),
    ("train drafter --target smollm2 --out o --steps few", "'few' is not a valid integer"),
    ("train chats --target smollm2 --out o --longest 0", "longest is 0"),
    ("generate x --target none.gguf", "there is no file 'none.gguf'"),
    ("generate x --draft d", "draft 'd' was given without a target"),
    *((f"{command} --method ar --shape 2-2", UNFIT) for command in ("generate x", "chat", "serve", "check", "trace x")),
    ("generate x --method shared-noise --verifier traversal", "is not exact for drafter 'shared-noise'"),
    *((f"generate x --target {NOWHERE} {options}", "shape") for options in ("--verifier greedy --shape no", UNSHAPED)),
    ("generate Once --max-new-token 5", "--max-new-tokens"),
    ("generate x --temperature 1 --verifier greedy", "is for temperature 0 only, but temperature is 1"),
    ("generate x --method rsd-c --target org/name --draft org/draft --shape 3x4", "does not fit method 'rsd-c'"),
    ("generate x --weights int8 --backend torch", "weights 'int8' need the native engine"),
    ("generate x --backend openvino", "'openvino' is not one of 'auto', 'native', 'torch'"),
    ("generate x --dtype float16 --backend native", "dtype float16 is impossible with --backend native"),
    *((f"{command} x --json-object --regex a", "--json-object and --regex were given") for command in ("generate", "chat")),
    ("generate x --regex (a", "the regular expression '(a' cannot be used"),
    ("chat x --json-schema none.json", "--json-schema none.json cannot be read as UTF-8 text"),
    ("generate x --grammar .", "--grammar . cannot be read as UTF-8 text"),
    ("generate", "there is no prompt"),
    ("generate --input none.jsonl", "none.jsonl cannot be read: No such file"),
    ("generate --input . --output o", ". cannot be read: Is a directory"),
    ("generate --input lines.jsonl --output none/o", "output folder none does not exist"),
    ("generate --input lines.jsonl --output lines.jsonl", "are the same file"),
    *((f"{command} -", "is -, which stands for standard input: name what to write") for command in TO_FILES),
    ("generate --input lines.jsonl --compare", "--compare is for a single prompt"),
    ("translate", "there is no text"),
    ("translate --input none.txt", "none.txt cannot be read: No such file"),
    ("chat --compare", "the message is empty"),
    ("chat x --quiet --compare", "--compare shows two speeds, and --quiet shows none: leave out one of them"),
    ("check --seed -1", "seed is -1"),
    ("check --weights int8", "--weights is int8"),
    ("trace x --json none/a.json", "output folder none does not exist"),
    ("trace x --html none/a.html", "output folder none does not exist"),
    ("trace --input none.json", "none.json cannot be read: No such file"),
    ("tune --out none/a.json", "output folder none does not exist"),
    ("generat x", "Did you mean 'generate'?"),
    *((f"{command} Once upon", "unexpected 'upon': put quotes around the whole text") for command in ("generate", "chat")),
    ("serve smollm2", "unexpected 'smollm2': this command takes options only; --target smollm2 names a model"),
    ("serve --model smollm2", "'--model'. Did you mean '--target'?"),
    ("serve --api-key x", "'--api-key'. Did you mean '--api-key-file'?"),
    ("generate x --max-tokens 5", "'--max-tokens'. Did you mean '--max-new-tokens'?"),
    ("run smollm2", "'draftwood chat --target NAME'"),
    ("list", "'draftwood models'"),
    ("ps", "GET /v1/models"),
    ("chat x --target smolm2", "Did you mean smollm2?"),
    ("serve --target HuggingFaceTB/SmolLM2-135M-instuct", "Did you mean smollm2?"),
    ("modls", "Did you mean 'models'?"),
]
OPTIONS = ["--target", "--stop-token-ids", "--logit-bias", "--ignore-eos", "--max-new-tokens", "--method", "--seed"]
SECTIONS_OF = {
    "generate": (SECTIONS, [*OPTIONS, "--trust-remote-code", "--batch-size"], ["--processors"]),
    "chat": (CHAT_SECTIONS, [*OPTIONS, "--system", "--quiet"], ["--processors", "--batch-size"]),
    "translate": (
        TRANSLATE_SECTIONS,
        ["--target", "--verifier", "--shape", "--output", "--compare", "--show", "--max-new-tokens", "--backend"],
        ["--profile", "--weights", "--temperature"],
    ),
}
CODE = """
import json, os, sys
sys.path.insert(0, ".")
from click.testing import CliRunner
from benchmarks.__main__ import main as benchmarks
from draftwood.cli import main
os.chdir(sys.argv[2])
for of_benchmarks, arguments in json.loads(sys.argv[1]):
    found = CliRunner().invoke(benchmarks if of_benchmarks else main, arguments)
    heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
    print(json.dumps([found.exit_code, found.stdout, " ".join(found.stderr.split()), heavy]))
"""


def commands(group):
    """Every command and subcommand, as arguments."""
    found = [[]]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.resolve_command(context, [name])[1]
        found.append([name])
        if isinstance(command, click.Group):
            found += [[name, below] for below in command.list_commands(context)]
    return found


CALLS = [(program is benchmarks, [*names, "--help"]) for program in (main, benchmarks) for names in commands(program)]
HELP = len(CALLS)
CALLS += [(False, ["models"]), (False, ["models", "--json"]), *((False, command.split()) for command, _ in REFUSED)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code, standard output, standard error and heavy imports after each call, and after one that needs PyTorch."""
    folder = tmp_path_factory.mktemp("early")
    (folder / "lines.jsonl").write_text('{"prompt": "x"}\n', encoding="utf-8")
    arguments = [sys.executable, "-c", CODE, json.dumps([*CALLS, (False, ["info", "--json"])]), str(folder)]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_no_call_imports_anything_heavy_and_control_info_does(answers):
    late = [call for call, (*_, heavy) in zip(CALLS, answers, strict=False) if heavy]
    assert not late[:1]
    assert "torch" in answers[-1][3]


def test_every_command_has_help(answers):
    for call, (code, stdout, _, _) in zip(CALLS[:HELP], answers, strict=False):
        assert (code, "Usage:" in stdout) == (0, True), call
    assert all(name in answers[0][1] for name in ("generate", "info", "tune", "train"))


@pytest.mark.parametrize("name", SECTIONS_OF)
def test_help_lists_every_option_under_its_subject(answers, name):
    sections, options, others = SECTIONS_OF[name]
    text = answers[CALLS.index((False, [name, "--help"]))][1]
    titles = [text.index(f"\n{title}:") for title in sections]
    assert titles == sorted(titles)
    for option in options:
        assert text.count(f"\n  {option} ") == 1, option
    assert not [option for option in others if option in text]
    assert ("[default: smollm2]" in text) == (name == "chat")
    own = {"chat": "smollm2", "generate": "the bundled model"}.get(name)
    shown = re.findall(r"default: the model's own \(([\d.]+ for .*?)\)", " ".join(text.split()))
    assert shown == [f"{value} for {own}" for value in {"chat": (0.2, 50, 0.9), "generate": (0.6, 0, 1)}.get(name, ())]


def test_a_default_of_one_command_is_given_also_where_it_is_false():
    @dataclass
    class Numbers:
        port: int = 8000
        name: str = "x"
        seed: int = 3

    changes = {"port": {"default": 0}, "name": {"default": ""}, "seed": {"default": None}}
    command = click.command()(dataclass_options(Numbers, changes=changes)(lambda **given: click.echo(json.dumps(given))))
    assert json.loads(CliRunner().invoke(command).stdout) == {"port": 0, "name": ""}


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[command for command, _ in REFUSED])
def test_it_is_refused(answers, number):
    code, _, stderr, _ = answers[HELP + 2 + number]
    assert REFUSED[number][1] in stderr
    assert code in (1, 2)


@pytest.mark.parametrize("before", [True, False])
def test_collection_stops_for_an_import_and_is_as_before_afterwards(before):
    try:
        (gc.enable if before else gc.disable)()
        with importing():
            assert not gc.isenabled()
        assert gc.isenabled() is before
        with pytest.raises(ModuleNotFoundError), importing():
            import_module("no_such_module")
        assert gc.isenabled() is before
    finally:
        gc.enable()


def test_next_to_nothing_is_imported_before_ctrl_c_is_caught():
    code = "import sys; known = {*sys.modules}; import draftwood.__main__; print(*sorted({*sys.modules} - known))"
    run = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT / "src", capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["__future__", "draftwood", "draftwood.__main__"]


@pytest.mark.parametrize("error", [None, ImportError("cannot load module more than once per process")])
def test_ctrl_c_ends_an_import_whatever_a_library_makes_of_it(error):
    def imported():
        with importing():
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            if error is not None:
                raise error

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            imported()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
