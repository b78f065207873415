"""Tuning a pair whose draft scores whole blocks in one forward."""

from __future__ import annotations

import pytest

from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.engine.methods import build
from draftwood.runners.blocks.causal_block import CausalBlockRunner
from draftwood.tune.choose import LOOKUP, PLAIN, WHOLE, unexpected
from draftwood.tune.run import Sizes, Tuning
from tests.helpers import tiny_gpt

VOCAB, BLOCK = 23, 6


class Words:
    eos_token_id = None


@pytest.fixture(scope="module")
def pair() -> Pair:
    draft = tiny_gpt(VOCAB + 1, 2, layers=1)
    draft.config.mask_token_id, draft.config.draft_block = VOCAB, BLOCK
    return Pair(tiny_gpt(VOCAB, 1), draft, Words())


def test_blocks_of_several_lengths_are_run_and_trees_are_not_expected_level_by_level(pair):
    assert isinstance(pair.draft, CausalBlockRunner)
    sizes = Sizes(minutes=0.001, temperature=(0.0, 1.0), prompts=2, max_new_tokens=12)
    found = Tuning(pair, [[1, 2, 3], [4, 5]], sizes, lambda *_: None).findings()
    blocks = [Method(method="block", shape=str(n)) for n in (2, 3, 6)]
    for temperature in (0.0, 1.0):
        assert set(found.measured[temperature]) == {PLAIN, LOOKUP, *blocks, Method(method="shared-noise")}
        assert set(found.expected[temperature]) == {PLAIN}
        assert found.choices[temperature] in found.measured[temperature]
        for method in found.measured[temperature]:
            build(method, pair.draft, greedy=temperature == 0)


def test_what_is_run_besides_depends_on_the_draft(pair):
    assert unexpected(None) == []
    assert unexpected(pair.target) == WHOLE
    assert "block" not in {method.method for method in WHOLE}
