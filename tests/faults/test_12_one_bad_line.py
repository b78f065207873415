"""One line that cannot be answered costs that line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from draftwood.engine.decode import Decoder
from tests.cli.conftest import Run

SHORT = ["--max-new-tokens", "4", "--ignore-eos", "--seed", "5"]
LONG = json.dumps({"prompt": "the fox ran " * 99, "id": 3})

BAD: list[tuple[str | bytes, str]] = [
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
    ('{"prompt": "a", "id": ' + "[" * 200 + "]" * 200 + "}", "the id is nested 100 levels deep or more"),
    ('{"prompt": "a", "id": NaN}', "this is not JSON (NaN is not JSON)"),
    (b"\xff", "this is not UTF-8"),
    (b'{"prompt": "\xff"}', "this is not UTF-8"),
    (LONG, "tokens, but the models' context is 96"),
]


def objects(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def written(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


@pytest.mark.parametrize(("line", "said"), BAD, ids=[said for _, said in BAD])
def test_the_others_are_answered_and_the_line_says_why(
    run: Run, pair: list[str], tmp_path: Path, line: str | bytes, said: str
) -> None:
    path, out = written(tmp_path / "prompts.jsonl", '{"prompt": "good"}', "", line, '{"prompt": "the"}'), tmp_path / "out"
    result = run("generate", *pair, *SHORT, "--input", path, "--output", out)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Line 3: ")
    assert said in result.stderr.split("\n")[0]
    assert "1 of 3 prompts could not be answered; their lines say why." in result.stderr
    found = objects(out.read_bytes())
    assert [answer["index"] for answer in found] == [0, 2, 3]
    assert said in found[1]["error"]
    assert found[1]["source"] == (line if isinstance(line, str) else line.decode(errors="replace"))
    assert [answer.get("seed") for answer in found] == [5, None, 8]
    assert "text" not in found[1]
    good = written(tmp_path / "good.jsonl", '{"prompt": "good"}', "", "", '{"prompt": "the"}')
    alone = objects(run("generate", *pair, *SHORT, "--input", good).stdout_bytes)
    assert [answer["text"] for answer in alone] == [found[0]["text"], found[2]["text"]]


def test_the_answers_come_in_order_with_their_ids(run: Run, pair: list[str], tmp_path: Path) -> None:
    good = '{"prompt": "the"}'
    path = written(tmp_path / "prompts.jsonl", "bad", good, good, LONG, good, '{"id": "x"}', "worse")
    result = run("generate", *pair, *SHORT, "--input", path, "--batch-size", "2")
    assert result.exit_code == 1
    found = objects(result.stdout_bytes)
    assert [answer["index"] for answer in found] == list(range(7))
    assert ["error" in answer for answer in found] == [True, False, False, True, False, True, True]
    assert [found[3]["id"], found[5]["id"]] == [3, "x"]
    assert [line[:8] for line in result.stderr.split("\n")[:4]] == ["Line 1: ", "Line 4: ", "Line 6: ", "Line 7: "]


def test_equal_ids_and_fields_that_nobody_reads_cost_nothing(run: Run, pair: list[str], tmp_path: Path) -> None:
    line = '{"prompt": "the", "id": "twin", "note": "unread"}'
    path, out = written(tmp_path / "prompts.jsonl", line, line, '{"prompt": "the"}'), tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", path, "--output", out]
    assert run(*command).exit_code == 0
    whole = out.read_bytes()
    out.write_bytes(whole[: whole.index(b"\n") + 1])  # as a killed run leaves it
    assert run(*command).exit_code == 0
    first, found = objects(whole), objects(out.read_bytes())
    assert [answer["text"] for answer in found] == [answer["text"] for answer in first]
    told = [(answer["index"], answer.get("id"), answer["seed"]) for answer in found]
    assert told == [(0, "twin", 5), (1, "twin", 6), (2, None, 7)]
    assert not any("note" in answer for answer in found)


def test_an_empty_prompt_without_a_beginning_of_text(run: Run, models: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", '{"prompt": ""}', '{"prompt": "the"}')
    result = run("generate", "--target", models / "bare", *SHORT, "--input", path)
    assert result.exit_code == 1
    assert "Line 1: the prompt is empty" in result.stderr
    assert ["error" in answer for answer in objects(result.stdout_bytes)] == [True, False]


def test_nothing_but_bad_lines(run: Run, pair: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", "bad", "worse")
    result = run("generate", *pair, *SHORT, "--input", path)
    assert result.exit_code == 1
    assert "2 of 2 prompts could not be answered" in result.stderr


def test_an_error_is_kept_and_counted_when_the_run_is_completed(
    run: Run, pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "prompts.jsonl", "bad", *['{"prompt": "the"}'] * 3, LONG)
    out = tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", path, "--output", out, "--batch-size", "1"]
    real = Decoder.results

    def stopped(*args: Any, **more: Any) -> Iterator[Any]:
        yield from islice(real(*args, **more), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "results", stopped)
    stop = run(*command)
    assert (stop.exit_code, "3 of 5 prompts are answered" in stop.stderr) == (130, True), stop.output
    monkeypatch.setattr(Decoder, "results", real)
    resumed = run(*command)
    assert resumed.exit_code == 1
    assert "Line 1: " not in resumed.stderr  # it was named before
    assert "2 of 5 prompts could not be answered" in resumed.stderr
    assert [answer["index"] for answer in objects(out.read_bytes())] == list(range(5))
    again = run(*command)
    assert again.exit_code == 1
    assert "All 5 prompts are answered" in again.stderr
    assert "2 of 5 prompts could not be answered" in again.stderr


def test_a_line_that_was_mended_is_answered_once_its_error_is_removed(run: Run, pair: list[str], tmp_path: Path) -> None:
    path, out = written(tmp_path / "prompts.jsonl", "bad", '{"prompt": "the"}'), tmp_path / "out.jsonl"
    command = ["generate", *pair, *SHORT, "--input", path, "--output", out]
    assert run(*command).exit_code == 1
    written(path, '{"prompt": "good"}', '{"prompt": "the"}')
    result = run(*command)
    assert result.exit_code == 2
    assert f"{out}, line 1: this is the error of another text than line 1 of the input now holds" in result.stderr
    out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[1:]))
    mended = run(*command)
    assert mended.exit_code == 0, mended.output
    assert sorted(answer["index"] for answer in objects(out.read_bytes())) == [0, 1]


def test_a_first_seed_out_of_range_is_still_refused_before_anything_is_written(
    run: Run, pair: list[str], tmp_path: Path
) -> None:
    path, out = written(tmp_path / "prompts.jsonl", "bad", "worse", '{"prompt": "the"}'), tmp_path / "out.jsonl"
    result = run("generate", *pair, "--seed", 2**63 - 1, "--input", path, "--output", out)
    assert (result.exit_code, "plus line number 2 is above" in result.stderr) == (2, True)
    assert not out.exists()


def test_an_id_that_utf8_cannot_say_comes_back_as_it_was(run: Run, pair: list[str], tmp_path: Path) -> None:
    path, out = written(tmp_path / "prompts.jsonl", '{"prompt": "the", "id": "\\ud83d"}'), tmp_path / "out.jsonl"
    result = run("generate", *pair, *SHORT, "--input", path, "--output", out)
    assert result.exit_code == 0, result.output
    assert objects(out.read_bytes())[0]["id"] == "\ud83d"


def test_tuning_measures_no_text_that_nobody_gave(run: Run, pair: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", '{"prompt": "the"}', "bad")
    result = run("tune", *pair, "--input", path)
    assert result.exit_code == 2
    assert f"{path}, line 2: this is not JSON" in result.stderr


def test_keys_that_no_option_has_are_not_read(run: Run, pair: list[str], tmp_path: Path) -> None:
    path = written(tmp_path / "prompts.jsonl", '{"prompt": "the", "processors": 4, "warpers": []}')
    result = run("generate", *pair, *SHORT, "--input", path)
    assert result.exit_code == 0, result.output
    assert "error" not in objects(result.stdout_bytes)[0]
