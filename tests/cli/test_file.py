"""``draftwood generate --input``: a file of prompts, stopped and taken up again."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwood.cli.job.forms import ANSWERS
from draftwood.cli.job.output import Output
from draftwood.engine.decode import Decoder
from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "10", "--ignore-eos", "--batch-size", "2", "--method", "rsd-c", "--shape", "2-1"]


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def texts(path: Path) -> dict[int, tuple[str, int]]:
    return {found["index"]: (found["text"], found["seed"]) for found in objects(path)}


def test_every_line_is_answered_in_order(run: Run, pair: list[str], prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    result = run("generate", *pair, *SHORT, "--input", prompts, "--output", out, "--seed", "5")
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("7 prompts, 70 tokens in ")
    assert result.stderr.endswith("seed 5\n")
    found = objects(out)
    assert [answer["index"] for answer in found] == [0, 1, 2, 4, 5, 6, 7]
    assert [answer["seed"] for answer in found] == [5, 70, 7, 9, 10, 11, 12]
    assert [answer.get("id") for answer in found] == [None, "one", None, None, [4], None, None]
    assert found[3]["prompt"] == "the fox 3"
    assert {"text", "token_ids", "finish_reason", "lossless", "stats"} <= found[0].keys()


def test_without_an_output_file_the_answers_go_to_stdout(run: Run, pair: list[str], prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run("generate", *pair, *SHORT, "--input", prompts, "--output", out, "--seed", "5")
    read = run("generate", *pair, *SHORT, "--input", "-", "--seed", "5", stdin=prompts.read_bytes())
    assert read.exit_code == 0, read.output
    found = [json.loads(line) for line in read.stdout.splitlines()]
    assert {answer["index"]: (answer["text"], answer["seed"]) for answer in found} == texts(out)


@pytest.mark.parametrize("seed", [["--seed", "5"], []])
def test_a_stopped_run_goes_on_with_the_same_texts(
    run: Run,
    pair: list[str],
    prompts: Path,
    tmp_path: Path,
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    seed: list[str],
) -> None:
    out, whole = tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    command = ["generate", *pair, *SHORT, "--input", prompts, "--output", out, *seed]
    stop_after(3)
    stopped = run(*command)
    assert stopped.exit_code == 130
    assert f"3 of 7 prompts are answered in {out}; the same command resumes" in stopped.stderr
    assert len(objects(out)) == 3
    with out.open("ab") as half:
        half.write(b'{"index": 5, "prompt": "the fo')
    monkeypatch.undo()
    resumed = run(*command)
    assert resumed.exit_code == 0, resumed.output
    assert "3 of 7 prompts are answered" in resumed.stderr
    first = str(objects(out)[0]["seed"])
    run("generate", *pair, *SHORT, "--input", prompts, "--output", whole, "--seed", first)
    assert texts(out) == texts(whole)
    assert len(objects(out)) == 7


def test_a_finished_file_is_left_as_it_is_without_loading_models(
    run: Run, pair: list[str], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    run("generate", *pair, *SHORT, "--input", prompts, "--output", out)
    before = out.read_bytes()
    with out.open("ab") as half:
        half.write(b'{"ind')

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("draftwood.api.load", load)
    again = run("generate", *pair, *SHORT, "--input", prompts, "--output", out)
    assert again.exit_code == 0, again.output
    assert "All 7 prompts are answered" in again.stderr
    assert out.read_bytes() == before


def test_an_error_in_the_middle_keeps_what_is_finished(
    run: Run, pair: list[str], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "out.jsonl", Decoder.results

    def results(*args: Any, **more: Any) -> Iterator[Any]:
        yield next(real(*args, **more))
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Decoder, "results", results)
    result = run("generate", *pair, *SHORT, "--input", prompts, "--output", out)
    assert result.exit_code == 1
    assert result.stderr == "Error: Input/output error\n"
    assert len(objects(out)) == 1


@pytest.mark.parametrize("size", ["1", "2", "3"])
def test_a_row_that_ends_makes_room_for_the_next_prompt_and_answers_stay_in_order(
    run: Run, pair: list[str], prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    out, order, real = tmp_path / "out.jsonl", [], Decoder.results

    def results(*args: Any, **more: Any) -> Iterator[Any]:
        held = list(real(*args, **more))
        order.extend(row for row, _ in held)
        yield from held[::-1]  # as if the first prompts had the longest texts

    monkeypatch.setattr(Decoder, "results", results)
    found = run("generate", *pair, *SHORT, "--input", prompts, "--output", out, "--seed", "5", "--batch-size", size)
    assert found.exit_code == 0, found.output
    assert sorted(order) == list(range(7))
    indices = [found["index"] for found in objects(out)]
    assert (len(indices), indices) == (7, sorted(indices))
    monkeypatch.undo()
    whole = tmp_path / "whole.jsonl"
    run("generate", *pair, *SHORT, "--input", prompts, "--output", whole, "--seed", "5", "--batch-size", "7")
    assert texts(out) == texts(whole)


def answer(index: int = 0, prompt: str = "the fox 0", seed: int = 5) -> str:
    found = {"index": index, "prompt": prompt, "text": "", "seed": seed, "settings": {"seed": 5}}
    return json.dumps(found) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (answer(prompt="another"), "line 1: this answers another prompt than line 1 of the input"),
        (answer() + answer(index=3), "line 2: this answers another prompt than line 4 of the input"),
        (answer(seed=6), "line 1: this was made with seed 6, but the line's seed is now 5; name another --output"),
        ("my diary\n", "line 1: this is not an answer"),
        ("my diary", "line 1: this is not an answer"),
        (answer() + '{"prompt": "x', "line 2: this is not an answer"),
        ('{"index": true, "prompt": "the fox 0", "text": "", "seed": 5}\n', "line 1: this is not an answer"),
        ("\n", "line 1: this is not an answer"),
        ("\udcff\n", "line 1: this is not an answer"),
    ],
)
def test_a_file_that_holds_something_else_is_left_alone(
    run: Run, pair: list[str], prompts: Path, tmp_path: Path, content: str, said: str
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_bytes(content.encode("utf-8", errors="surrogateescape"))
    result = run("generate", *pair, "--input", prompts, "--output", out, "--seed", "5")
    assert result.exit_code == 2
    assert said in result.stderr
    assert out.read_bytes() == content.encode("utf-8", errors="surrogateescape")


def test_odd_but_good_input(run: Run, pair: list[str], tmp_path: Path) -> None:
    """A byte order mark, Windows line ends, a line separator inside a text, no line break at the end."""
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_bytes('\ufeff{"prompt": "the"}\r\n{"prompt": "a\u2028b", "id": null}'.encode())
    result = run("generate", *pair, *SHORT, "--input", path, "--output", out)
    assert result.exit_code == 0, result.output
    answers = [json.loads(line) for line in out.read_bytes().split(b"\n")[:-1]]
    assert [answer["prompt"] for answer in answers] == ["the", "a\u2028b"]
    assert answers[1]["id"] is None
    assert "id" not in answers[0]


def test_a_seed_that_leaves_no_room_for_line_numbers(run: Run, pair: list[str], prompts: Path) -> None:
    result = run("generate", *pair, "--input", prompts, "--seed", 2**63 - 1)
    assert result.exit_code == 2
    assert "plus line number 2 is above" in result.stderr


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT as on a terminal: where the tests run in the background it is ignored from the start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself SIGINT there")
@pytest.mark.usefixtures("interruptible")
def test_a_real_interrupt_ends_with_130_and_whole_lines(run: Run, pair: list[str], tmp_path: Path) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    path.write_text('{"prompt": "the fox"}\n' * 5000, encoding="utf-8")
    ended = threading.Event()

    def press() -> None:
        while not (out.exists() and out.stat().st_size) and not ended.wait(0.01):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    try:
        result = run("generate", *pair, "--input", path, "--output", out, "--batch-size", "1")
    finally:
        ended.set()
        finger.join()
    assert result.exit_code == 130
    count = len(objects(out))
    assert result.stderr == f"Stopped: {count} of 5000 prompts are answered in {out}; the same command resumes there.\n"


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself SIGINT there")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_the_lines_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, real = Output(tmp_path / "out.jsonl", [], ANSWERS), os.fsync

    def fsync(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        written.write([json.loads(answer())])
    assert len(written.done) == len(objects(tmp_path / "out.jsonl")) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
