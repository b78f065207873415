"""Which settings are measured: exact node counts, equal lengths, equal numbers of tries."""

from collections import Counter

import pytest

from benchmarks.settings import ENGINES, METHODS, OURS, PLANS, plan
from draftwood import METHODS as SPECS
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling


def first_tree(setting, pair):
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=False)
    request = Request(prompt=[1, 2, 3], seed=3, limits=Limits(max_new_tokens=60))
    stream = Decoder(pair.target, drafter, verifier).stream([request], Sampling())
    tree = next(stream)[0].round.tree
    stream.close()
    return tree


@pytest.mark.parametrize("name", PLANS)
def test_the_trees_that_are_drafted_have_exactly_the_promised_nodes(name, pair):
    for setting in plan(name, None, has_draft=True):
        if setting.is_peer or setting.method == "ngram" or not setting.nodes:  # a tree that grows as far as it pays
            continue
        tree = first_tree(setting, pair)
        assert int(tree.valid.sum()) - 1 == setting.nodes, setting.name


@pytest.mark.parametrize("name", PLANS)
def test_names_are_unique(name):
    found = plan(name, None, has_draft=True)
    assert len({s.name for s in found}) == len(found)


@pytest.mark.parametrize("preset", ["peers", "all-peers"])
def test_no_side_has_more_tries_than_the_other(preset):
    counts = Counter(s.method for s in plan(preset, None, has_draft=True))
    assert set(counts) == set(METHODS) - set([] if preset == "all-peers" else ENGINES)
    shapeless = ("ar", "generate", "adaptive", "lookup", "genai", "llama.cpp", "llama.cpp-file")
    assert {counts.pop(name) for name in shapeless if name in counts} == {1}
    assert set(counts.values()) == {4}


@pytest.mark.parametrize(("preset", "methods", "more", "message"), [
    ("peers", None, {"has_draft": False}, r"draft model is needed for .*chain.*--methods ar,ngram,lookup,generate"),
    ("all-peers", ["genai-draft"], {"has_draft": False}, "genai-draft"),
    ("peers", ["ar", "genai"], {}, r"'peers' does not measure genai: .*all-peers, which measures everything"),
])  # fmt: skip
def test_methods_that_cannot_be_measured_are_named(preset, methods, more, message):
    with pytest.raises(ConfigError, match=message):
        plan(preset, methods, **{"has_draft": True, **more})


def test_methods_can_be_chosen():
    assert [s.name for s in plan("peers", ["ar", "ngram"], has_draft=False)][:2] == ["ar", "ngram 2"]


def test_every_method_of_the_registry_is_measured_and_every_verifier_that_is_named_is_exact_for_it():
    named = [name.partition("+") for name in OURS]
    assert {method for method, _, _ in named} == SPECS.keys() - {"block"}  # of translation
    assert all(verifier in SPECS[method].verifiers for method, plus, verifier in named if plus)
    assert {setting.method for setting in PLANS["peers"]()} >= set(OURS)
