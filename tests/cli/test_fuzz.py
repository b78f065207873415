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
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwood.cli import main

EXAMPLES, SECONDS = 200, 40.0
FEW = ["--max-new-tokens", "4"]
LEFT_OUT = {
    "backend": ["auto", "native", "torch", "openvino", ""],
    "weights": ["same", "int4"],
    "samples": ["0", "-1", "1", "3"],  # the work is as large as these
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
TEXTS = ["the fox", "", " ", "-", "Wörld", "W\udcc3\udcb6rld", "\udcff", "\ufeff", "😀", "\x1b[31m", "a\nb"]
TEXTS += ["the fox ran " * 99, "--", "{}", "%s{0}", "\u2028", "ein Haus steht hier"]
DEVICES = ["auto", "cpu", "cpu:0", "cpu:9", "meta", "mps", "cuda", "cuda:99", "abacus", "", "openvino:ABACUS", ":", "cpu:x"]
BIASES = ["7=1", "7=-inf", "7=inf", "7=1e300", "7=1e39", "7=nan", "=", "7", "-1=2", "70000=1", "7=1=2", f"{2**64}=1", "٣=1"]
GOOD_LINE = '{"prompt": "the fox"}'
LINES = [GOOD_LINE, '{"prompt": "", "id": [{}]}', '{"prompt": "a", "seed": 3}', "", " ", "[]", "nul", '{"prompt": 1}']
LINES += ['{"prompt": "\\ud83d", "id": "\\ud83d"}', '{"prompt": "a", "seed": 1e99}', '{"prompt": "a", "top_k": 1}']
LINES += ["[" * 9999, '{"prompt": "a", "id": NaN}', '{"prompt": "a", "id": ' + "[" * 400 + "]" * 400 + "}", "\x00"]
LINES += [json.dumps({"prompt": "the fox ran " * 99}), "ein altes Haus " * 60, f'{{"prompt": "a", "seed": {2**63 - 1}}}']
LINES += ["ein Haus steht hier"]
ANSWERS = ['{"index": 0, "prompt": "the fox", "text": "", "seed": 0, "settings": {"seed": 0}}', '{"index": 0']
ANSWERS += ['{"index": -1, "prompt": "the fox", "text": "", "seed": 0}', '{"settings": {}}']
ANSWERS += ['{"index": 0, "source": "", "error": ""}']


HERE, MODELS, TRANSLATION, ODD = "@here@", "@models@", "@translation@", "@odd@"
"""Folders, for which their paths are put in when a command runs: what is drawn depends on nothing but the seed."""

PAIR = {
    "generate": ["--target", f"{MODELS}/target", "--draft", f"{MODELS}/draft"],
    "translate": ["--target", f"{TRANSLATION}/target", "--draft", f"{TRANSLATION}/block"],
}
BEGIN = {
    "generate": [*PAIR["generate"], *FEW],
    "translate": [*PAIR["translate"], *FEW],
    "check": [*PAIR["generate"], "--temperature", "0", "--samples", "2", "--new-tokens", "5", "--prompt", "the fox"],
    "info": [],
}
NAMES = [f"{ODD}/empty", f"{ODD}/half", f"{ODD}/none", "", "no/such/model", "../x", "a b", "\u2028", "x" * 300]
NAMES += [f"{MODELS}/stranger", f"{MODELS}/bare", f"{TRANSLATION}/target", f"{TRANSLATION}/block"]
NAMES += [f"{MODELS}/target", f"{MODELS}/draft"]
FILES = {
    f"{HERE}/folder": Path.mkdir,
    f"{HERE}/loop": lambda path: path.symlink_to(path),
    f"{HERE}/old.jsonl": lambda path: path.write_text(ANSWERS[0] + "\n", encoding="utf-8"),
}
PATHS = [*FILES, f"{HERE}/new.jsonl", f"{HERE}/no/x", f"{HERE}/{'n' * 300}", f"{HERE}/{'n' * 250}", "/dev/null", "", "-"]
"""What may stand at a path that an option names; made when it is chosen."""


@dataclass(frozen=True)
class Call:
    """A command line, and what it finds: its input file, its output file if there is one, and standard input."""

    args: list[str]
    lines: bytes = b""
    before: str | None = None
    stdin: bytes = b""


@pytest.fixture(scope="module")
def folders(models, translation, tmp_path_factory):
    """The folders that the marks stand for."""
    odd = tmp_path_factory.mktemp("odd")
    (odd / "empty").mkdir()
    (odd / "half").mkdir()
    (odd / "half" / "config.json").write_text("{", encoding="utf-8")
    return {MODELS: str(models), TRANSLATION: str(translation), ODD: str(odd)}


def texts(listed):
    free = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=12)
    return st.one_of(st.sampled_from(listed), st.sampled_from(listed), free)


