"""``draftwood bench``: plain decoding, auto, the best fixed tree and transformers side by side."""

import json
from types import SimpleNamespace

import pytest

from draftwood.api import Pair, load
from draftwood.core.settings import LoadOptions, Method
from draftwood.engine.knowledge import Known
from draftwood.tune import compare
from draftwood.tune.compare import LOOKUPS, TREES, System, Written, fastest, figures, fixed, ids_decoder, ours, repeats

SMALL = ["--backend", "torch", "--repeats", "2", "--prompts", "2", "--max-new-tokens", "6"]
NAMES = ["plain decoding", "auto", "best fixed tree", "transformers"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": "the fox ran"}\n{"prompt": "a dog and a hen"}\n{"prompt": "not taken"}\n')
    return path


def test_every_system_is_measured_at_every_temperature(run, pair, texts, tmp_path):
    out = tmp_path / "bench.json"
    shown = run("bench", *pair, *SMALL, "--input", texts, "--transformers", "--json", out)
    assert shown.exit_code == 0, shown.output
    document = json.loads(out.read_text())
    found = document["results"]
    assert [(r["temperature"], r["system"]) for r in found] == [(t, name) for t in (0, 1) for name in NAMES]
    for result in found:
        assert [len(texts) for texts in result["repeats"]] == [2, 2]
        speeds = [sum(t["tokens"] for t in run) / sum(t["seconds"] for t in run) for run in result["repeats"]]
        shown_speed = result["tokens_per_second"]
        assert (shown_speed["min"], shown_speed["max"]) == pytest.approx((min(speeds), max(speeds)))
        assert f"{shown_speed['median']:.1f} ({shown_speed['min']:.1f} to {shown_speed['max']:.1f})" in shown.stdout
    lengths = [[text["tokens"] for text in r["repeats"][0]] for r in found if r["temperature"] == 0]
    assert lengths == [lengths[0]] * 4
    assert {r["tokens_per_pass"] for r in found if r["system"] in ("plain decoding", "transformers")} == {1}
    assert found[1]["method"]["method"] == "adaptive"
    assert found[2]["method"]["method"] in {method.method for method in TREES}
    assert document["machine"]["device"] == "cpu"
    assert len(shown.stdout.splitlines()) == 1 + 8


def test_without_a_draft_the_rival_is_prompt_lookup(run, pair, texts):
    shown = run("bench", *pair[:2], *SMALL, "--input", texts, "--temperature", "1")
    assert shown.exit_code == 0, shown.output
    assert "best lookup" in shown.stdout
    assert "transformers" not in shown.stdout


def made_up(name, seconds, log):
    """Writes two tokens per pass at a known speed."""

    def write(prompt, seed):
        log.append((name, seed))
        clock.now += seconds
        return 10, 5

    return System(name=name, method=None, write=write)


clock = SimpleNamespace(now=0.0)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(compare, "sleep", lambda seconds: None)


def test_prompts_go_round_all_systems_with_equal_seeds_and_new_ones_in_each_repeat(monkeypatch):
    monkeypatch.setattr(compare, "perf_counter", lambda: clock.now)
    log = []
    systems = [made_up("slow", 2.0, log), made_up("quick", 1.0, log)]
    found = repeats(systems, [[1], [2], [3]], 4, 7)
    turns = [log[at : at + 2] for at in range(0, len(log), 2)]
    assert [turn[0][1] for turn in turns] == [turn[1][1] for turn in turns] == [7 + n for n in range(12)]
    assert len({tuple(name for name, _ in turn) for turn in turns}) == 2  # in either order
    assert found["slow"] == [[Written(10, 5, 2.0)] * 3] * 4
    shown = figures(found["quick"], found["slow"])
    assert shown["tokens_per_second"] == {"median": 10.0, "min": 10.0, "max": 10.0}
    assert shown["over_plain"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert shown["tokens_per_pass"] == 2
    assert fastest(systems, [[1]], 0).name == "quick"


def test_the_profile_of_a_pair_has_a_say_in_auto(models, monkeypatch):
    pair = load(models / "target", models / "draft", options=LoadOptions(backend="torch", profile="none"))
    assert ours(pair, "auto", Method(), 1.0, 4).method == pair.method(temperature=1.0)
    chain = Method(method="chain", shape="2")
    monkeypatch.setattr(pair, "known", Known(choices={1.0: chain}))
    assert ours(pair, "auto", Method(), 1.0, 4).method == pair.method(chain, temperature=1.0)


def test_the_measured_methods_know_what_the_pair_has_learnt(models):
    pair = load(models / "target", models / "draft", options=LoadOptions(backend="torch"))
    method = pair.method(Method(method="adaptive"), temperature=0.0)
    assert pair.learnt[f"{method.method}, temperature 0"].by_rows[1].timed
    measured, own = ids_decoder(pair, method, 0.0).pipeline, pair.decoder(method, temperature=0.0).pipeline
    assert (measured.drafter, measured.verifier) == (own.drafter, own.verifier)
    assert measured.tokenizer is None


def test_fixed_trees_are_those_that_the_draft_can_grow(models):
    pair = load(models / "target", models / "draft", options=LoadOptions(backend="torch", profile="none"))
    assert fixed(pair) == TREES
    assert fixed(Pair(pair.target.model, None, pair.tokenizer)) == LOOKUPS
