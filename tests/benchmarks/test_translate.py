"""Translation side by side: all rows are there, and every figure follows from what was produced."""

from __future__ import annotations

import copy
import dataclasses
import gc
import importlib.util
import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Any

import pytest
import sacrebleu
import torch
from click.testing import CliRunner
from transformers import AutoTokenizer, MarianMTModel

from benchmarks.__main__ import main
from benchmarks.measure import Meter
from benchmarks.translate import commands, ct2, ours, run
from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.ct2 import CT2
from benchmarks.translate.ct2_process import CT2Process
from benchmarks.translate.figures import speeds
from benchmarks.translate.peers import Generate
from benchmarks.translate.run import Bench, Log, batched
from benchmarks.translate.sentences import chosen_pairs
from benchmarks.translate.systems import Output, System, closed
from draftwood.core.errors import ConfigError, ModelError
from tests.tiny_translation import english, sentences

GERMAN = sentences(8, seed=5)
ENGLISH = [english(line) for line in GERMAN]
LONGEST = 10
LONG = 7


@dataclasses.dataclass(frozen=True)
class Folders:
    """A tiny target, a drafter for it, and sentence pairs."""

    target: Path
    draft: Path
    data: Path

    def options(self, out: Path, **more: Any) -> list[str]:
        given = {"data": self.data, "target": self.target, "draft": self.draft, "output": out}
        given |= {"repeats": 2, "long": LONG, "max-new-tokens": LONGEST, **more}
        pairs = [(name, value) for name, value in given.items() if value is not None]
        return ["translate", *(part for name, value in pairs for part in (f"--{name}", str(value)))]


