"""Which settings are measured: exact node counts, equal lengths, equal numbers of tries."""

from collections import Counter

import pytest

from benchmarks.settings import METHODS, OURS, plan
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


def test_the_trees_that_are_drafted_have_exactly_the_promised_nodes(pair):
    for setting in plan(OURS, has_draft=True):
        if setting.method == "ngram" or not setting.nodes:  # a tree that grows as far as it pays
            continue
        tree = first_tree(setting, pair)
        assert int(tree.valid.sum()) - 1 == setting.nodes, setting.name


def test_names_are_unique_and_no_side_has_more_tries_than_the_other():
    found = plan(METHODS, has_draft=True)
    assert len({s.name for s in found}) == len(found)
    counts = Counter(s.method for s in found)
    shapeless = ("ar", "generate", "adaptive", "lookup", "genai", "llama.cpp", "llama.cpp-file")
    assert {counts.pop(name) for name in shapeless} == {1}
    assert set(counts.values()) == {4}
    assert [s.name for s in plan(["ngram", "ar"], has_draft=False)][:2] == ["ar", "ngram 2"]


def test_methods_that_need_a_draft_are_named():
    with pytest.raises(ConfigError, match=r"draft model is needed for .*chain.*--methods ar,ngram,lookup,generate"):
        plan(OURS, has_draft=False)


def test_every_method_of_the_registry_is_measured_and_every_verifier_that_is_named_is_exact_for_it():
    named = [name.partition("+") for name in OURS]
    assert {method for method, _, _ in named} == SPECS.keys() - {"block"}  # of translation
    assert all(verifier in SPECS[method].verifiers for method, plus, verifier in named if plus)
