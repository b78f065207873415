"""Translation side by side: all rows are there, and every figure follows from what was produced."""

from __future__ import annotations

import itertools
import json
import os
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import sacrebleu
import torch
from click.testing import Result
from transformers import AutoTokenizer, MarianMTModel

from benchmarks.translate import commands, run
from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.ct2 import CT2
from benchmarks.translate.figures import speeds
from benchmarks.translate.peers import Generate
from benchmarks.translate.run import Bench, Log, batched
from benchmarks.translate.sentences import chosen_pairs
from benchmarks.translate.systems import Output, System
from draftwood.core.errors import ConfigError, ModelError
from tests.benchmarks.tiny import call
from tests.helpers import hide_package, interrupted
from tests.tiny_translation import english, sentences

GERMAN = sentences(8, seed=5)
ENGLISH = [english(line) for line in GERMAN]
LONGEST = 10


@dataclass(frozen=True)
class Folders:
    """A tiny target, a drafter for it, and sentence pairs."""

    target: Path
    draft: Path
    data: Path

    def run(self, out: Path, *flags: str, code: int = 0, **more: Any) -> Result:
        """The command, which ends with this code."""
        given = {"data": self.data, "target": self.target, "draft": self.draft, "output": out}
        given |= {"repeats": 2, "max-new-tokens": LONGEST, **more}
        pairs = [(f"--{name.replace('_', '-')}", value) for name, value in given.items() if value is not None]
        return call("translate", *itertools.chain.from_iterable(pairs), *flags, code=code)


