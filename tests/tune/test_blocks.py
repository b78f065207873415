"""Tuning a pair whose draft scores whole blocks in one forward."""

from __future__ import annotations

import pytest

from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.runners.blocks.causal_block import CausalBlockRunner
from draftwood.tune.choose import LOOKUP, PLAIN, candidates
from draftwood.tune.run import tune
from draftwood.tune.sizes import Sizes
from tests.helpers import tiny_gpt

VOCAB, BLOCK = 23, 6
BLOCKS = [Method(method="block", shape=str(n)) for n in (2, 3, 6)]


class Words:
    eos_token_id = None


@pytest.fixture(scope="module")
def pair() -> Pair:
    draft = tiny_gpt(VOCAB + 1, 2, layers=1)
    draft.config.mask_token_id, draft.config.draft_block = VOCAB, BLOCK
    return Pair(tiny_gpt(VOCAB, 1), draft, Words())


def test_blocks_of_several_lengths_are_run(pair):
    assert isinstance(pair.draft, CausalBlockRunner)
    sizes = Sizes(minutes=0.001, temperature=(0.0, 1.0), prompts=2, max_new_tokens=12)
    found = tune(pair, [[1, 2, 3], [4, 5]], sizes, lambda *_: None)
    for temperature in (0.0, 1.0):
        assert set(found.measured[temperature]) == {PLAIN, LOOKUP, *BLOCKS, Method(method="shared-noise")}
        assert found.choices[temperature] in found.measured[temperature]


@pytest.mark.parametrize("greedy", [True, False])
def test_what_is_tried_depends_on_the_draft_and_can_be_built(pair, greedy):
    assert candidates(None, greedy=greedy) == [PLAIN, LOOKUP, Method(method="lookup")]
    for draft in (pair.target, pair.draft):
        found = candidates(draft, greedy=greedy)
        assert len(found) == len(set(found))
        assert {PLAIN, LOOKUP} < set(found)
        assert (set(BLOCKS) < set(found)) == (draft is pair.draft)
        for method in found:
            build(method, draft, greedy=greedy)


def test_at_temperature_0_all_verifiers_are_one(pair):
    greedy, drawn = (candidates(pair.target, greedy=greedy) for greedy in (True, False))
    assert {method.verifier for method in greedy} == {"auto"}
    both = [{m.shape for m in drawn if m.verifier == verifier} for verifier in ("recursive", "traversal")]
    assert both[0] | both[1] == {m.shape for m in greedy if m.method in ("chain", "rsd-c", "rsd-s")}
    assert both[0] & both[1] == {"4", "2-2-1", "4x3"}  # the larger half by traversal, the smaller by recursive rejection
