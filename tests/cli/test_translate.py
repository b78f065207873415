"""``draftwood translate``: a text, a file line by line, a run that is stopped and taken up again."""

import json
import shutil

import pytest

import draftwood
from draftwood import Method, load_translator
from draftwood.engine.decode import Decoder
from tests.cli.jobs import Job, objects, stopping, succeeded
from tests.tiny_translation import sentences

LOOSE = ["--beta", "300", "--tau", "50"]
LINES = sentences(7, seed=5)


@pytest.fixture(scope="module")
def pair(translation):
    """Options that name the models."""
    return ["--target", str(translation / "target"), "--draft", str(translation / "block"), "--dtype", "float32"]


@pytest.fixture(scope="module")
def wanted(translation):
    """Translations of the lines by the target alone."""
    translator = load_translator(translation / "target")
    return [result.text for result in translator.translate(LINES, method=Method(method="ar"))]


@pytest.fixture
def german(run, pair, tmp_path):
    """The lines, one with a Windows line end, and an empty one behind the second."""
    job = Job(run, pair, tmp_path, command="translate")
    job.write(LINES[0] + "\r", LINES[1], "", *LINES[2:])
    return job


@pytest.fixture
def translated(run, pair):
    """A command that succeeds."""

    return lambda *options, **more: succeeded(run("translate", *pair, *options, **more))


def english(job):
    return job.out.read_text(encoding="utf-8").split("\n")


def partial_of(job):
    return job.out.with_name(f"{job.out.name}.partial")


def test_one_sentence(translated, wanted):
    result = translated(LINES[0])
    assert result.stdout == wanted[0] + "\n"
    assert "method block + greedy by torch, ended" in result.stderr
    assert "changes the text" not in result.stderr
    assert "seed" not in result.stderr


def test_json_is_one_object_with_the_promised_fields(translated, wanted):
    result = translated("--json", "--compare", "--shape", "4", LINES[0])
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert {"source", "text", "token_ids", "finish_reason", "lossless", "stats", "method"} <= found.keys()
    assert (found["source"], found["text"], found["lossless"]) == (LINES[0], wanted[0], True)
    assert "seed" not in found  # nothing is drawn
    assert (found["method"]["method"], found["method"]["shape"], found["method"]["verifier"]) == ("block", "4", "greedy")
    assert found["compare"]["identical"] is True
    assert max(k for k, n in enumerate(found["stats"]["accepted"]) if n) <= 4


def test_tolerance_is_told(translated, wanted):
    found = json.loads(translated(*LOOSE, "--json", LINES[0]).stdout)
    assert found["lossless"] is False
    assert (found["method"]["verifier"], found["method"]["beta"], found["method"]["tau"]) == ("tolerance", 300, 50.0)
    assert found["text"] != wanted[0]
    result = translated(*LOOSE, "--compare", LINES[0])
    assert result.stdout == found["text"] + "\n"
    assert "method block + tolerance (changes the text)" in result.stderr
    assert f"Plain decoding writes: {wanted[0]}" in result.stderr
    exact = translated("--beta", "1", "--compare", LINES[0])
    assert "changes the text" not in exact.stderr
    assert "The two texts are identical." in exact.stderr


def test_a_file_line_by_line(german, wanted):
    result = german.succeeds("--batch-size", "3")
    assert english(german) == [*wanted[:2], "", *wanted[2:], ""]
    assert result.stdout == ""
    assert result.stderr.startswith("8 lines, ")
    assert {path.name for path in german.out.parent.iterdir()} == {german.input.name, german.out.name}


@pytest.mark.parametrize("option", [["-"], ["--input", "-"]])
def test_standard_input_goes_to_standard_output_in_order(translated, german, wanted, option):
    given, texts = german.input.read_bytes(), [*wanted[:2], "", *wanted[2:]]
    assert translated("--batch-size", "4", *option, stdin=given).stdout.split("\n") == [*texts, ""]
    found = objects(translated("--json", *option, stdin=given).stdout_bytes)
    assert [(answer["index"], answer["text"]) for answer in found] == list(enumerate(texts))
    assert {"source", "token_ids", "finish_reason", "lossless", "stats", "method"} <= found[0].keys()
    assert not {"seed", "settings"} & found[0].keys()
    assert found[2] == {"index": 2, "source": "", "text": "", "token_ids": []}
    assert translated(*option, stdin=b"").stdout == ""


def test_lines_that_cannot_be_translated_are_named_and_the_others_unharmed(run, pair, german, wanted):
    german.write(LINES[0], "Haus " * 60, LINES[1], b"Haus \xff", LINES[2])
    said = german.fails(code=1)
    assert "Line 2: the sentence has " in said
    assert "but the target's encoder reads 40: split it." in said
    assert "Line 4: this is not UTF-8 text" in said
    assert "2 of 5 lines could not be used; they are left empty." in said
    assert english(german) == [wanted[0], "", wanted[1], "", wanted[2], ""]
    printed = run("translate", *pair, "--json", "-", stdin=german.input.read_bytes())
    assert printed.exit_code == 1
    found = objects(printed.stdout_bytes)
    assert found[1].keys() == {"index", "source", "error"}
    assert found[3]["source"] == "Haus \ufffd"
    assert [answer.get("text") for answer in found] == [wanted[0], None, wanted[1], None, wanted[2]]


