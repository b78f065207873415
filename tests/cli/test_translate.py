"""``draftwood translate``: a text, a file line by line, a run that is stopped and taken up again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import draftwood
from draftwood import Method, load_translator
from draftwood.cli import translate
from draftwood.cli.job import output as files
from draftwood.engine.decode import Decoder
from tests.cli.conftest import Run
from tests.tiny_translation import sentences

LOOSE = ["--beta", "300", "--tau", "50"]
LINES = sentences(7, seed=5)


@pytest.fixture(scope="module")
def pair(translation: Path) -> list[str]:
    """Options that name the models."""
    return ["--target", str(translation / "target"), "--draft", str(translation / "block"), "--dtype", "float32"]


@pytest.fixture(scope="module")
def wanted(translation: Path) -> list[str]:
    """Translations of the lines by the target alone."""
    translator = load_translator(translation / "target")
    return [result.text for result in translator.translate(LINES, method=Method(method="ar"))]


@pytest.fixture
def german(tmp_path: Path) -> Path:
    """The lines, one with a Windows line end, and an empty one behind the second."""
    path = tmp_path / "german.txt"
    path.write_bytes("\n".join([LINES[0] + "\r", LINES[1], "", *LINES[2:]]).encode() + b"\n")
    return path


def succeeded(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_one_sentence(run: Run, pair: list[str], wanted: list[str]) -> None:
    result = succeeded(run("translate", *pair, LINES[0]))
    assert result.stdout == wanted[0] + "\n"
    assert "method block + greedy by torch, ended" in result.stderr
    assert "changes the text" not in result.stderr
    assert "seed" not in result.stderr


def test_json_is_one_object_with_the_promised_fields(run: Run, pair: list[str], wanted: list[str]) -> None:
    result = succeeded(run("translate", *pair, "--json", "--compare", "--k", "4", LINES[0]))
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert {"source", "text", "token_ids", "finish_reason", "lossless", "stats", "method"} <= found.keys()
    assert (found["source"], found["text"], found["lossless"]) == (LINES[0], wanted[0], True)
    assert "seed" not in found  # nothing is drawn
    assert (found["method"]["method"], found["method"]["shape"], found["method"]["verifier"]) == ("block", "4", "greedy")
    assert found["compare"]["identical"] is True
    assert max(k for k, n in enumerate(found["stats"]["accepted"]) if n) <= 4


def test_tolerance_is_told(run: Run, pair: list[str], wanted: list[str]) -> None:
    found = json.loads(succeeded(run("translate", *pair, *LOOSE, "--json", LINES[0])).stdout)
    assert found["lossless"] is False
    assert (found["method"]["verifier"], found["method"]["beta"], found["method"]["tau"]) == ("tolerance", 300, 50.0)
    assert found["text"] != wanted[0]
    result = succeeded(run("translate", *pair, *LOOSE, "--compare", LINES[0]))
    assert result.stdout == found["text"] + "\n"
    assert "method block + tolerance (changes the text)" in result.stderr
    assert f"Plain decoding writes: {wanted[0]}" in result.stderr
    exact = succeeded(run("translate", *pair, "--beta", "1", "--compare", LINES[0]))
    assert "changes the text" not in exact.stderr
    assert "The two texts are identical." in exact.stderr


def test_a_file_line_by_line(run: Run, pair: list[str], german: Path, wanted: list[str], tmp_path: Path) -> None:
    out = tmp_path / "english.txt"
    result = succeeded(run("translate", *pair, "--input", german, "--output", out, "--batch-size", "3"))
    assert out.read_text(encoding="utf-8").split("\n") == [*wanted[:2], "", *wanted[2:], ""]
    assert result.stdout == ""
    assert result.stderr.startswith("8 lines, ")
    assert {path.name for path in tmp_path.iterdir()} == {"german.txt", "english.txt"}


@pytest.mark.parametrize("option", [["-"], ["--input", "-"]])
def test_standard_input_goes_to_standard_output_in_order(
    run: Run, pair: list[str], german: Path, wanted: list[str], option: list[str]
) -> None:
    result = succeeded(run("translate", *pair, "--batch-size", "4", *option, stdin=german.read_bytes()))
    assert result.stdout.split("\n") == [*wanted[:2], "", *wanted[2:], ""]
    found = objects(succeeded(run("translate", *pair, "--json", *option, stdin=german.read_bytes())).stdout)
    assert [(answer["index"], answer["text"]) for answer in found] == list(enumerate([*wanted[:2], "", *wanted[2:]]))
    assert {"source", "token_ids", "finish_reason", "lossless", "stats", "method"} <= found[0].keys()
    assert not {"seed", "settings"} & found[0].keys()
    assert found[2] == {"index": 2, "source": "", "text": "", "token_ids": []}
    assert succeeded(run("translate", *pair, *option, stdin=b"")).stdout == ""


def test_lines_that_cannot_be_translated_are_named_and_the_others_unharmed(
    run: Run, pair: list[str], wanted: list[str], tmp_path: Path
) -> None:
    path, out = tmp_path / "german.txt", tmp_path / "english.txt"
    path.write_bytes(f"{LINES[0]}\n{'Haus ' * 60}\n{LINES[1]}\n".encode() + b"Haus \xff\n" + LINES[2].encode())
    result = run("translate", *pair, "--input", path, "--output", out)
    assert result.exit_code == 1
    assert "Line 2: the sentence has " in result.stderr
    assert "but the target's encoder reads 40: split it." in result.stderr
    assert "Line 4: this is not UTF-8 text" in result.stderr
    assert "2 of 5 lines could not be translated; they are left empty." in result.stderr
    assert out.read_text(encoding="utf-8").split("\n") == [wanted[0], "", wanted[1], "", wanted[2], ""]
    printed = run("translate", *pair, "--json", "-", stdin=path.read_bytes())
    assert printed.exit_code == 1
    found = objects(printed.stdout)
    assert found[1].keys() == {"index", "source", "error"}
    assert found[3]["source"] == "Haus \ufffd"
    assert [answer.get("text") for answer in found] == [wanted[0], None, wanted[1], None, wanted[2]]


def test_limits_that_leave_no_room_are_refused_before_anything_is_written(
    run: Run, translation: Path, german: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    shutil.copytree(translation / "target", target)
    config = target / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"forced_bos_token_id": 305}))
    command = ["translate", "--target", target, "--input", german, "--output", tmp_path / "out", "--max-new-tokens"]
    result = run(*command, "1")
    assert result.exit_code == 2
    assert "the target begins every text with token 305: give 2 or more" in result.stderr
    assert result.stderr.count("\n") == 1  # once, not for every line
    assert {path.name for path in tmp_path.iterdir()} == {"german.txt", "target"}
    succeeded(run(*command, "2"))


def test_a_stopped_run_goes_on_to_the_same_file(
    run: Run,
    pair: list[str],
    wanted: list[str],
    tmp_path: Path,
    stop_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    german, out, partial = (tmp_path / name for name in ("german.txt", "english.txt", "english.txt.partial"))
    german.write_bytes(b"\xff\n" + "\n".join(LINES).encode())
    command = ["translate", *pair, "--input", german, "--output", out, "--batch-size", "1"]
    stop_after(3)
    stopped = run(*command)
    assert stopped.exit_code == 130
    assert not out.exists()
    head, *rest = objects(partial.read_text(encoding="utf-8"))
    assert head["settings"]["method"] == "block"
    assert [found["index"] for found in rest] == [0, 1, 2, 3]
    assert f"Stopped: 4 of 8 lines are translated in {partial}; the same command resumes there." in stopped.stderr
    with partial.open("ab") as half:
        half.write(b'{"index": 5, "source": "ei')
    monkeypatch.undo()
    before = partial.read_bytes()
    for options, said in (
        (LOOSE, f"{partial} was started with verifier 'greedy', which is now 'tolerance'; beta None, which"),
        (["--max-new-tokens", "5"], "was started with max_new_tokens 39, which is now 5"),
    ):
        other = run(*command, *options)
        assert (other.exit_code, said in other.stderr) == (2, True), other.output
        assert ": give the same options as before, or " in other.stderr
        assert partial.read_bytes() == before
    resumed = run(*command)
    assert resumed.exit_code == 1
    assert f"4 of 8 lines are translated in {partial} already." in resumed.stderr
    assert "4 lines, " in resumed.stderr
    assert "1 of 8 lines could not be translated; they are left empty." in resumed.stderr
    assert out.read_text(encoding="utf-8").split("\n") == ["", *wanted, ""]
    assert not partial.exists()


def test_a_stop_on_standard_output_leaves_whole_lines_in_order(
    run: Run, pair: list[str], german: Path, wanted: list[str], stop_after: Callable[[int], None]
) -> None:
    stop_after(3)
    stopped = run("translate", *pair, "--input", german, "--batch-size", "1")
    assert stopped.exit_code == 130
    assert stopped.stdout.split("\n") == [*wanted[:2], "", wanted[2], ""]
    assert "Stopped: 4 of 8 lines are translated." in stopped.stderr


@pytest.mark.parametrize("content", ['{"index": 0, "source": "x"}\n', '{"settings": 1}\n', "diary"])
def test_a_partial_file_that_holds_something_else_is_left_alone(
    run: Run, pair: list[str], german: Path, tmp_path: Path, content: str
) -> None:
    out, partial = tmp_path / "english.txt", tmp_path / "english.txt.partial"
    partial.write_text(content, encoding="utf-8")
    result = run("translate", *pair, "--input", german, "--output", out)
    assert result.exit_code == 2
    assert f"{partial}, line 1: this is not a translation" in result.stderr
    assert partial.read_text(encoding="utf-8") == content


def test_a_file_that_is_there_is_never_overwritten(
    run: Run, pair: list[str], german: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "english.txt"
    out.write_text("my diary\n", encoding="utf-8")
    command = ["translate", *pair, "--input", german, "--output", out]
    result = run(*command)
    assert result.exit_code == 2
    assert f"output {out} exists and is left unchanged" in result.stderr
    assert out.read_text(encoding="utf-8") == "my diary\n"
    out.unlink()

    def meanwhile(*args: Any, **more: Any) -> Iterator[Any]:
        out.write_text("my diary\n", encoding="utf-8")
        return real(*args, **more)

    real = Decoder.results
    monkeypatch.setattr(Decoder, "results", meanwhile)
    late = run(*command)
    assert late.exit_code == 2
    assert f"output {out} was created by another process" in late.stderr
    assert out.read_text(encoding="utf-8") == "my diary\n"


def test_a_run_killed_at_the_very_end_is_known_again(
    run: Run, pair: list[str], german: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, partial = tmp_path / "english.txt", tmp_path / "english.txt.partial"
    command = ["translate", *pair, "--input", german, "--output", out]

    def killed(path: Path, text: str) -> None:
        real(path, text)
        raise KeyboardInterrupt

    real = files.replace_file
    monkeypatch.setattr(files, "replace_file", killed)
    assert run(*command).exit_code == 130
    monkeypatch.undo()
    before = out.read_bytes()
    assert partial.exists()
    again = succeeded(run(*command))
    assert "All 8 lines are translated" in again.stderr
    assert out.read_bytes() == before
    assert not partial.exists()


def test_what_the_model_asks_for_and_does_not_get_is_said_once(
    run: Run, pair: list[str], german: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beams(*args: Any, **more: Any) -> Any:
        translator = real(*args, **more)
        translator.remarks = ("the model's generation config says num_beams=6: this decodes greedily",)
        return translator

    real = draftwood.load_translator
    monkeypatch.setattr("draftwood.translation.load_translator", beams)
    result = succeeded(run("translate", *pair, "--input", german))
    assert result.stderr.count("Note: the model's generation config says num_beams=6: this decodes greedily.\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "there is no text"),
        ([""], 2, "the text is empty"),
        (["Haus", "--input", "x"], 2, "both a text ('Haus') and --input x were given"),
        (["Haus", "--output", "x"], 2, "--output belongs to --input FILE or -"),
        (["Haus", "--batch-size", "2"], 2, "--batch-size belongs to --input FILE or -"),
        (["-", "--show"], 2, "--show is for a single text"),
        (["-", "--compare"], 2, "--compare is for a single text"),
        (["Haus", "--k", "3", "--shape", "4"], 2, "--k 3 and --shape 4 both set the length of a block"),
        (["Haus", "--k", "0"], 2, "k is 0: give a number of tokens"),
        (["Haus", "--k", "90"], 2, "the block has 90 masked positions, but the model takes 1 to 79"),
        (["Haus", "--beta", "3", "--verifier", "greedy"], 2, "beta and tau are for verifier 'tolerance'"),
        (["Haus " * 60], 1, "but the target's encoder reads 40"),
        (["Haus \udcff"], 2, "no Unicode text"),
        (["--temperature", "1", "Haus"], 2, "--temperature"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    run: Run, pair: list[str], options: list[str], code: int, said: str
) -> None:
    result = run("translate", *pair, *options)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1


def test_help_lists_the_options_by_subject(run: Run) -> None:
    text = succeeded(run("translate", "--help")).output
    places = [text.index(f"\n{title}:") for title in translate.SECTIONS]
    assert places == sorted(places)
    for name in ("--target", "--beta", "--tau", "--k ", "--output", "--compare", "--show", "--max-new-tokens", "--backend"):
        assert f"  {name}" in text
    assert not any(name in text for name in ("--profile", "--weights", "--temperature"))
