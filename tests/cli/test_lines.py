"""One line of a file of prompts that cannot be answered costs that line."""

import json
from pathlib import Path

import pytest

from draftwood.cli.job.lines import check_output
from draftwood.core.errors import ConfigError
from tests.cli.jobs import Job

SHORT = ["--max-new-tokens", "4", "--ignore-eos", "--seed", "5"]
GOOD, LONG = '{"prompt": "the"}', json.dumps({"prompt": "the fox ran " * 99, "id": 3})

BAD = [
    ("{'prompt': 1}", "this is not JSON"),
    ('{"prompt": "half', "this is not JSON"),
    ("[" * 100_000, "this is not JSON"),
    ('{"prompt": ' + "9" * 5000 + "}", "this is not JSON"),
    ('"the fox"', 'this is not a JSON object but "the fox"'),
    ('{"text": "the fox"}', "there is no prompt"),
    ('{"prompt": 7}', "prompt is 7, not text"),
    ('{"prompt": "a", "seed": 1.5}', "seed is 1.5; give an integer"),
    ('{"prompt": "a", "seed": true}', "seed is true; give an integer"),
    ('{"prompt": "a", "seed": -1}', "seed is -1; give an integer"),
    ('{"prompt": "a", "seed": 9223372036854775808}', "seed is 9223372036854775808; give an integer"),
    ('{"prompt": "\\ud83d"}', "half of a surrogate pair"),
    ('{"prompt": "a", "temperature": 0}', "'temperature' is set for the whole run, with --temperature"),
    ('{"prompt": "a", "logprobs": 3}', "'logprobs' is set for the whole run, with --logprobs"),
    ('{"prompt": "a", "regex": "a"}', "'regex' is set for the whole run, with --regex, not line by line"),
    ('{"prompt": "a", "id": ' + "[" * 200 + "]" * 200 + "}", "the id is nested 100 levels deep or more"),
    ('{"prompt": "a", "id": NaN}', "this is not JSON (NaN is not JSON)"),
    (b"\xff", "this is not UTF-8"),
    (b'{"prompt": "\xff"}', "this is not UTF-8"),
    (LONG, "tokens, but the models' context is 96"),
]


def test_the_others_are_answered_and_each_line_says_why(job):
    job.write(*(line for bad, _ in BAD for line in (GOOD, bad)))
    said = job.fails(code=1)
    assert f"{len(BAD)} of {2 * len(BAD)} lines could not be used; their lines say why." in said
    found, told = job.answers, dict(line.split(": ", 1) for line in said.split("\n") if line.startswith("Line "))
    assert [answer["index"] for answer in found] == list(range(2 * len(BAD)))
    for (line, why), answer in zip(BAD, found[1::2], strict=True):
        assert why in told[f"Line {answer['index'] + 1}"]
        assert why in answer["error"]
        assert answer["source"] == (line if isinstance(line, str) else line.decode(errors="replace"))
        assert not {"text", "seed"} & answer.keys()
    assert found[-1]["id"] == 3  # of an error
    job.write(*[GOOD, ""] * len(BAD))
    job.out.unlink()
    job.succeeds()
    assert job.texts == {answer["index"]: (answer["text"], answer["index"] + 5) for answer in found[::2]}


def test_equal_ids_and_fields_that_nobody_reads_cost_nothing(job):
    line = '{"prompt": "the", "id": "twin", "note": "unread", "processors": 4, "warpers": []}'
    job.write(line, line, GOOD)
    job.succeeds()
    first = job.texts
    job.keep(1)
    job.succeeds()
    assert job.texts == first
    told = [(answer["index"], answer.get("id"), answer["seed"]) for answer in job.answers]
    assert told == [(0, "twin", 5), (1, "twin", 6), (2, None, 7)]
    assert not any("note" in answer for answer in job.answers)


def test_an_empty_prompt_without_a_beginning_of_text(run, models, tmp_path):
    job = Job(run, ["--target", models / "bare", *SHORT], tmp_path)
    job.write('{"prompt": ""}', GOOD)
    assert "Line 1: the prompt is empty" in job.fails(code=1)
    assert ["error" in answer for answer in job.answers] == [True, False]


def test_an_error_is_kept_and_counted_when_the_run_is_completed(job):
    job.write("bad", *[GOOD] * 3, LONG)
    assert "3 of 5 lines are done" in job.stopped(2, "--batch-size", "1")
    resumed = job.fails(code=1)
    assert "Line 1: " not in resumed  # it was named before
    assert "2 of 5 lines could not be used" in resumed
    assert [answer["index"] for answer in job.answers] == list(range(5))
    again = job.fails(code=1)
    assert "All 5 lines are done" in again
    assert "2 of 5 lines could not be used" in again


def test_a_line_that_was_mended_is_answered_once_its_error_is_removed(job):
    job.write("bad", GOOD)
    job.fails(code=1)
    job.write('{"prompt": "good"}', GOOD)
    assert f"{job.out}, line 1: this is the error of another text than line 1 of the input now holds" in job.fails()
    job.out.write_bytes(b"".join(job.out.read_bytes().splitlines(keepends=True)[1:]))
    job.succeeds()
    assert sorted(job.texts) == [0, 1]


def test_a_first_seed_out_of_range_is_still_refused_before_anything_is_written(job):
    job.write("bad", "worse", GOOD)
    assert "plus line number 2 is above" in job.fails("--seed", 2**63 - 1)
    assert not job.out.exists()
    job.write("bad", "worse")
    assert "2 of 2 lines could not be used" in job.fails(code=1)


def test_an_id_that_utf8_cannot_say_comes_back_as_it_was(job):
    job.write('{"prompt": "the", "id": "\\ud83d"}')
    job.succeeds()
    assert job.answers[0]["id"] == "\ud83d"


def test_tuning_measures_no_text_that_nobody_gave(job, run, pair):
    job.write(GOOD, "bad")
    result = run("tune", *pair, "--input", job.input)
    assert result.exit_code == 2
    assert f"{job.input}, line 2: this is not JSON" in result.stderr


def test_a_file_that_may_not_be_written_is_refused_before_the_work(monkeypatch, tmp_path):
    out = tmp_path / "texts.jsonl"
    out.touch()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != out)
    with pytest.raises(ConfigError, match=r"texts\.jsonl cannot be written: permission denied"):
        check_output(out)