def test_limits_that_leave_no_room_are_refused_before_anything_is_written(german, translation):
    target = german.out.parent / "target"
    shutil.copytree(translation / "target", target)
    config = target / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"forced_bos_token_id": 305}))
    german.options = ["--target", target]
    said = german.fails("--max-new-tokens", "1")
    assert "the target begins every text with token 305: give 2 or more" in said
    assert said.count("\n") == 1  # once, not for every line
    assert not german.out.exists()
    assert not partial_of(german).exists()
    german.succeeds("--max-new-tokens", "2")


def test_a_stopped_run_goes_on_to_the_same_file(german, wanted):
    german.write(b"\xff", *LINES)
    partial, one = partial_of(german), ("--batch-size", "1")
    said = german.stopped(3, *one)
    assert not german.out.exists()
    kept = objects(partial.read_bytes())
    assert {found["settings"]["method"] for found in kept} == {"block"}
    assert [found["index"] for found in kept] == [0, 1, 2, 3]
    assert f"Stopped: 4 of 8 lines are done in {partial}; the same command resumes there." in said
    with partial.open("ab") as half:
        half.write(b'{"index": 5, "source": "ei')
    before = partial.read_bytes()
    for options, differs in (
        (LOOSE, f"{partial}, line 1: this was made with verifier 'greedy', which is now 'tolerance'; beta None, which"),
        (["--max-new-tokens", "5"], "this was made with max_new_tokens 39, which is now 5"),
    ):
        refused = german.fails(*one, *options)
        assert differs in refused
        assert ": give the same options as before, or " in refused
        assert partial.read_bytes() == before
    resumed = german.fails(*one, code=1)
    assert f"4 of 8 lines are done in {partial} already." in resumed
    assert "4 lines, " in resumed
    assert "1 of 8 lines could not be used; they are left empty." in resumed
    assert english(german) == ["", *wanted, ""]
    assert not partial.exists()


def test_a_stop_on_standard_output_leaves_whole_lines_in_order(run, pair, german, wanted):
    with stopping(3):
        stopped = run("translate", *pair, "--input", german.input, "--batch-size", "1")
    assert stopped.exit_code == 130
    assert stopped.stdout.split("\n") == [*wanted[:2], "", wanted[2], ""]
    assert "Stopped: 4 of 8 lines are done." in stopped.stderr


@pytest.mark.parametrize("content", ['{"index": 0, "source": "x"}\n', '{"settings": 1}\n', "diary"])
def test_a_partial_file_that_holds_something_else_is_left_alone(german, content):
    partial = partial_of(german)
    partial.write_text(content, encoding="utf-8")
    assert f"{partial}, line 1: this is no record of 'draftwood translate'" in german.fails()
    assert partial.read_text(encoding="utf-8") == content


def test_a_file_that_is_there_is_never_overwritten(german, monkeypatch):
    german.out.write_text("my diary\n", encoding="utf-8")
    assert f"output {german.out} exists and is left unchanged" in german.fails()
    assert english(german) == ["my diary", ""]
    german.out.unlink()

    def meanwhile(*args, **more):
        german.out.write_text("my diary\n", encoding="utf-8")
        return real(*args, **more)

    real = Decoder.results
    monkeypatch.setattr(Decoder, "results", meanwhile)
    assert f"output {german.out} was created by another process" in german.fails()
    assert english(german) == ["my diary", ""]


def test_what_the_model_asks_for_and_does_not_get_is_said_once(german, monkeypatch):
    def beams(*args, **more):
        translator = real(*args, **more)
        translator.remarks = ("the model's generation config says num_beams=6: this decodes greedily",)
        return translator

    real = draftwood.load_translator
    monkeypatch.setattr("draftwood.translation.load_translator", beams)
    said = german.succeeds().stderr
    assert said.count("Note: the model's generation config says num_beams=6: this decodes greedily.\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([""], 2, "the text is empty"),
        (["Haus", "--input", "x"], 2, "both a text ('Haus') and --input x were given"),
        (["Haus", "--output", "x"], 2, "--output belongs to --input FILE or -"),
        (["Haus", "--batch-size", "2"], 2, "--batch-size belongs to --input FILE or -"),
        (["-", "--show"], 2, "--show is for a single text"),
        (["-", "--compare"], 2, "--compare is for a single text"),
        (["Haus", "--shape", "90"], 2, "the block has 90 masked positions, but the model takes 1 to 79"),
        (["Haus", "--beta", "3", "--verifier", "greedy"], 2, "beta and tau are for verifier 'tolerance'"),
        (["Haus " * 60], 1, "but the target's encoder reads 40"),
        (["Haus \udcff"], 2, "no Unicode text"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(run, pair, options, code, said):
    result = run("translate", *pair, *options)
    assert (result.exit_code, said in result.stderr) == (code, True), result.output
    assert result.stdout == ""
    assert result.stderr.count("Error: ") == 1
