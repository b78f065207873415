"""Sampled trees grown best-first and cut to a budget: exact, since a node's priority does not depend on its own token."""

import math

import pytest

from draftwood.draft.adaptive.candidates import Children
from draftwood.draft.adaptive.expand import SampledExpander
from draftwood.engine.decode import Decoder
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import best_first, decoder, ragged, tiny_runner
from tests.ladder.pairs import VOCAB, pair
from tests.ladder.test_rung3_tape import WRONG, distance

BOTH = pytest.mark.parametrize("verifier", [Recursive, Traversal])


class Vain(SampledExpander):
    """Children have their own probability as priority, so a node's own token decides whether the node stays."""

    def expand(self, pending, rng, depth, first, sizes):
        logp = pending.settled.dense()
        drawn = rng.ordered(logp, 2, first).tolist()
        return [
            [
                Children(own := [t for t in tokens if t >= 0], distribution[own].clamp(min=math.log(1e-30)).tolist())
                for tokens, distribution in zip(row, distributions, strict=True)
            ]
            for row, distributions in zip(drawn, logp, strict=True)
        ]


@BOTH
def test_control_values_that_know_their_own_token_are_seen(verifier):
    target, draft = pair("model", 3)
    assert distance(Decoder(target, best_first(draft, Vain(2), nodes=1, width=1, depth=1), verifier()), 2) > WRONG


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_the_target_as_its_own_drafter_accepts_every_first_choice(verifier):
    made = decoder(tiny_runner(VOCAB, 1), tiny_runner(VOCAB, 1), "dynamic", "3x5", verifier, nodes=9)
    for result in made.generate(ragged(18), Sampling()):
        histogram = result.stats.histogram
        assert histogram[0] <= 1  # only the last round may have room for nothing
