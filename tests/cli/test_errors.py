"""Wrong options and wrong models: one sentence, an exit code, no traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftwood.cli import console, settings, single
from draftwood.core.errors import DraftwoodError, NumericsError
from draftwood.core.settings import Method

USAGE, FAILED = 2, 1
CASES = {
    "generate": [
        (["--method", "magic"], "'magic' is not one of 'auto', 'ar', 'chain'"),
        (["--method", "rsd-s", "--shape", "2-2-2"], "shape '2-2-2' does not fit method 'rsd-s': give width x length"),
        (["--method", "chain", "--nodes", "5"], "nodes is a budget for methods 'dynamic' and 'shared-noise'"),
        (["--verifier", "tolerance"], "verifier 'tolerance' is for temperature 0 only"),
        (["--beta", "3"], "beta and tau are for temperature 0"),
        (["--temperature", "0", "--beta", "0"], "beta is 0: give 1"),
        (["--temperature", "0", "--tau", "-1"], "tau is -1.0: give 0"),
        (["--temperature", "0", "--tau", "1", "--verifier", "greedy"], "for verifier 'tolerance', but"),
        (["--method", "block", "--shape", "2-2"], "shape '2-2' does not fit method 'block': give a length such as 10"),
        (["--method", "block"], "method 'block' needs a draft that scores a whole block at once"),
        (["--method", "ngram", "--top-p", "1e-50"], "top_p is 1e-50, which 32-bit floating point cannot hold: give "),
        (["--stop-token-ids", "999999"], "stop_token_ids holds 999999"),
        (["--logit-bias", "7"], "'7' is not TOKEN=VALUE"),
        (["--logit-bias", "7=nan"], "give a finite value"),
        (["--logit-bias", "70000=1"], "logit_bias names token 70000"),
        (["--device", "abacus"], "device 'abacus' cannot be used here"),
        (["--dtype", "int3"], "'int3' is not one of"),
        (["--method", "ar", "--compare"], "--method ar is plain decoding itself"),
        (["--show", "--json"], "--show and --json exclude each other"),
        (["--output", "x.jsonl"], "--output belongs to --input"),
        (["--batch-size", "3"], "--batch-size belongs to --input"),
        (["--frobnicate"], "--frobnicate"),
        (["--logprobs", "1"], "--logprobs 1 is for JSON, and this output is plain text: add --json"),
        (["--json", "--logprobs", "21"], "logprobs is 21"),
        (["--json", "--logprobs-of", "sampled"], "belongs to --logprobs N"),
        (["--json", "--logprobs", "1", "--logprobs-of", "sampled", "--beta", "2", "--temperature", "0"], "tolerance"),
    ],
    "check": [
        (["--samples", "2"], "say nothing: give 640 tokens or more"),
        (["--samples", "0"], "samples is 0: give 1 or more"),
        (["--enumerate", "0"], "enumerate is 0: give 1 or more"),
        (["--enumerate", "2", "--samples", "9"], "enumerate draws no samples, but samples also came"),
        (
            ["--enumerate", "2", "--method", "chain"],
            "give --top-k 16 or less, or leave --enumerate out, so that check samples",
        ),
    ],
    "trace": [
        ([], "nothing to trace"),
        (["hello", "--input", "x.json"], "--input shows a file"),
        (["--input", "x.json", "--seed", "1"], "--seed was given too"),
        (["--translate", "x", "--temperature", "1"], "--temperature is for a prompt"),
        (["--translate", "x", "--compare"], "--compare is for a prompt"),
        (["--translate", " "], "sentence is empty"),
        (["--input", "cut.json"], "version is 99"),
        (["hello", "--rounds", "0"], "give 1 or more"),
    ],
    "tune": [
        (["--input", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
        (["--input", "empty.jsonl"], "holds no prompt"),
        (["--minutes", "0"], "minutes is 0.0: give a number above 0"),
        (["--prompts", "0"], "prompts is 0: give 1 or more"),
        (["--temperature", "-1"], "temperature is -1.0: give a number 0 or more"),
        (["--max-new-tokens", "95"], "do not fit the models' context of 96"),
        (["--out", "/tmp"], "output /tmp cannot be written"),
    ],
}
BEGIN = {"generate": ["the fox"], "tune": ["--input", "texts.jsonl", "--minutes", "0.001"]}


@pytest.mark.parametrize(
    ("command", "options", "said"), [(command, *case) for command, cases in CASES.items() for case in cases]
)
def test_what_cannot_be_done_is_refused_in_one_sentence(run, pair, tmp_path, monkeypatch, command, options, said):
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text('{"prompt": "the fox ran"}\n{"prompt": "a dog and a hen"}\n', encoding="utf-8")
    Path("empty.jsonl").write_text("\n", encoding="utf-8")
    Path("cut.json").write_text('{"format": "draftwood trace", "version": 99, "traces": []}', encoding="utf-8")
    result = run(command, *([] if command == "trace" else pair), *BEGIN.get(command, []), *options)
    assert result.exit_code in ((FAILED, USAGE) if command == "check" else (USAGE,))
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert result.stderr.count("Error: ") == 1


def test_models_and_prompts_that_cannot_be_used(run, pair, models, tmp_path):
    target, none, folder = models / "target", tmp_path / "none", tmp_path / "folder"
    folder.mkdir()
    empty, good = tmp_path / "empty.jsonl", tmp_path / "good.jsonl"
    empty.write_text("\n \n", encoding="utf-8")
    good.write_text('{"prompt": "the"}\n', encoding="utf-8")
    cases = [
        (["--target", target, "--draft", none, "the fox"], FAILED, str(none)),
        (["--target", target, "--method", "chain", "the fox"], USAGE, "method 'chain' needs a draft model"),
        (["--target", target, "--draft", models / "stranger", "the fox"], USAGE, "cannot draft for"),
        (["--target", models / "bare", "--method", "ngram", ""], USAGE, "the prompt is empty"),
        ([*pair, "the fox ran " * 99], FAILED, "context is 96"),
        ([*pair, "\udcff"], USAGE, "not UTF-8"),
        ([*pair, "--input", empty], USAGE, "holds no prompts"),
        ([*pair, "--input", good, "the fox"], USAGE, "leave one of them out"),
        ([*pair, "--input", good, "--batch-size", 0], USAGE, "batch_size is 0"),
        ([*pair, "--input", good, "--output", folder], USAGE, "is not a regular file"),
    ]
    for options, code, said in cases:
        result = run("generate", *options)
        assert (result.exit_code, said in result.stderr) == (code, True), result.output
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
    result = run("generate", *pair, "-", stdin=b"\xff\xfe")
    assert (result.exit_code, "on standard input is not UTF-8" in result.stderr) == (USAGE, True)


def test_a_model_with_a_drafter_in_this_package_may_have_a_method_that_needs_one():
    for method in (Method(method="chain"), Method(method="rsd-s"), Method(nodes=5)):
        settings.check_fit(settings.Models(target="smollm2"), method, 1.0)
        with pytest.raises(DraftwoodError, match="draft"):
            settings.check_fit(settings.Models(target="another"), method, 1.0)


def test_an_empty_prompt_starts_from_the_beginning_of_text(run, pair):
    assert run("generate", *pair, "--max-new-tokens", "3", "").exit_code == 0


def test_ctrl_c_ends_one_prompt_with_130(run, pair, monkeypatch):
    def stopped(self, text, **_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(single.Screen, "write", stopped)
    result = run("generate", *pair, "--seed", "5", "the fox")
    assert result.exit_code == 130
    assert "tokens were generated; seed 5" in result.stderr


@pytest.mark.parametrize("place", ["draftwood.api.load", "click.Group.parse_args"])
def test_ctrl_c_before_a_text_has_begun_ends_with_130_and_one_word(run, pair, monkeypatch, place):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(place, stopped)
    result = run("generate", *pair, "the fox")
    assert (result.exit_code, result.stderr) == (130, "Stopped.\n")


def test_debug_shows_where(run, pair, monkeypatch):
    def fail(*_, **__):
        raise NumericsError("bad scores")

    monkeypatch.setattr("draftwood.api.load", fail)
    assert run("generate", *pair, "the fox").exit_code == FAILED
    assert isinstance(run("--debug", "generate", *pair, "the fox").exception, NumericsError)
    monkeypatch.setenv("DRAFTWOOD_DEBUG", "1")
    assert isinstance(run("generate", *pair, "the fox").exception, NumericsError)


@pytest.mark.skipif(os.name == "nt", reason="pipes break in another way")
@pytest.mark.parametrize("words", [["--help"], ["models"], ["--debug", "generate", "--max-new-tokens", "64", "the fox"]])
def test_a_reader_that_goes_away_ends_a_command_without_a_message_as_sigpipe_does(environment, pair, words):
    child = subprocess.Popen(
        [sys.executable, "-m", "draftwood", *words, *(pair if "generate" in words else [])],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=60) == 141


@pytest.mark.skipif(os.name == "nt", reason="pipes break in another way")
def test_another_pipe_that_breaks_is_a_failure(run, pair, monkeypatch):
    def fail(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("draftwood.api.load", fail)
    result = run("generate", *pair, "the fox")
    assert (result.exit_code, result.stderr) == (FAILED, "Error: Broken pipe\n")
    reader, writer = os.pipe()
    with open(writer, "wb") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert not console.output_is_closed()
        os.close(reader)
        assert console.output_is_closed()


INTERRUPTED = """
import runpy, sys
class CtrlC:
    def find_spec(self, name, *rest):
        if name == MODULE:
            raise KeyboardInterrupt
sys.meta_path.insert(0, CtrlC())
runpy.run_module("draftwood", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["draftwood.cli", "click", "draftwood.cli.group", "draftwood.cli.generate", "torch"])
def test_ctrl_c_during_the_imports_ends_without_a_traceback(name, environment):
    code = INTERRUPTED.replace("MODULE", repr(name))
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", "Once"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 130
    assert done.stderr.strip() in ("", "Stopped.")