@pytest.fixture(scope="module")
def folders(translation: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    data = tmp_path_factory.mktemp("translate")
    for language, lines in (("de", GERMAN), ("en", ENGLISH)):
        (data / f"tiny.val.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Folders(translation / "target", translation / "block", data)


@pytest.fixture(scope="module")
def measured(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The report and the document of a small complete run."""
    out = tmp_path_factory.mktemp("out")
    folders.run(out)
    return (out / "translate.md").read_text(), json.loads((out / "translate.json").read_text())


GREEDY = ("generate", "CTranslate2", "ar", "block 6, beta 1, tau 0", "tree as it pays")


def test_every_system_is_measured_at_every_batch_size(measured: tuple[str, dict[str, Any]]) -> None:
    report, document = measured
    rows = {(r["system"], r["batch_size"]): r for r in document["results"]}
    assert rows.keys() == {(name, size) for name in (*GREEDY, "block 6, beta 3, tau 1") for size in (1, 8)}
    lines = [line for line in report.splitlines() if line.startswith("| block 6, beta 3, tau 1 ")]
    assert len(lines) == 4  # speed and stages at both sizes; it is not meant to be greedy
    assert document["partial"] is False
    assert document["left_out"] == []
    assert set(document["versions"]) >= {"ctranslate2", "sacrebleu", "transformers", "torch"}
    for (name, _), result in rows.items():
        if name in GREEDY:
            assert (result["differing"], result["equal"]) == ([], 8)
            assert result["bleu_to_greedy"] == pytest.approx(100)
        else:
            assert result["differing"] is None


def test_figures_follow_from_what_was_written(measured: tuple[str, dict[str, Any]]) -> None:
    _, document = measured
    by_case = {(r["system"], r["batch_size"]): r for r in document["results"]}
    greedy, counts = by_case["generate", 1]["texts"], [s["greedy_tokens"] for s in document["sentences"]]
    for (name, size), result in by_case.items():
        assert result["bleu"] == pytest.approx(sacrebleu.corpus_bleu(result["texts"], [ENGLISH]).score)
        assert result["bleu_to_greedy"] == pytest.approx(sacrebleu.corpus_bleu(result["texts"], [greedy]).score)
        seconds, base = ([sum(r["seconds"]) for r in one["repeats"]] for one in (result, by_case["generate", size]))
        assert result["ratio"]["max"] == pytest.approx(max(b / s for b, s in zip(base, seconds, strict=True)))
        assert result["sentences_per_second"]["max"] == pytest.approx(8 / min(seconds))
        assert not result["ours"] or result["share"]["target"] > 0
        if name == "block 6, beta 1, tau 0":
            passes = sum(counts) / result["block_efficiency"]
            assert passes == pytest.approx(round(passes))
            assert sum(-(-count // 7) for count in counts) <= passes <= sum(counts)
    assert by_case["ar", 1]["block_efficiency"] == by_case["ar", 8]["block_efficiency"] == pytest.approx(1)
    assert by_case["generate", 1]["block_efficiency"] is None


def spoil(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a system write a wrong second token in every sentence."""
    real = commands._systems

    def spoilt(system: System) -> System:
        def translate(sources: list[list[int]]) -> Output:
            out = system.translate(sources)
            return replace(out, tokens=[[*row[:1], *(abs(token - 1) for token in row[1:2]), *row[2:]] for row in out.tokens])

        return replace(system, translate=translate) if system.name == name else system

    monkeypatch.setattr(commands, "_systems", lambda *given: [spoilt(system) for system in real(*given)])


def test_exact_compares_every_sentence_at_both_batch_sizes(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, "ar")
    folders.run(tmp_path, "--exact")
    document = json.loads((tmp_path / "translate-exact.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["translate-exact.json", "translate-exact.md"]
    assert all(entry["at"] == 1 and entry["gap"] > 0 for r in document["results"] for entry in r["differing"])
    found = {(r["system"], r["batch_size"]): len(r["differing"]) for r in document["results"]}
    assert found.keys() == {(name, size) for name in GREEDY for size in (1, 16)}
    assert {name for (name, _), differing in found.items() if differing} == {"ar"}
    assert f"| ar | 16 | 8 | {found['ar', 16]} |" in (tmp_path / "translate-exact.md").read_text()


def test_an_interrupted_run_keeps_complete_repeats(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two systems and one batch: two calls that warm up, and two in each repeat.
    monkeypatch.setattr(Bench, "_timed", staticmethod(interrupted(Bench._timed, 2 + 2 * 2 + 1)))
    options = {"methods": "ar", "peers": "generate", "batch_size": 8, "repeats": 3}
    assert "after 2 complete repeats of 3" in folders.run(tmp_path, code=130, **options).output
    document = json.loads((tmp_path / "translate.json").read_text())
    assert document["partial"] is True
    assert {len(r["repeats"]) for r in document["results"]} == {2}
    assert "interrupted" in (tmp_path / "translate.md").read_text().splitlines()[0]


def test_blocks_go_round_all_systems_in_shuffled_order() -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []

    def system(name: str) -> System:
        def translate(sources: list[list[int]]) -> Output:
            calls.append((name, tuple(source[0] for source in sources)))
            return Output(tokens=[[1] for _ in sources], elapsed=7.5 if name == "a" else None)

        return System(name=name, translate=translate, ours=False, greedy=True)

    batches = {4: batched(range(70), 4)}
    assert batches[4][-2:] == [[64, 65, 66, 67], [68, 69]]
    log = Log(cases=[(system(name), 4) for name in "abcd"])
    bench = Bench(cases=log.cases, sources=[[n] for n in range(70)], batches=batches, repeats=2, seed=0)
    steps: list[int] = []
    bench.run(log, lambda: steps.append(1), lambda: None)
    assert (len(steps), log.repeats) == (bench.steps, 2)
    after_warm_up = calls[4 * (run.BLOCK // 4) :]
    for name in "abcd":
        assert [n for who, batch in after_warm_up if who == name for n in batch] == [*range(70), *range(70)]
    turns = [who for who, _ in itertools.groupby(after_warm_up, key=lambda call: call[0])]
    assert len(turns) <= len(steps) - 4  # whole blocks by one system
    assert len({tuple(turns[at : at + 4]) for at in range(0, len(turns), 4)}) > 1
    taken = [{sample.seconds for sample in repeats[0]} for repeats in log.samples]
    assert taken[0] == {7.5}  # what a process of its own has measured
    assert max(taken[1]) < 7


def test_pace_of_known_seconds() -> None:
    stages = {"draft_seconds": [0.1, 0.1], "target_seconds": [0.2, 0.0], "verify_seconds": [0.0, 0.0]}
    fast = {"new_tokens": [6, 4], "passes": [2, 2], "seconds": [0.5, 0.5], **stages}
    slow = {"new_tokens": [6, 4], "passes": [2, 2], "seconds": [2.0, 2.0], **stages}
    found = speeds([fast, slow], [slow, slow], 4)
    assert found["ratio"] == {"median": 2.5, "min": 1.0, "max": 4.0}
    assert found["sentences_per_second"] == {"median": 2.5, "min": 1.0, "max": 4.0}
    assert found["tokens_per_second"]["max"] == 10
    assert found["block_efficiency"] == 2.5
    assert found["share"] == pytest.approx({"draft": 0.08, "target": 0.08, "verify": 0.0, "other": 0.84})
    silent = {name: values if name in ("new_tokens", "seconds") else [0, 0] for name, values in fast.items()}
    assert (speeds([silent], None, 4)["share"], speeds([silent], None, 4)["ratio"]) == (None, None)


def test_chosen_sentences_are_spread_over_the_files(folders: Folders) -> None:
    chosen = chosen_pairs(TranslateConfig(data=folders.data, limit=4))
    assert chosen == [(GERMAN[n], ENGLISH[n]) for n in (0, 2, 4, 6)]
    assert len(chosen_pairs(TranslateConfig(data=folders.data, limit=100))) == 8
    assert [TranslateConfig(data=folders.data, exact=exact).sentences(900) for exact in (False, True)] == [200, 900]


@pytest.fixture
def marian(folders: Folders) -> tuple[Any, Any]:
    """The target and its tokenizer."""
    model = MarianMTModel.from_pretrained(folders.target, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folders.target)


def test_ctranslate2_computes_with_the_same_weights(marian: tuple[Any, Any]) -> None:
    model, tokenizer = marian
    ids = [tokenizer(text)["input_ids"] for text in GERMAN]
    greedy = Generate(model, [1], LONGEST)(ids).tokens
    assert CT2(model, tokenizer, [1], threads=1).translate(ids, LONGEST).tokens == greedy
    assert {len(row) for row in greedy} != {LONGEST}  # some end before
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.add_(3 * torch.randn(32))
    assert CT2(model, tokenizer, [1], threads=1).translate(ids, LONGEST).tokens != greedy


def test_ctranslate2_has_a_process_of_its_own_and_its_end_is_said(marian: tuple[Any, Any]) -> None:
    made = CT2(*marian, [1], threads=1)
    before = perf_counter()
    out = made.translate([[5, 6, 1]], LONGEST)
    assert out.elapsed is not None
    assert 0 < out.elapsed < perf_counter() - before
    process = made._translator._pool.submit(os.getpid).result()
    assert process != os.getpid()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(ModelError, match=r"CTranslate2 has ended.*--peers generate$"):
        made.translate([[5, 6, 1]], LONGEST)


def test_ctranslate2_never_writes_a_forbidden_token(marian: tuple[Any, Any]) -> None:
    model, tokenizer = marian
    ids = [tokenizer(text)["input_ids"] for text in GERMAN]
    first = Generate(model, [1], LONGEST)(ids).tokens[3][0]
    assert first != 1
    model.generation_config.bad_words_ids = [[first], [1]]  # the end of sentence cannot be forbidden
    found = CT2(model, tokenizer, [1], threads=1).translate(ids, LONGEST).tokens
    assert found == Generate(model, [1], LONGEST)(ids).tokens
    assert first not in {token for row in found for token in row}


def test_ctranslate2_refuses_what_it_would_translate_otherwise(marian: tuple[Any, Any]) -> None:
    model, tokenizer = marian
    model.config.model_type = "bart"
    with pytest.raises(ConfigError, match=r"its type is 'bart', not 'marian'.*--peers generate$"):
        CT2(model, tokenizer, [1], threads=1)
    model.config.model_type = "marian"
    with pytest.raises(ConfigError, match="it has 2 end tokens"):
        CT2(model, tokenizer, [1, 2], threads=1)
    model.generation_config.forced_bos_token_id = 5
    with pytest.raises(ConfigError, match="first token of its texts is forced"):
        CT2(model, tokenizer, [1], threads=1)


@pytest.mark.parametrize(("changes", "code", "message"), [
    ({"data": "nowhere"}, 2, "nowhere does not exist"),
    ({"k": 5000}, 2, "5000"),
    ({"max_new_tokens": 40}, 2, "40 positions: give 1 to 39"),
    ({"draft": "/nowhere/draft"}, 1, "there is no folder '/nowhere/draft'"),
    ({"draft": "target"}, 2, "the draft is a Seq2SeqRunner"),
    ({"draft": None, "methods": "ar,block"}, 2, "method 'block' needs a drafter: give --draft"),
])  # fmt: skip
def test_what_cannot_be_measured_is_named(
    folders: Folders, tmp_path: Path, changes: dict[str, Any], code: int, message: str
) -> None:
    if changes.get("draft") == "target":
        changes = {"draft": folders.target}
    assert message in folders.run(tmp_path, code=code, **changes).output


@pytest.mark.parametrize("package", ["ctranslate2", "sacrebleu"])
def test_a_missing_package_is_named_with_the_way_out(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    hide_package(monkeypatch, package)
    output = folders.run(tmp_path, code=2).output
    assert package in output
    assert ".[bench]" in output
    if package == "ctranslate2":
        folders.run(tmp_path, peers="generate", methods="ar", repeats=1)


def test_a_method_without_its_drafter_is_left_out_and_said(folders: Folders, tmp_path: Path) -> None:
    folders.run(tmp_path, draft=None, peers="generate", repeats=1)
    document = json.loads((tmp_path / "translate.json").read_text())
    assert document["left_out"] == ["block", "tree"]
    assert "no drafter was given: block, tree" in (tmp_path / "translate.md").read_text()