@pytest.fixture(scope="module")
def folders(translation: Path, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    data = tmp_path_factory.mktemp("translate")
    for language, lines in (("de", GERMAN), ("en", ENGLISH)):
        (data / f"tiny.val.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Folders(translation / "target", translation / "block", data)


@pytest.fixture(scope="module")
def measured(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the document of a small complete run."""
    out = tmp_path_factory.mktemp("out")
    result = CliRunner().invoke(main, folders.options(out), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return out, json.loads((out / "translate.json").read_text())


BOTH = (
    *("generate", "generate, 5 beams", "CTranslate2", "CTranslate2, 5 beams", "ar", "ngram 5"),
    *("block 6, beta 1, tau 0", "block 6, beta 3, tau 1", "tree as it pays"),
)


def test_every_system_is_measured_at_every_batch_size(measured: tuple[Path, dict[str, Any]]) -> None:
    out, document = measured
    rows = {(r["system"], r["batch_size"]) for r in document["results"]}
    assert rows == {(name, size) for name in BOTH for size in (1, 8)}
    assert sorted(path.name for path in out.iterdir()) == ["translate.json", "translate.md"]
    report = (out / "translate.md").read_text()
    lines = [line for line in report.splitlines() if line.startswith("| block 6, beta 3, tau 1 ")]
    assert len(lines) == 8  # speed and stages, of all and of the long ones, at both sizes; it is not meant to be greedy
    assert document["partial"] is False
    assert document["left_out"] == []
    assert set(document["versions"]) >= {"ctranslate2", "sacrebleu", "transformers", "torch"}


def test_what_should_be_greedy_is(measured: tuple[Path, dict[str, Any]]) -> None:
    _, document = measured
    meant = [r for r in document["results"] if r["greedy"]]
    assert {r["system"] for r in meant} >= {"generate", "CTranslate2", "ar", "block 6, beta 1, tau 0"}
    for result in meant:
        assert result["differing"] == []
        figures = result["groups"]["all"]
        assert (figures["equal"], figures["sentences"]) == (8, 8)
        assert figures["bleu_to_greedy"] == pytest.approx(100)
    others = [r for r in document["results"] if not r["greedy"]]
    assert [r["differing"] for r in others] == [None] * 6
    assert any(r["groups"]["all"]["equal"] < 8 for r in others)  # beams find other texts in so random a model


def test_figures_follow_from_what_was_written(measured: tuple[Path, dict[str, Any]]) -> None:
    _, document = measured
    by_case = {(r["system"], r["batch_size"]): r for r in document["results"]}
    for (_, size), result in by_case.items():
        figures, texts = result["groups"]["all"], result["texts"]
        assert figures["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [ENGLISH]).score)
        assert figures["chrf"] == pytest.approx(sacrebleu.corpus_chrf(texts, [ENGLISH]).score)
        seconds = [sum(r["seconds"]) for r in result["repeats"]]
        base = [sum(r["seconds"]) for r in by_case["generate", size]["repeats"]]
        assert figures["ratio"]["max"] == pytest.approx(max(b / s for b, s in zip(base, seconds, strict=True)))
        assert figures["sentences_per_second"]["max"] == pytest.approx(8 / min(seconds))
        assert not result["ours"] or figures["share"]["target"] > 0
    greedy = by_case["generate", 1]["texts"]
    beams = by_case["generate, 5 beams", 8]
    assert beams["groups"]["all"]["bleu_to_greedy"] == pytest.approx(sacrebleu.corpus_bleu(beams["texts"], [greedy]).score)


def test_long_translations_are_a_group_of_their_own(measured: tuple[Path, dict[str, Any]]) -> None:
    _, document = measured
    counts = [s["greedy_tokens"] for s in document["sentences"]]
    long = [n for n, count in enumerate(counts) if count >= LONG]
    assert 0 < len(long) < 8
    assert document["groups"] == {"all": 8, "long": len(long)}
    for result in document["results"]:
        figures = result["groups"]["long"]
        assert figures["sentences"] == len(long)
        texts, wanted = [result["texts"][n] for n in long], [ENGLISH[n] for n in long]
        assert figures["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, [wanted]).score)
        if result["batch_size"] == 1:
            seconds = [sum(r["seconds"][8 - len(long) :]) for r in result["repeats"]]  # they come last
            assert figures["sentences_per_second"]["max"] == pytest.approx(len(long) / min(seconds))


def test_block_efficiency_is_counted_for_our_methods(measured: tuple[Path, dict[str, Any]]) -> None:
    _, document = measured
    counts = [s["greedy_tokens"] for s in document["sentences"]]
    found = {(r["system"], r["batch_size"]): r["groups"]["all"]["block_efficiency"] for r in document["results"]}
    for size in (1, 8):
        passes = sum(counts) / found["block 6, beta 1, tau 0", size]
        assert passes == pytest.approx(round(passes))
        assert sum(-(-count // 7) for count in counts) <= passes <= sum(counts)
        assert found["ar", size] == pytest.approx(1)
        assert found["generate", size] is None


def wrong_tokens(real: Callable[..., Output], sentence: list[int]) -> Callable[..., Output]:
    """A system that writes a wrong second token for one sentence."""

    def translate(sources: list[list[int]]) -> Output:
        out = real(sources)
        pairs = zip(sources, out.tokens, strict=True)
        rows = [[row[0], row[1] + 1, *row[2:]] if source == sentence else row for source, row in pairs]
        return dataclasses.replace(out, tokens=rows)

    return translate


def tampered(folders: Folders, monkeypatch: pytest.MonkeyPatch, name: str) -> int:
    """Let a system mistranslate one sentence; returns its number."""
    tokenizer = AutoTokenizer.from_pretrained(folders.target)
    model = MarianMTModel.from_pretrained(folders.target).eval()
    ids = [tokenizer(text)["input_ids"] for text in GERMAN]
    lengths = [len(row) for row in Generate(model, [1], LONGEST)(ids).tokens]
    number = lengths.index(max(lengths))
    real = commands._systems

    def systems(*given: Any) -> list[System]:
        return [
            dataclasses.replace(s, translate=wrong_tokens(s.translate, ids[number])) if s.name == name else s
            for s in real(*given)
        ]

    monkeypatch.setattr(commands, "_systems", systems)
    return number


def test_a_wrong_translation_is_reported_beside_the_speed(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ar"
    number = tampered(folders, monkeypatch, name)
    options = folders.options(tmp_path, methods="ar", peers="generate", **{"batch-size": 3})
    assert CliRunner().invoke(main, options, catch_exceptions=False).exit_code == 0
    document = json.loads((tmp_path / "translate.json").read_text())
    for result in document["results"]:
        figures = result["groups"]["all"]
        if result["system"] != name:
            assert (result["differing"], figures["equal"]) == ([], 8)
            continue
        (entry,) = result["differing"]
        assert (entry["sentence"], entry["at"]) == (number, 1)
        assert entry["gap"] > 0
        assert figures["equal"] == 7
        assert figures["bleu_to_greedy"] < 100
    lines = (tmp_path / "translate.md").read_text().splitlines()
    assert [line.split(" |")[0] for line in lines if "| 7 of 8 |" in line] == [f"| {name}"]


def test_exact_compares_every_sentence_at_both_batch_sizes(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = tampered(folders, monkeypatch, "ngram 5")
    result = CliRunner().invoke(main, [*folders.options(tmp_path), "--exact"], catch_exceptions=False)
    assert result.exit_code == 0
    document = json.loads((tmp_path / "translate-exact.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["translate-exact.json", "translate-exact.md"]
    found = {(r["system"], r["batch_size"]): r["differing"] for r in document["results"]}
    drafted = {"ngram 5", "block 6, beta 1, tau 0", "tree as it pays"}
    lossless = {"ar", "generate", "CTranslate2"} | drafted
    assert set(found) == {(name, size) for name in lossless for size in (1, 16)}
    for (name, _), differing in found.items():
        assert [entry["sentence"] for entry in differing] == ([number] if name == "ngram 5" else [])
    assert "| ngram 5 | 16 | 8 | 1 |" in (tmp_path / "translate-exact.md").read_text()


def test_an_ablation_has_the_papers_settings_by_default(folders: Folders) -> None:
    config = TranslateConfig(data=folders.data, ablation=True)
    assert (config.block_lengths(), len(config.tolerances()), config.times()) == ((5, 10, 15, 20, 25), 6, 1)
    assert (config.method_names(), config.peer_names()) == (("ar", "block"), ("generate",))
    changes: dict[str, Any] = {"k": (7,), "tolerance": ("2,2",), "repeats": 2, "peers": "none", "methods": "block"}
    given = TranslateConfig(data=folders.data, ablation=True, **changes)
    assert (given.block_lengths(), given.tolerances(), given.times()) == ((7,), ((2, 2.0),), 2)
    assert (given.method_names(), given.peer_names()) == (("block",), ())
    plain = TranslateConfig(data=folders.data)
    assert (plain.block_lengths(), plain.tolerances(), plain.times()) == ((), ((1, 0.0), (3, 1.0)), 3)


@pytest.mark.parametrize(("complete", "kept"), [(0, None), (2, 2)])
def test_an_interrupted_run_keeps_complete_repeats(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete: int, kept: int | None
) -> None:
    calls: list[str] = []
    stop = [10_000]
    real = Bench._timed

    def interrupted(system: System, sources: list[list[int]]) -> run.Sample:
        calls.append(system.name)
        if len(calls) > stop[0]:
            raise KeyboardInterrupt
        return real(system, sources)

    monkeypatch.setattr(Bench, "_timed", staticmethod(interrupted))
    options = {"methods": "ar", "peers": "generate", "batch-size": 4}
    CliRunner().invoke(main, folders.options(tmp_path / "whole", **options, repeats=1), catch_exceptions=False)
    (first, _) = json.loads((tmp_path / "whole" / "translate.json").read_text())["results"]
    once = 2 * len(first["repeats"][0]["seconds"])
    stop[0] = len(calls) + (complete - 1) * once + 1
    calls.clear()
    result = CliRunner().invoke(main, folders.options(tmp_path / "part", **options, repeats=3))
    assert result.exit_code == 130
    assert f"after {complete} complete repeats of 3" in result.output
    if kept is None:
        assert list((tmp_path / "part").iterdir()) == []
        return
    document = json.loads((tmp_path / "part" / "translate.json").read_text())
    assert document["partial"] is True
    assert {len(r["repeats"]) for r in document["results"]} == {kept}
    assert "interrupted" in (tmp_path / "part" / "translate.md").read_text().splitlines()[0]


def test_blocks_go_round_all_systems_in_shuffled_order() -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []

    def system(name: str) -> System:
        def translate(sources: list[list[int]]) -> Output:
            calls.append((name, tuple(source[0] for source in sources)))
            return Output(tokens=[[1] for _ in sources])

        return System(name=name, translate=translate, ours=False, greedy=True)

    batches = {4: batched([range(50), range(50, 70)], 4)}
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


def test_batches_hold_sentences_of_one_group() -> None:
    assert batched([[0, 3, 4], [1, 2]], 2) == [[0, 3], [4], [1, 2]]
    assert batched([[], [1]], 8) == [[1]]


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
    counts = {
        (exact, limit): TranslateConfig(data=folders.data, exact=exact, limit=limit).sentences(900)
        for exact in (False, True)
        for limit in (None, 300)
    }
    assert counts == {(False, None): 200, (True, None): 900, (False, 300): 300, (True, 300): 300}


def test_texts_are_closed_after_their_first_end() -> None:
    assert closed([5, 1, 0, 0], [1]) == [5, 1]
    assert closed([5, 6], [1]) == [5, 6]


def test_a_meter_does_not_count_a_copy_that_shares_hooks(folders: Folders) -> None:
    model = MarianMTModel.from_pretrained(folders.target).eval()
    copied = copy.copy(model)
    ids = torch.tensor([[3, 1]])
    with Meter().on(model) as meter:
        model(input_ids=ids, decoder_input_ids=ids)
        copied(input_ids=ids, decoder_input_ids=ids)
    assert meter.count == 1


def test_ctranslate2_computes_with_the_same_weights(folders: Folders) -> None:
    model = MarianMTModel.from_pretrained(folders.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders.target)
    ids = [tokenizer(text)["input_ids"] for text in GERMAN]
    greedy = Generate(model, [1], LONGEST)(ids).tokens
    same = CT2(model, tokenizer, [1], threads=1).translate(ids, 1, LONGEST, 1.0).tokens
    assert same == greedy
    assert {len(row) for row in greedy} != {LONGEST}  # some end before
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.bias.add_(3 * torch.randn(32))
    assert CT2(model, tokenizer, [1], threads=1).translate(ids, 1, LONGEST, 1.0).tokens != greedy


@pytest.mark.parametrize("known", [True, False])
def test_ctranslate2_has_a_process_of_its_own_and_its_end_is_said(folders: Folders, known: bool) -> None:
    model = MarianMTModel.from_pretrained(folders.target, dtype=torch.float32).eval()
    made = CT2(model, AutoTokenizer.from_pretrained(folders.target), [1], threads=1)
    before = perf_counter()
    out = made.translate([[5, 6, 1]], 1, LONGEST, 1.0)
    assert out.elapsed is not None
    assert 0 < out.elapsed < perf_counter() - before
    process = made._translator._process
    assert process.pid != os.getpid()
    with pytest.raises(ValueError, match="beam size"):  # its own errors come back, and it goes on
        made.translate([[5, 6, 1]], 0, LONGEST, 1.0)
    assert made.translate([[5, 6, 1]], 1, LONGEST, 1.0).tokens == out.tokens
    if known:  # its end of the pipe is closed before anything is sent
        process.kill()
        process.join()
    else:  # it takes the question and never answers
        os.kill(process.pid, signal.SIGSTOP)
        Timer(0.5, process.kill).start()
    with pytest.raises(ModelError, match=r"CTranslate2 has ended \(exit status -9\).*--peers"):
        made.translate([[5, 6, 1]], 1, LONGEST, 1.0)


def test_ctranslate2s_process_ends_with_its_owner(folders: Folders) -> None:
    model = MarianMTModel.from_pretrained(folders.target, dtype=torch.float32).eval()
    made = CT2(model, AutoTokenizer.from_pretrained(folders.target), [1], threads=1)
    process = made._translator._process
    del made
    gc.collect()
    process.join(timeout=120)
    assert process.exitcode == 0


def test_seconds_that_a_process_of_its_own_has_measured_are_taken() -> None:
    def system(elapsed: float | None) -> System:
        out = Output(tokens=[[1]], elapsed=elapsed)
        return System(name="any", translate=lambda sources: out, ours=False, greedy=True)

    assert Bench._timed(system(7.5), [[1]]).seconds == 7.5
    assert 0 < Bench._timed(system(None), [[1]]).seconds < 7


def test_ctranslate2_never_writes_a_forbidden_token(folders: Folders) -> None:
    model = MarianMTModel.from_pretrained(folders.target, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders.target)
    ids = [tokenizer(text)["input_ids"] for text in GERMAN]
    first = Generate(model, [1], LONGEST)(ids).tokens[3][0]
    assert first != 1
    model.generation_config.bad_words_ids = [[first], [1]]  # the end of sentence cannot be forbidden
    found = CT2(model, tokenizer, [1], threads=1).translate(ids, 1, LONGEST, 1.0).tokens
    assert found == Generate(model, [1], LONGEST)(ids).tokens
    assert first not in {token for row in found for token in row}


def test_ctranslate2_refuses_what_it_would_translate_otherwise(folders: Folders) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders.target)
    model = MarianMTModel.from_pretrained(folders.target)
    model.config.model_type = "bart"
    with pytest.raises(ConfigError, match=r"its type is 'bart', not 'marian'.*--peers"):
        CT2(model, tokenizer, [1], threads=1)
    model.config.model_type = "marian"
    with pytest.raises(ConfigError, match="it has 2 end tokens"):
        CT2(model, tokenizer, [1, 2], threads=1)
    model.generation_config.forced_bos_token_id = 5
    with pytest.raises(ConfigError, match="first token of its texts is forced"):
        CT2(model, tokenizer, [1], threads=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"beams": 1}, "beams is 1"),
        ({"batch_size": ()}, "batch_size is empty"),
        ({"k": (0,)}, "k is 0"),
        ({"tolerance": ("0,1",)}, "tolerance is '0,1'"),
        ({"tolerance": ("3,-1",)}, "tolerance is '3,-1'"),
        ({"methods": "none", "peers": "none"}, "both 'none'"),
        ({"ablation": True, "methods": "ar"}, "ablation is about method 'block'"),
        ({"ablation": True, "exact": True}, "leave one of them out"),
        ({"methods": "ar,block", "target": "some"}, "give --draft"),
    ],
)
def test_bad_options_are_named(folders: Folders, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TranslateConfig(**{"data": folders.data, **changes})


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": "nowhere"}, ConfigError, "nowhere does not exist"),
        ({"k": 5000}, ConfigError, "5000"),
        ({"max-new-tokens": 40}, ConfigError, "40 positions: give 1 to 39"),
        ({"draft": "/nowhere/draft"}, ModelError, "there is no folder '/nowhere/draft'"),
    ],
)
def test_what_cannot_be_measured_is_named(
    folders: Folders, tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    result = CliRunner().invoke(main, folders.options(tmp_path, **changes))
    assert result.exit_code == (1 if error is ModelError else 2)
    assert message in result.output


def test_a_draft_that_fills_no_blocks_is_named(folders: Folders, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, folders.options(tmp_path, draft=folders.target))
    assert result.exit_code == 2
    assert "the draft is a Seq2SeqRunner" in result.output


@pytest.mark.parametrize(("package", "left"), [("ctranslate2", "generate"), ("sacrebleu", None)])
def test_a_missing_package_is_named_with_the_way_out(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, left: str | None
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == package else real(name, *more))
    result = CliRunner().invoke(main, folders.options(tmp_path))
    assert result.exit_code == 2
    assert package in result.output
    assert "draftwood[bench]" in result.output
    if left is not None:
        fewer = folders.options(tmp_path, peers=left, methods="ar", repeats=1)
        assert CliRunner().invoke(main, fewer, catch_exceptions=False).exit_code == 0


def test_a_method_without_its_drafter_is_left_out_and_said(folders: Folders, tmp_path: Path) -> None:
    options = folders.options(tmp_path, draft=None, peers="generate", repeats=1)
    assert CliRunner().invoke(main, options, catch_exceptions=False).exit_code == 0
    document = json.loads((tmp_path / "translate.json").read_text())
    assert document["left_out"] == ["block", "tree"]
    assert "no drafter was given: block, tree" in (tmp_path / "translate.md").read_text()


def test_all_systems_use_as_many_threads(folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def started(folder: str, device: str, threads: int) -> CT2Process:
        given.append(threads)
        return CT2Process(folder, device, threads)

    monkeypatch.setattr(ct2, "CT2Process", started)
    during: list[int] = []
    real_call = ours.Ours.__call__
    monkeypatch.setattr(
        ours.Ours, "__call__", lambda self, sources: (during.append(torch.get_num_threads()), real_call(self, sources))[1]
    )
    before = torch.get_num_threads()
    options = folders.options(tmp_path, peers="ctranslate2", methods="ar", repeats=1, threads=2)
    assert CliRunner().invoke(main, options, catch_exceptions=False).exit_code == 0
    assert (given, set(during), torch.get_num_threads()) == ([2], {2}, before)


@pytest.mark.parametrize(
    ("option", "given", "methods"), [("k", (5,), "ar"), ("tolerance", ("3,1",), "ar,tree"), ("nodes", (8,), "block")]
)
def test_an_option_of_a_method_that_is_not_measured_is_refused(option: str, given: Any, methods: str) -> None:
    settings: dict[str, Any] = {"data": Path("data"), option: given}
    assert getattr(TranslateConfig(**settings), option) == given
    with pytest.raises(ConfigError, match=rf"^{option} is .* is not measured: choose it, or leave {option} out"):
        TranslateConfig(**settings, methods=methods)
