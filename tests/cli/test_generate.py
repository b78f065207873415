"""``draftwood generate`` with one prompt; ``--compare`` is fair: both are warm, and they take turns."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from draftwood.cli import show
from draftwood.cli.comparison import MOST, SECONDS, by_turns
from draftwood.draft.adaptive.budget import UNPROFITABLE
from draftwood.draft.adaptive.controller import Controller
from tests.cli.jobs import succeeded

SHORT = ["--max-new-tokens", "12", "--ignore-eos", "--seed", "5"]


def test_json_is_one_object_with_the_promised_fields(run, pair):
    result = succeeded(run("generate", *pair, "--json", *SHORT, "the fox"))
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert {"text", "token_ids", "finish_reason", "seed", "lossless", "stats"} <= found.keys()
    assert {"rounds", "block_efficiency", "accepted", "tokens_per_second", "seconds"} <= found["stats"].keys()
    assert found["stats"]["seconds"].keys() == {"draft", "target", "verify", "other"}
    assert (found["finish_reason"], found["seed"], found["lossless"]) == ("length", 5, True)
    assert len(found["token_ids"]) == 12
    assert sum(found["stats"]["accepted"]) == found["stats"]["rounds"]


def test_text_goes_to_stdout_and_the_closing_line_to_stderr(run, pair):
    text = json.loads(succeeded(run("generate", *pair, "--json", *SHORT, "the fox")).stdout)["text"]
    result = succeeded(run("generate", *pair, *SHORT, "the fox"))
    assert result.stdout == text + "\n"
    pattern = (
        r"12 tokens in [\d.]+ s: [\d.]+ tokens/s, block efficiency [\d.]+, method adaptive \+ coupled by torch, seed 5, "
        r"ended at the length limit\n"
    )
    assert re.match(pattern, result.stderr)  # notes on a busy machine may follow


BUSY = r"other processes took 1\.2 of \d+ cores"


@pytest.mark.parametrize(
    ("taken", "drafts", "note"),
    [
        (1.2, True, BUSY),
        (1.2, False, f"{BUSY}; nothing was drafted, as {UNPROFITABLE}"),
        (0.0, False, f"nothing was drafted, as {UNPROFITABLE}"),
        (0.2, True, None),
    ],
)
def test_a_closing_note_names_what_took_the_cores_and_the_drafts(run, pair, monkeypatch, taken, drafts, note):
    monkeypatch.setattr("draftwood.hardware.cores.CoreMeter.taken", lambda meter: taken)
    for name, value in {"begin_round": False, "shows_guess": False, "drafts": drafts}.items():
        monkeypatch.setattr(Controller, name, lambda *_, value=value: value)
    _, *notes = succeeded(run("generate", *pair, *SHORT, "the fox")).stderr.splitlines()
    assert len(notes) == (note is not None)
    assert note is None or re.fullmatch(f"(?i){note}", notes[0])


def test_without_a_seed_one_is_drawn_and_shown(run, pair):
    command = ["generate", *pair, "--max-new-tokens", "4", "the fox"]
    found = re.search(r"seed (\d+)", succeeded(run(*command)).stderr)
    assert found
    again = succeeded(run(*command, "--seed", found[1]))
    assert f"seed {found[1]}" in again.stderr


def test_a_dash_reads_standard_input_without_its_last_line_break(run, pair):
    given = succeeded(run("generate", *pair, *SHORT, "--json", "the fox 🦊"))
    read = succeeded(run("generate", *pair, *SHORT, "--json", "-", stdin="the fox 🦊\n"))
    assert json.loads(read.stdout)["token_ids"] == json.loads(given.stdout)["token_ids"]


@pytest.mark.parametrize("options", [["--temperature", "0"], ["--method", "chain", "--verifier", "coupled"]])
def test_compare_finds_the_same_text_without_a_draft(run, pair, options):
    result = succeeded(run("generate", *pair, *SHORT, *options, "--compare", "the fox"))
    assert re.search(
        r"By turns: .* times transformers' generate \([\d.]+\) and run by run [\d.]+ times plain decoding "
        r"\([\d.]+; one run of each",
        result.stderr,
    )
    assert "The two texts are identical." in result.stderr


def test_a_draft_text_is_read_from_a_file(run, pair, tmp_path):
    command = ["generate", *pair, *SHORT, "--temperature", "0", "the fox"]
    plain, file = succeeded(run(*command)), tmp_path / "old.txt"
    file.write_text(plain.stdout)
    assert succeeded(run(*command, "--draft-text", file)).stdout == plain.stdout
    assert "cannot be read" in run(*command, "--draft-text", tmp_path / "none").stderr
    assert "--draft-text is for a single prompt" in run(*command[:-1], "--input", file, "--draft-text", file).stderr


def test_compare_tells_another_text_of_the_same_distribution(run, pair):
    result = succeeded(run("generate", *pair, *SHORT, "--method", "rsd-s", "--compare", "the fox"))
    assert "their distribution is the same" in result.stderr


def test_show_brackets_what_was_drafted_and_changes_nothing_else(run, pair, models):
    options = [*pair, *SHORT, "--method", "rsd-c", "--temperature", "0.7", "the fox"]
    plain = succeeded(run("generate", *options)).stdout
    shown = succeeded(run("generate", *options, "--show"))
    assert shown.stdout.replace("⟦", "").replace("⟧", "") == plain
    stats = json.loads(succeeded(run("generate", *options, "--json")).stdout)["stats"]
    assert shown.stdout.count("⟦") <= sum(stats["accepted"][1:])
    assert "in ⟦ ⟧: drafted and accepted" in shown.stderr


def test_control_characters_do_not_reach_a_terminal(capsys):
    screen = show.Screen()
    screen.write("a\x1b[2Jb")
    screen.terminal = True
    screen.write("a\x1b[2J\tb\n")
    assert capsys.readouterr().out == "a\x1b[2Jba[2J\tb\n"


def test_stop_and_bias_are_honoured(run, pair):
    free = json.loads(succeeded(run("generate", *pair, *SHORT, "--json", "the fox")).stdout)
    first = free["token_ids"][0]
    banned = json.loads(
        succeeded(run("generate", *pair, *SHORT, "--json", "--logit-bias", f"{first}=-inf", "the fox")).stdout
    )
    assert first not in banned["token_ids"]
    second = free["token_ids"][1]
    stopped = json.loads(succeeded(run("generate", *pair, *SHORT, "--json", "--stop-token-ids", second, "the fox")).stdout)
    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == free["token_ids"][: free["token_ids"].index(second) + 1]


@pytest.mark.parametrize("options", [["--verifier", "greedy"], ["--beta", "3"], ["--verifier", "tolerance"]])
def test_a_greedy_model_takes_what_is_for_temperature_0(run, models, tmp_path, options):
    """Where the generation config asks for the most likely text, not an option."""
    target = Path(shutil.copytree(models / "target", tmp_path / "greedy"))
    path = target / "generation_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: config[name] for name in config if name not in ("do_sample", "top_k")}))
    command = ["generate", "--target", target, *SHORT, *options, "the fox"]
    assert succeeded(run(*command)).stdout == succeeded(run(*command, "--temperature", "0")).stdout


def test_log_probabilities_in_json_have_an_entry_for_every_token(run, pair):
    found = json.loads(succeeded(run("generate", *pair, *SHORT, "the fox", "--json", "--logprobs", "2")).stdout)
    entries = found["logprobs"]
    assert [one["token_id"] for one in entries] == found["token_ids"]
    assert "".join(one["token"] for one in entries) == found["text"]
    for one in entries:
        assert len(one["top"]) == 2
        assert one["logprob"] <= one["top"][0]["logprob"] < 0
        assert one["top"][0].keys() == {"token_id", "token", "logprob"}
    without = json.loads(run("generate", *pair, *SHORT, "the fox", "--json").stdout)
    assert "logprobs" not in without
    assert without["text"] == found["text"]


def test_log_probabilities_of_a_translation(run, translation):
    command = ["translate", "--target", str(translation / "target"), "--max-new-tokens", "5", "--logprobs", "1"]
    refused = run(*command, "a b")
    assert (refused.exit_code, "--json" in refused.stderr) == (2, True)
    found = json.loads(succeeded(run(*command, "a b", "--json")).stdout)
    assert [one["token_id"] for one in found["logprobs"]] == found["token_ids"]
    entry = {"token_id", "token", "logprob"}
    assert all(one["top"] == [{name: one[name] for name in entry}] for one in found["logprobs"])  # greedy


def written(seconds, tokens=10):
    stats = SimpleNamespace(total_seconds=seconds, tokens_per_second=tokens / seconds, new_tokens=tokens)
    return SimpleNamespace(stats=stats, token_ids=[1, 2], text="a text")


class Turns:
    """Writes texts that take the given seconds, one after the other, and notes who wrote."""

    def __init__(self, ours, theirs):
        self.order = ""
        self._left = {"m": list(ours), "p": list(theirs)}

    def by(self, who):
        self.order += who
        left = self._left[who]
        return written(left.pop(0) if len(left) > 1 else left[0])

    def compared(self):
        return by_turns(self.by("m"), lambda: self.by("m"), lambda: self.by("p"), lambda: 5.0)


VERIFIER = SimpleNamespace(name="coupled", lossless=True, reads="noise")


def test_both_are_warm_and_take_turns():
    turns = Turns([4.0, 0.2, 0.1], [5.0, 0.4])
    found = turns.compared()
    assert turns.order == "mp" + "pmmppmmppm"[: 2 * MOST]
    assert found.ratios == [2.0, *[4.0] * (MOST - 1)]  # the first two texts, of 4 and 5 seconds, only warmed up
    text = found.sentences(VERIFIER, "torch.float32")
    assert (
        "By turns: 100.0 tokens/s, 20.0 times transformers' generate (5.0) and run by run 4.00 times plain decoding (25.0; "
        in text
    )
    assert "2.00 to 4.00 in 5 runs of each)" in text
    speeds = {"method_tokens_per_second": 100.0, "tokens_per_second": 25.0, "speed_up": 4.0, "speed_up_range": [2.0, 4.0]}
    speeds |= {"transformers_tokens_per_second": 5.0}
    assert found.to_json() == {"runs": 5, "identical": True, **speeds}


@pytest.mark.parametrize(
    ("seconds", "runs", "order"), [(0.45 * SECONDS, 1, "mppm"), (0.2 * SECONDS, 2, "mppmmp"), (SECONDS, 1, "mp")]
)
def test_long_texts_are_repeated_seldom(seconds, runs, order):
    turns = Turns([seconds], [seconds])
    assert len(turns.compared().ratios) == runs
    assert turns.order == order
