"""``draftwood generate --input``: a file of prompts, stopped and taken up again."""

import json
import os
import signal
import threading

import pytest

from draftwood.cli.job.output import Output
from draftwood.engine.decode import Decoder
from tests.cli.jobs import objects, succeeded

SHORT = ["--max-new-tokens", "10", "--ignore-eos", "--batch-size", "2", "--method", "rsd-c", "--shape", "2-1"]


def test_every_line_is_answered_in_order(job):
    result = job.succeeds("--seed", "5")
    assert result.stdout == ""
    assert result.stderr.startswith("7 lines, 70 tokens in ")
    assert result.stderr.endswith("seed 5\n")
    found = job.answers
    assert [answer["index"] for answer in found] == [0, 1, 2, 4, 5, 6, 7]
    assert [answer["seed"] for answer in found] == [5, 70, 7, 9, 10, 11, 12]
    assert [answer.get("id") for answer in found] == [None, "one", None, None, [4], None, None]
    assert found[3]["prompt"] == "the fox 3"
    assert {"text", "token_ids", "finish_reason", "lossless", "stats"} <= found[0].keys()
    # Without an output file the answers go to stdout.
    read = succeeded(job.run("generate", *job.options, "--input", "-", "--seed", "5", stdin=job.input.read_bytes()))
    assert {answer["index"]: (answer["text"], answer["seed"]) for answer in objects(read.stdout_bytes)} == job.texts


@pytest.mark.parametrize("seed", [["--seed", "5"], []])
def test_a_stopped_run_goes_on_with_the_same_texts(job, seed):
    assert f"3 of 7 lines are done in {job.out}; the same command resumes" in job.stopped(3, *seed)
    assert len(job.answers) == 3
    with job.out.open("ab") as half:
        half.write(b'{"index": 5, "prompt": "the fo')
    assert "3 of 7 lines are done" in job.succeeds(*seed).stderr
    texts, finished = job.texts, job.out.read_bytes()
    assert len(job.answers) == 7
    job.out.write_bytes(finished + b'{"ind')
    assert "All 7 lines are done" in job.succeeds(*seed).stderr
    assert job.out.read_bytes() == finished
    job.out.unlink()
    job.succeeds("--seed", texts[0][1])
    assert job.texts == texts


def test_an_error_in_the_middle_keeps_what_is_finished(job, monkeypatch):
    real = Decoder.results

    def results(*args, **more):
        yield next(real(*args, **more))
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Decoder, "results", results)
    assert job.fails(code=1) == "Error: Input/output error\n"
    assert len(job.answers) == 1


@pytest.mark.parametrize("size", ["1", "2", "3"])
def test_a_row_that_ends_makes_room_for_the_next_prompt_and_answers_stay_in_order(job, monkeypatch, size):
    order, real = [], Decoder.results

    def results(*args, **more):
        held = list(real(*args, **more))
        order.extend(row for row, _ in held)
        yield from held[::-1]  # as if the first prompts had the longest texts

    monkeypatch.setattr(Decoder, "results", results)
    job.succeeds("--seed", "5", "--batch-size", size)
    assert sorted(order) == list(range(7))
    texts = job.texts
    assert (len(texts), list(texts)) == (7, sorted(texts))
    monkeypatch.undo()
    job.out.unlink()
    job.succeeds("--seed", "5", "--batch-size", "7")
    assert job.texts == texts


def answer(index=0, prompt="the fox 0", seed=5):
    found = {"index": index, "prompt": prompt, "text": "", "seed": seed, "settings": {"seed": 5}}
    return json.dumps(found) + "\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (answer(prompt="another"), "line 1: this belongs to another text than line 1 of the input"),
        (answer() + answer(index=3), "line 2: this belongs to another text than line 4 of the input"),
        (answer(seed=6), "line 1: this was made with seed 6, but the line's seed is now 5; name another --output"),
        ('{"index": 0, "prompt": "the fox 0", "text": "", "seed": 5}\n', "line 1: this is no record of 'draftwood"),
        ("my diary\n", "line 1: this is no record of"),
        ("my diary", "line 1: this is no record of"),
        (answer() + '{"prompt": "x', "line 2: this is no record of"),
        ('{"index": true, "prompt": "the fox 0", "text": "", "seed": 5}\n', "line 1: this is no record of"),
        ("\n", "line 1: this is no record of"),
        ("\udcff\n", "line 1: this is no record of"),
    ],
)
def test_a_file_that_holds_something_else_is_left_alone(job, content, said):
    data = content.encode("utf-8", errors="surrogateescape")
    job.out.write_bytes(data)
    assert said in job.fails("--seed", "5")
    assert job.out.read_bytes() == data


def test_odd_but_good_input(job):
    """A byte order mark, Windows line ends, a line separator inside a text, no line break at the end."""
    job.input.write_bytes('\ufeff{"prompt": "the"}\r\n{"prompt": "a\u2028b", "id": null}'.encode())
    job.succeeds()
    found = job.answers
    assert [answer["prompt"] for answer in found] == ["the", "a\u2028b"]
    assert found[1]["id"] is None
    assert "id" not in found[0]


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself SIGINT there")
@pytest.mark.usefixtures("interruptible")
def test_a_real_interrupt_ends_with_130_and_whole_lines(job):
    job.write(*['{"prompt": "the fox"}'] * 5000)
    ended = threading.Event()

    def press():
        while not (job.out.exists() and job.out.stat().st_size) and not ended.wait(0.01):
            pass
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    try:
        said = job.fails("--batch-size", "1", code=130)
    finally:
        ended.set()
        finger.join()
    count = len(job.answers)
    assert said == f"Stopped: {count} of 5000 lines are done in {job.out}; the same command resumes there.\n"


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself SIGINT there")
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_waits_until_the_lines_are_on_the_disk(job, monkeypatch):
    written, real = Output(job.out, []), os.fsync

    def fsync(number):
        os.kill(os.getpid(), signal.SIGINT)
        real(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(KeyboardInterrupt):
        written.write([json.loads(answer())])
    assert len(written.done) == len(job.answers) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
