"""Which settings are measured: exact node counts, equal lengths, equal numbers of tries."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.settings import ENGINES, METHODS, OURS, PLANS, Setting, plan
from draftwood import METHODS as SPECS
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling


def first_tree(setting: Setting, pair: Pair):
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=False)
    request = Request(prompt=[1, 2, 3], seed=3, limits=Limits(max_new_tokens=60))
    stream = Decoder(pair.target, drafter, verifier).stream([request], Sampling())
    tree = next(stream)[0].round.tree
    stream.close()
    return tree


@pytest.mark.parametrize("name", PLANS)
def test_the_trees_that_are_drafted_have_exactly_the_promised_nodes(name: str, pair: Pair) -> None:
    for setting in plan(name, None, has_draft=True):
        if setting.is_peer or setting.method == "ngram" or not setting.nodes:  # a tree that grows as far as it pays
            continue
        tree = first_tree(setting, pair)
        assert int(tree.valid.sum()) - 1 == setting.nodes, setting.name
        assert all(setting.nodes == value for kind, value in setting.comparisons if kind == "budget")
        lengths = [value for kind, value in setting.comparisons if kind == "length"]
        if setting.method == "shared-noise":  # a best-first tree may end above its depth budget
            assert all(int(tree.depths.max()) <= length for length in lengths)
        else:
            assert all(int(tree.depths.max()) == length for length in lengths)


@pytest.mark.parametrize("name", PLANS)
def test_names_are_unique_and_a_shape_in_two_protocols_is_measured_once(name: str) -> None:
    found = plan(name, None, has_draft=True)
    assert len({s.name for s in found}) == len(found)
    if name == "paper":
        both = next(s for s in found if s.name == "rsd-c 2-2")
        assert both.comparisons == (("length", 2), ("budget", 6))


@pytest.mark.parametrize("preset", ["peers", "all-peers"])
def test_no_side_has_more_tries_than_the_other(preset: str) -> None:
    counts = Counter(s.method for s in plan(preset, None, has_draft=True))
    assert set(counts) == set(METHODS) - set([] if preset == "all-peers" else ENGINES)
    shapeless = ("ar", "generate", "adaptive", "lookup", "genai", "llama.cpp", "llama.cpp-file")
    assert {counts.pop(name) for name in shapeless if name in counts} == {1}
    assert set(counts.values()) == {4}


@pytest.mark.parametrize(("preset", "methods", "more", "message"), [
    ("peers", None, {"has_draft": False}, r"draft model is needed for .*chain.*--methods ar,ngram,lookup,generate"),
    ("all-peers", ["genai-draft"], {"has_draft": False}, "genai-draft"),
    ("paper", ["ar", "ngram"], {}, r"'paper' does not measure ngram: .*all-peers, which measures everything"),
    ("peers", ["chain"], {"budgets": (14,)}, "measures none of"),
])  # fmt: skip
def test_methods_that_cannot_be_measured_are_named(preset: str, methods: list | None, more: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan(preset, methods, **{"has_draft": True, **more})


def test_methods_and_budgets_can_be_chosen() -> None:
    assert [s.name for s in plan("peers", ["ar", "ngram"], has_draft=False)][:2] == ["ar", "ngram 2"]
    found = plan("paper", ["ar", "chain", "rsd-s", "shared-noise"], has_draft=True, budgets=(14,))
    assert {s.name for s in found} == {"ar", "chain 14", "rsd-s 2x7", "rsd-s 7x2", "shared-noise 14 nodes"}


def test_every_method_of_the_registry_is_measured_and_every_verifier_that_is_named_is_exact_for_it():
    named = [name.partition("+") for name in OURS]
    assert {method for method, _, _ in named} == SPECS.keys() - {"block"}  # of translation
    assert all(verifier in SPECS[method].verifiers for method, plus, verifier in named if plus)
    assert {setting.method for preset in ("paper", "peers") for setting in PLANS[preset]()} >= set(OURS)
