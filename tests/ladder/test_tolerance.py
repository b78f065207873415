"""Spec-Verification: what it keeps, by its plain twin, by hand and in whole texts."""

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.core.tree import TreeBuilder
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Greedy
from draftwood.verify.tolerance import Tolerance
from tests.differences import difference
from tests.helpers import RAGGED, ragged, tiny_runner
from tests.ladder.pairs import VOCAB, random_blocks
from tests.ladder.test_plain_twins import drafted, verdicts
from tests.ladder.test_rung3_tape import EXACT
from tests.reference import plain_tree, tolerance
from tests.tables import BlockTableRunner

CASES = [(1, 0.0), (3, 1.0), (5, 5.0), (2, 0.0), (1, 3.0), (2, 0.5)]
TREES = ["chain", "rsd-c", "rsd-s", "shared", "best-first"]


def engine(draft=None, *, greedy=True, **method):
    made = build(Method(method="block", **method), draft or random_blocks(VOCAB, 6), greedy=greedy)
    return Decoder(tiny_runner(VOCAB, 1), *made)


# Of equal siblings, which only independent chains have, greedy verification takes the one with the longer continuation.
@pytest.mark.parametrize(
    ("name", "beta", "tau"), [*((name, *case) for name in TREES for case in CASES), ("iid", 3, 1.0), ("iid", 5, 5.0)]
)
def test_tolerance_equals_its_twin(name, beta, tau):
    lengths = set()
    for seed in range(4):
        tree, logp, rng = drafted(name, seed=seed)
        ours = verdicts(Tolerance(beta, tau).verify(tree, logp, rng))
        for row, one in enumerate(ours):
            assert one == tolerance(plain_tree(tree, logp, row), beta, tau)
            lengths.add(len(one[0]))
        if Tolerance(beta, tau).lossless:
            assert ours == verdicts(Greedy().verify(tree, logp, rng))
        else:
            assert ours != verdicts(Greedy().verify(tree, logp, rng))
    assert len(lengths) >= 2


def chain_of(tokens):
    """One row: root 0, then these tokens one below the other."""
    builder = TreeBuilder([0])
    for token in tokens:
        builder.add([[token]], [[0]])
    return builder.build(draw=Draw.POINT_MASS)


# After the root 2 is best and 1 is 0.41 nats behind; then 3 is best, 0 is 0.69 behind, 1 is 1.10 behind; then 1 and 2 tie
# nearly; at the end 0 is best.
BY_HAND = torch.tensor(
    [[[0.1, 0.3, 0.45, 0.15], [0.25, 1 / 6, 1 / 12, 0.5], [0.05, 0.46, 0.45, 0.04], [0.7, 0.1, 0.1, 0.1]]]
)


@pytest.mark.parametrize(("tokens", "beta", "tau", "accepted", "last"), [
    ([1, 0, 2], 3, 1.0, 3, 0),  # all within the tolerance
    ([1, 0, 2], 1, 1.0, 0, 2),  # only the best token is kept
    ([1, 0, 2], 3, 0.0, 0, 2),
    ([1, 0, 2], 3, 0.5, 1, 3),  # 0.41 nats are within, 0.69 are not
    ([2, 1, 2], 3, 1.0, 1, 3),  # 1.10 nats behind the best
    ([2, 1, 2], 3, 1.2, 3, 0),
    ([2, 1, 2], 2, 1.2, 1, 3),  # the third best is none of the two best
    ([3, 0, 2], 5, 5.0, 3, 0),  # more than there are tokens, all near enough
    ([2, 3, 1], 1, 0.0, 3, 0),  # the greedy text itself
])  # fmt: skip
def test_tolerance_by_hand(tokens, beta, tau, accepted, last):
    verdict = Tolerance(beta, tau).verify(chain_of(tokens), BY_HAND.log(), CounterRng([0]).at([0]))
    assert verdicts(verdict) == [(list(range(1, accepted + 1)), last)]


def test_tolerance_keeps_more_and_says_that_it_changes_the_text():
    zero = Sampling(temperature=0.0)
    exact = engine(beta=1).generate(ragged(40, seed=0), zero)
    loose = engine(beta=5, tau=5.0).generate(ragged(40, seed=0), zero)
    plain = Decoder(tiny_runner(VOCAB, 1), None, Greedy()).generate(ragged(40, seed=0), zero)
    assert [r.token_ids for r in exact] == [r.token_ids for r in plain]
    assert [r.token_ids for r in loose] != [r.token_ids for r in plain]
    assert all(r.lossless for r in exact)
    assert not any(r.lossless for r in loose)
    assert sum(r.stats.block_efficiency for r in loose) > sum(r.stats.block_efficiency for r in exact)


def test_every_kept_token_is_near_the_best_in_whole_texts():
    """Texts under tolerant verification, tested against the target alone; a control tests with a narrower tolerance."""
    target = tiny_runner(VOCAB, 1)
    with torch.no_grad():  # the draft knows the target's scores after the root alone
        scores = target.model(input_ids=torch.arange(VOCAB).unsqueeze(1)).logits
    draft = BlockTableRunner(scores.expand(-1, 6, -1))

    def worst(beta, tau):
        behind, loose = 0.0, engine(draft, beta=beta, tau=tau)
        for result in loose.generate(ragged(40, seed=0), Sampling(temperature=0.0)):
            text = [*RAGGED[result.seed], *result.token_ids]
            with torch.no_grad():
                logp = target.model(input_ids=torch.tensor([text])).logits[0].log_softmax(-1)
            for at in range(len(RAGGED[result.seed]), len(text)):
                rank = int((logp[at - 1] > logp[at - 1, text[at]]).sum())
                assert rank < beta
                behind = max(behind, difference(logp[at - 1].max(), logp[at - 1, text[at]]))
        return behind

    assert worst(1, 1.0) == 0
    assert 0.5 < worst(4, 1.0) <= 1.0 + EXACT
    assert worst(4, 3.0) > 1.0


def test_beta_and_tau_choose_the_verifier():
    draft = random_blocks(3, 3)

    def made(**given):
        return build(Method(**given), draft, greedy=True)[1]

    for given, beta, tau in (({"beta": 5}, 5, 1.0), ({"tau": 0.5}, 3, 0.5), ({"verifier": "tolerance"}, 3, 1.0)):
        assert (made(**given).name, made(**given).beta, made(**given).tau) == ("tolerance", beta, tau)
    assert made(beta=2, verifier="tolerance").beta == 2
    assert made().name == "greedy"
    for wrong, message in (
        (lambda: Method(verifier="greedy", tau=1.0), "verifier is 'greedy'"),
        (lambda: Method(beta=0), "beta is 0"),
        (lambda: Method(tau=-1.0), "tau is -1"),
        (lambda: build(Method(beta=3), draft, greedy=False), "beta and tau are for temperature 0"),
        (lambda: list(engine(greedy=False, verifier="tolerance").stream(ragged(), Sampling())), "temperature 0 only"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong()
