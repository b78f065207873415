"""Which settings are measured: exact node counts, equal lengths, equal numbers of tries."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from benchmarks import config as bench_config
from benchmarks.settings import BUDGETS, ENGINES, LENGTHS, METHODS, OURS, PLANS, Setting, node_count, plan
from draftwood import METHODS as SPECS
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import DTypeName
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling


def first_tree(setting: Setting, pair: Pair, temperature: float):
    sampling = Sampling(temperature=temperature)
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=sampling.greedy)
    request = Request(prompt=[1, 2, 3], seed=3, limits=Limits(max_new_tokens=60))
    stream = Decoder(pair.target, drafter, verifier).stream([request], sampling)
    tree = next(stream)[0].round.tree
    stream.close()
    return tree


def drafting(name: str) -> list[Setting]:
    """Settings that promise a number of nodes: a shared-noise tree that grows as far as it pays does not."""
    return [s for s in plan(name, None, has_draft=True) if not s.is_peer and s.method != "ngram" and s.nodes]


def depth(setting: Setting) -> int:
    """Levels of a setting's tree; 0 where its shape does not say."""
    if setting.shape is None or setting.is_peer or setting.method == "ngram":
        return 0
    if "x" in setting.shape:
        return int(setting.shape.split("x")[1])
    return len(setting.shape.split("-")) if "-" in setting.shape else int(setting.shape)


@pytest.mark.parametrize("name", PLANS)
def test_the_trees_that_are_drafted_have_exactly_the_promised_nodes(name: str, pair: Pair) -> None:
    for setting in drafting(name):
        tree = first_tree(setting, pair, 1.0)
        assert int(tree.valid.sum()) - 1 == setting.nodes, setting.name
        assert all(setting.nodes == value for kind, value in setting.comparisons if kind == "budget")
        lengths = [value for kind, value in setting.comparisons if kind == "length"]
        if setting.method == "shared-noise":  # a best-first tree may end above its depth budget
            assert all(int(tree.depths.max()) <= length for length in lengths)
        else:
            assert all(int(tree.depths.max()) == length for length in lengths)


@pytest.mark.parametrize("budget", BUDGETS)
def test_at_temperature_0_independent_chains_fall_together_and_the_others_do_not(budget: int, pair: Pair) -> None:
    for setting in drafting("paper"):
        if ("budget", budget) in setting.comparisons:
            nodes = setting.nodes if setting.method != "iid" else int((setting.shape or "").split("x")[1])
            assert int(first_tree(setting, pair, 0.0).valid.sum()) - 1 == nodes, setting.name


@pytest.mark.parametrize(("shape", "nodes"), [("4", 4), ("3x5", 15), ("2-2-1", 10), ("3-2-2", 21), ("2-2-2-2", 30)])
def test_nodes_of_shapes(shape: str, nodes: int) -> None:
    assert node_count(shape) == nodes


def test_every_method_competes_in_every_place_of_the_paper() -> None:
    places = {place: {s.method for s in plan("paper", None, has_draft=True) if place in s.comparisons}
              for place in [("length", n) for n in LENGTHS] + [("budget", n) for n in BUDGETS]}  # fmt: skip
    traversed = {"chain+traversal", "rsd-c+traversal", "rsd-s+traversal"}
    drawn = {"chain", "iid", "rsd-c", "rsd-s"}
    free = {"length": {"shared-noise"}, "budget": {"dynamic", "shared-noise"}}
    assert all(methods == traversed | drawn | free[kind] for (kind, _), methods in places.items())


@pytest.mark.parametrize("name", PLANS)
def test_names_are_unique_and_a_shape_in_two_protocols_is_measured_once(name: str) -> None:
    found = plan(name, None, has_draft=True)
    assert len({s.name for s in found}) == len(found)
    assert name == "acceptance" or {"ar", "generate"} <= {s.method for s in found}  # acceptance times nothing
    assert all(s.comparisons for s in found) or name != "acceptance"  # and reports budgets only
    if name == "paper":
        both = next(s for s in found if s.name == "rsd-c 2-2")
        assert both.comparisons == (("length", 2), ("budget", 6))


def test_no_side_has_more_tries_than_the_other() -> None:
    counts = Counter(s.method for s in plan("peers", None, has_draft=True))
    shapeless = ("ar", "generate", "adaptive", "adaptive-drawn", "lookup")
    assert {counts.pop(name) for name in shapeless} == {1}
    assert set(counts) == set(METHODS) - {*shapeless, *ENGINES}
    assert set(counts.values()) == {4}


def test_methods_can_be_chosen_and_a_missing_draft_is_named() -> None:
    assert [s.name for s in plan("peers", ["ar", "ngram"], has_draft=False)][:2] == ["ar", "ngram 2"]
    with pytest.raises(ConfigError, match=r"draft model is needed for .*chain.*--methods ar,ngram,lookup,generate"):
        plan("peers", None, has_draft=False)
    with pytest.raises(ConfigError, match=r"'paper' does not measure ngram: .*all-peers, which measures everything"):
        plan("paper", ["ar", "ngram"], has_draft=True)
    with pytest.raises(ConfigError, match=r"does not measure adaptive: leave it out$"):
        plan("acceptance", ["chain", "adaptive"], has_draft=True)
    assert {setting.method for setting in PLANS["all-peers"]()} == set(METHODS)


def test_budgets_can_be_chosen() -> None:
    found = plan("paper", ["ar", "chain", "rsd-s", "shared-noise"], has_draft=True, budgets=(14,))
    assert {s.name for s in found} == {"ar", "chain 14", "rsd-s 2x7", "rsd-s 7x2", "shared-noise 14 nodes"}
    with pytest.raises(ConfigError, match="measures none of"):
        plan("peers", ["chain"], has_draft=True, budgets=(14,))


def test_number_formats_are_those_of_loading() -> None:
    assert get_args(bench_config.DTypeName) == get_args(DTypeName)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"repeats": 0}, "repeats is 0"),
        ({"temperatures": "0,warm"}, "'warm'"),
        ({"temperatures": ","}, "comma-separated"),
        ({"temperatures": "-1"}, "'-1'"),
        ({"budgets": "14,15"}, "'15': choose from 6, 10, 14, 21, 30"),
        ({"methods": "chain,beam"}, "'beam': choose from ar, chain"),
        ({"data": "x", "prompts": "y"}, "both given"),
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench_config.BenchConfig(**wrong)


def test_what_is_given_replaces_the_presets_scale() -> None:
    scale = bench_config.BenchConfig(preset="paper", repeats=7, temperatures="1, 0.5,1").scale()
    assert (scale.repeats, scale.temperatures) == (7, (1.0, 0.5))
    assert scale.max_new_tokens == bench_config.SCALES["paper"].max_new_tokens


def test_every_method_of_the_registry_is_measured_and_every_verifier_that_is_named_is_exact_for_it():
    named = [name.partition("+") for name in OURS]
    assert {method for method, _, _ in named} == SPECS.keys() - {"block"}  # of translation
    assert all(verifier in SPECS[method].verifiers for method, plus, verifier in named if plus)
    assert {setting.method for preset in ("paper", "peers", "acceptance") for setting in PLANS[preset]()} >= set(OURS)
