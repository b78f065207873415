"""The command line under random options, values and files: whatever comes, it ends with a sentence and no traceback.

Options are read off the commands, so a new one takes part by itself. Examples are drawn from a fixed seed, and after a time
limit the rest of them is left out.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwood.cli import main

EXAMPLES, SECONDS = 200, 40.0
FEW = ["--max-new-tokens", "4"]
LEFT_OUT = {
    "backend": ["auto", "torch", "cuda", ""],  # OpenVINO compiles each model for some seconds
    "weights": ["same", "int4"],
    "samples": ["0", "-1", "1", "3"],  # as large as is asked for, the work is
    "new_tokens": ["0", "1", "5", "9" * 30],
    "enumerate": ["0", "1", "2"],
}
"""Values of options whose other values are good, but take long."""

INTEGERS = ["0", "1", "2", "3", "7", "-1", "-7", "64", "512", "513", "999999", str(2**31), str(2**63 - 1), str(2**63)]
INTEGERS += [str(2**64), "9" * 40, "1.5", "1e3", "", "nan", "seven", "٣", "1_0", " 4", "0x10"]
FLOATS = ["0", "1", "0.5", "-0.0", "-1", "1e-50", "1e-7", "1e-320", "1e38", "1e39", "1e300", "1e999", "inf", "-inf", "nan"]
FLOATS += ["0.999999999", "", "half", "1,5", "2", "1_0.5"]
SHAPES = ["4", "1", "0", "2-2", "1-1-1", "2x3", "3x3", "0x0", "1x1", "x", "-", "2-", "-1", "9" * 50, "2-2-2-2-2-2-2-2-2-2"]
SHAPES += ["1000", "600x2", "2x3x4", "٣x٤", "²", "2.5", "", "1-0"]
TEXTS = [
    "the fox",
    "",
    " ",
    "-",
    "Wörld",
    "W\udcc3\udcb6rld",
    "\udcff",
    "\ufeff",
    "😀",
    "\x1b[31m",
    "a\nb",
    "the fox ran " * 99,
]
TEXTS += ["--", "{}", "%s{0}", "\u2028", "ein Haus steht hier"]
DEVICES = ["auto", "cpu", "cpu:0", "cpu:9", "meta", "mps", "cuda", "cuda:99", "abacus", "", "openvino:ABACUS", ":", "cpu:x"]
BIASES = ["7=1", "7=-inf", "7=inf", "7=1e300", "7=1e39", "7=nan", "=", "7", "-1=2", "70000=1", "7=1=2", f"{2**64}=1", "٣=1"]
GOOD_LINE = '{"prompt": "the fox"}'
LINES = [GOOD_LINE, '{"prompt": "", "id": [{}]}', '{"prompt": "a", "seed": 3}', "", " ", "[]", "nul", '{"prompt": 1}']
LINES += [
    '{"prompt": "\\ud83d", "id": "\\ud83d"}',
    '{"prompt": "a", "seed": 1e99}',
    '{"prompt": "a", "top_k": 1}',
    "[" * 9999,
]
LINES += [
    '{"prompt": "a", "id": NaN}',
    '{"prompt": "a", "id": ' + "[" * 400 + "]" * 400 + "}",
    "ein Haus steht hier",
    "\x00",
]
LINES += [json.dumps({"prompt": "the fox ran " * 99}), "ein altes Haus " * 60, f'{{"prompt": "a", "seed": {2**63 - 1}}}']
ANSWERS = ['{"index": 0, "prompt": "the fox", "text": "", "seed": 0, "settings": {"seed": 0}}', '{"index": 0']
ANSWERS += [
    '{"index": -1, "prompt": "the fox", "text": "", "seed": 0}',
    '{"settings": {}}',
    '{"index": 0, "source": "", "error": ""}',
]


@dataclass(frozen=True)
class Models:
    """Folders that options may name."""

    pair: list[str]
    translation: Path
    odd: list[str]


@pytest.fixture(scope="module")
def folders(pair: list[str], models: Path, translation: Path, tmp_path_factory: pytest.TempPathFactory) -> Models:
    broken = tmp_path_factory.mktemp("odd")
    (broken / "empty").mkdir()
    (broken / "half").mkdir()
    (broken / "half" / "config.json").write_text("{", encoding="utf-8")
    odd = [str(broken / "empty"), str(broken / "half"), str(broken / "none"), "", "no/such/model", "../x", "a b", "\u2028"]
    odd += [str(models / "stranger"), str(models / "bare"), str(translation / "target"), str(translation / "block")]
    odd += ["target:0", "target:9", "target:", str(models / "target"), str(models / "draft"), "x" * 300]
    return Models(pair, translation, odd)


def texts(listed: list[str]) -> st.SearchStrategy[str]:
    free = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
    return st.one_of(st.sampled_from(listed), free)


def files(folder: Path) -> dict[str, Callable[[], object]]:
    """What may stand at the path that an option names; made when it is chosen."""
    deep = folder / "folder"
    return {
        str(folder / "new.jsonl"): lambda: None,
        str(deep): deep.mkdir,
        str(folder / "no" / "x"): lambda: None,
        str(folder / ("n" * 300)): lambda: None,
        str(folder / ("n" * 250)): lambda: None,
        "/dev/null": lambda: None,
        "": lambda: None,
        "-": lambda: None,
        str(folder / "loop"): lambda: (folder / "loop").symlink_to(folder / "loop"),
        str(folder / "old.jsonl"): lambda: (folder / "old.jsonl").write_text(ANSWERS[0] + "\n", encoding="utf-8"),
    }


LENGTHS = st.lists(st.one_of(st.sampled_from(LINES).map(str.encode), st.binary(max_size=20)), max_size=5)


def values(option: click.Option, folder: Path, odd: list[str]) -> st.SearchStrategy[str]:
    """What may be given to an option."""
    name, kind = str(option.name), option.type
    by_name = {"shape": SHAPES, "device": DEVICES, "logit_bias": BIASES, "stop": TEXTS, "prompt": TEXTS} | LEFT_OUT
    if name in ("target", "draft"):
        return st.sampled_from(odd)
    if name in ("input", "output", "profile"):
        return st.sampled_from([*files(folder), str(folder / "lines"), str(folder / "lines"), str(folder / "output")])
    if name in by_name:
        return st.sampled_from(by_name[name]) if name in LEFT_OUT else texts(by_name[name])
    if isinstance(kind, click.Choice):
        return st.sampled_from([*map(str, kind.choices), "magic", ""])
    if kind is click.INT:
        return st.sampled_from(INTEGERS)
    return st.sampled_from(FLOATS) if kind is click.FLOAT else texts(TEXTS)


def prepare(data: st.DataObject, folder: Path, chosen: list[str]) -> None:
    """Make the files that were chosen."""
    lines = data.draw(LENGTHS, label="lines")
    (folder / "lines").write_bytes(b"\n".join(lines))
    end = data.draw(st.sampled_from(["", "\n"]))
    before = data.draw(st.lists(st.sampled_from([*ANSWERS, *LINES]), max_size=2), label="output before")
    if before:
        (folder / "output").write_text("\n".join(before) + end, encoding="utf-8")
    for path, make in files(folder).items():
        if path in chosen:
            make()


def command_line(data: st.DataObject, folders: Models, folder: Path) -> list[str]:
    """A command with options, of which most are good."""
    name = data.draw(st.sampled_from(["generate", "generate", "generate", "translate", "translate", "check", "info"]))
    pair = ["--target", str(folders.translation / "target"), "--draft", str(folders.translation / "block")]
    begin: dict[str, list[str]] = {
        "generate": [*folders.pair, *FEW], "translate": [*pair, *FEW], "info": [],
        "check": [*folders.pair, "--temperature", "0", "--samples", "2", "--new-tokens", "5", "--prompt", "the fox"],
    }  # fmt: skip
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = [p for p in command.params if isinstance(p, click.Option)]
    args = [name, *begin[name]]
    if name in ("generate", "translate"):
        way = data.draw(st.sampled_from(["text", "file", "both", "neither"]))
        if way in ("file", "both"):
            args += ["--input", str(folder / "lines")]
            args += data.draw(st.sampled_from([[], ["--output", str(folder / "output")]]))
        if way in ("text", "both"):
            args.append(data.draw(texts(TEXTS), label="text"))
    for option in data.draw(st.lists(st.sampled_from(options), max_size=4)):
        value = [] if option.is_flag else [data.draw(values(option, folder, folders.odd))]
        args += [option.opts[0], *value]
    return args


def check(result: Result, args: list[str]) -> None:
    """A good end, or one sentence."""
    told = result.stderr if result.exception is not None else ""
    assert result.exception is None or isinstance(result.exception, SystemExit), (args, result.exc_info)
    assert result.exit_code in (0, 1, 2), (args, result.exit_code, told)
    assert "Traceback" not in result.output, args
    assert "This is a fault in Draftwood" not in result.output, (args, told)
    if result.exit_code == 2:
        assert told.count("Error: ") == 1, (args, told)
    if result.exit_code == 1:
        good = told.count("Error: ") == 1 or "could not be " in told or args[0] == "check"
        assert good, (args, told)


def call(args: list[str], stdin: bytes = b"the fox") -> Result:
    return CliRunner().invoke(main, args, input=stdin, prog_name="draftwood")


@pytest.mark.skipif(os.name == "nt", reason="names of files have other rules there")
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_given_the_end_is_a_sentence(folders: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAFTWOOD_DEBUG", raising=False)
    end = time.monotonic() + float(os.environ.get("DRAFTWOOD_FUZZ_SECONDS", SECONDS))
    ended: Counter[tuple[str, int]] = Counter()

    @settings(
        max_examples=int(os.environ.get("DRAFTWOOD_FUZZ_EXAMPLES", EXAMPLES)),
        deadline=None,
        derandomize="DRAFTWOOD_FUZZ_EXAMPLES" not in os.environ,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def fuzz(data: st.DataObject) -> None:
        if time.monotonic() > end:
            return
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            args = command_line(data, folders, folder)
            prepare(data, folder, args)
            result = call(args, data.draw(st.sampled_from([b"the fox", b"\xff", b"", GOOD_LINE.encode()])))
            check(result, args)
        ended[args[0], result.exit_code] += 1

    fuzz()
    assert {code for _, code in ended} == {0, 1, 2}, ended


def test_control_an_unexpected_error_is_seen(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwood.cli import settings as cli_settings

    def fail(*_: Any, **__: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(cli_settings, "load", fail)
    args = ["generate", *pair, "the fox"]
    with pytest.raises(AssertionError, match="fault in Draftwood"):
        check(call(args), args)