def values(option):
    """What may be given to an option."""
    name, kind = str(option.name), option.type
    if name in LEFT_OUT:
        return st.sampled_from(LEFT_OUT[name])
    if name in ("target", "draft"):
        return st.sampled_from(NAMES)
    if name in ("input", "output", "profile"):
        return st.sampled_from([*PATHS, f"{HERE}/lines", f"{HERE}/lines", f"{HERE}/output"])
    by_name = {"shape": SHAPES, "device": DEVICES, "logit_bias": BIASES, "stop": TEXTS, "prompt": TEXTS}
    if name in by_name:
        return texts(by_name[name])
    if isinstance(kind, click.Choice):
        return st.sampled_from([*map(str, kind.choices), "magic", ""])
    if kind is click.INT:
        return st.sampled_from(INTEGERS)
    return st.sampled_from(FLOATS) if kind is click.FLOAT else texts(TEXTS)


def options_of(name):
    command = main.resolve_command(click.Context(main), [name])[1]
    assert command is not None
    return [p for p in command.params if isinstance(p, click.Option)]


@st.composite
def calls(draw):
    """A command with options, of which most are good."""
    name = draw(st.sampled_from(["generate", "generate", "generate", "translate", "translate", "check", "info"]))
    args = [name, *BEGIN[name]]
    if name in ("generate", "translate"):
        way = draw(st.sampled_from(["text", "text", "file", "file", "both", "neither"]))
        if way in ("file", "both"):
            args += ["--input", f"{HERE}/lines", *draw(st.sampled_from([[], ["--output", f"{HERE}/output"]]))]
        if way in ("text", "both"):
            args.append(draw(texts(TEXTS)))
    for option in draw(st.lists(st.sampled_from(options_of(name)), max_size=4)):
        args += [option.opts[0], *([] if option.is_flag else [draw(values(option))])]
    lines = draw(st.lists(st.one_of(st.sampled_from(LINES).map(str.encode), st.binary(max_size=20)), max_size=5))
    before = draw(st.lists(st.sampled_from([*ANSWERS, *LINES]), max_size=2))
    return Call(
        args=args,
        lines=b"\n".join(lines),
        before="\n".join(before) + draw(st.sampled_from(["", "\n"])) if before else None,
        stdin=draw(st.sampled_from([b"the fox", b"\xff", b"", GOOD_LINE.encode()])),
    )


def check(result, args):
    """A good end, or one sentence."""
    stderr = result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit), (args, result.exc_info)
    assert result.exit_code in (0, 1, 2), (args, result.exit_code, stderr)
    assert "Traceback" not in result.output, args
    assert "This is a bug in Draftwood" not in result.output, (args, stderr)
    if result.exit_code == 2:
        assert stderr.count("Error: ") == 1, (args, stderr)
    if result.exit_code == 1:
        assert stderr.count("Error: ") == 1 or "could not be " in stderr or args[0] == "check", (args, stderr)


def run_in(folder, call, folders):
    """The command, among its files."""
    (folder / "lines").write_bytes(call.lines)
    if call.before is not None:
        (folder / "output").write_text(call.before, encoding="utf-8")
    for path in FILES.keys() & set(call.args):
        FILES[path](Path(path.replace(HERE, str(folder))))
    args = call.args
    for mark, place in {**folders, HERE: str(folder)}.items():
        args = [arg.replace(mark, place) for arg in args]
    return CliRunner().invoke(main, args, input=call.stdin, prog_name="draftwood")


@pytest.mark.skipif(os.name == "nt", reason="names of files have other rules there")
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_given_the_end_is_a_sentence(folders, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DRAFTWOOD_DEBUG", raising=False)
    seconds = os.environ.get("DRAFTWOOD_FUZZ_SECONDS")  # then longer than usual, from another seed each time
    end = time.monotonic() + float(seconds or SECONDS)
    ended = Counter()

    @settings(
        max_examples=100_000 if seconds else EXAMPLES, derandomize=not seconds, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(calls())
    def fuzz(call):
        if time.monotonic() > end:
            return
        with tempfile.TemporaryDirectory() as name:
            result = run_in(Path(name), call, folders)
        check(result, call.args)
        ended[result.exit_code] += 1

    fuzz()
    assert ended.keys() == {0, 1, 2}, ended
    assert not list(tmp_path.iterdir()), "a file that nobody named"


def test_control_an_unexpected_error_is_seen(folders, monkeypatch, tmp_path):

    def fail(*_, **__):
        raise IndexError("list index out of range")

    monkeypatch.delenv("DRAFTWOOD_DEBUG", raising=False)
    monkeypatch.setattr("draftwood.api.load", fail)
    call = Call(["generate", *BEGIN["generate"], "the fox"])
    with pytest.raises(AssertionError, match="bug in Draftwood"):
        check(run_in(tmp_path, call, folders), call.args)
