"""Sampling in the native library: the tokens and numbers of PyTorch's operations."""

import numpy as np
import pytest
import torch

from draftwood.core.log_probs import Pending
from draftwood.draft.none import root_alone
from draftwood.native import sampling as native
from draftwood.native.library import library
from draftwood.sampling.best import best_tokens
from draftwood.sampling.counter_rng import CounterRng, CounterRoundRng
from draftwood.sampling.counters import exponential, token_bases
from draftwood.sampling.settings import Sampling
from draftwood.sampling.truncation import Truncation
from draftwood.verify.coupled import Coupled
from draftwood.verify.sparse import verify
from tests.verify.test_union import texts

CUTS = [
    None, Truncation(5), Truncation(1), Truncation(400), Truncation(0, 0.7), Truncation(0, 0.999), Truncation(50, 0.8),
    Truncation(0, 1.0, 0.05), Truncation(20, 0.9, 0.1),
    Truncation(2**32 + 1),
]  # fmt: skip
VOCABS = [7, 64, 1000, 1025]


def scores_of(vocab, kind):
    torch.manual_seed(vocab)
    scores = 3 * torch.randn(2, 3, vocab)
    if kind == "ties":
        scores = scores.round()
    if kind == "impossible":
        scores[torch.rand_like(scores) < 0.9] = -torch.inf
        scores[0, 1], scores[1, 2] = -torch.inf, torch.nan
        scores[1, 0, 3] = torch.nan
    return scores


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab", [1, 63, 64, 1000])
def test_noise_has_the_same_bits_and_nearly_the_same_logarithms(vocab):
    keys, bases = torch.randint(-(2**62), 2**62, (200, 1)), token_bases(vocab, torch.device("cpu"))
    found, exact = native.exponential(keys, bases), exponential(keys, bases, torch.float64)
    assert found is not None
    bound = 2.0**-22 * torch.exp(exact)  # a uniform number near 1 has few digits left
    assert bool(((found - exact).abs() <= bound * exact.clamp(max=1.0) + 4e-7 * exact).all())
    library().use(b"generic")
    assert torch.equal(native.exponential(keys, bases), found), "other bits on another instruction set"


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("kind", ["plain", "ties", "impossible"])
@pytest.mark.parametrize("greedy", [False, [False, True], True])
def test_best_tokens_are_those_of_pytorch(vocab, kind, greedy):
    rng, scores = CounterRng([3, 4], greedy=greedy).at([5, 9]), scores_of(vocab, kind)
    for cut in CUTS:
        with pytest.MonkeyPatch.context() as monkeypatch:
            compare(scores, rng, cut, monkeypatch, ties=kind == "ties" and greedy is not False)


def compare(scores, rng, cut, monkeypatch, *, ties):
    """The best tokens at all nodes, and the choices at one, by the library and by PyTorch; tokens that tie may differ."""
    vocab = scores.shape[-1]
    log_probs, tree = Pending(scores=scores, cuts=[cut] * 2, vocab=vocab), root_alone([0] * len(scores))
    one = Pending(scores=scores[:, 1:2], cuts=[cut] * 2, vocab=vocab)
    found = best_tokens(log_probs, rng, 2, 4)
    chosen = verify(Coupled(), tree, one, rng).next_tokens[1]  # of a node with possible tokens
    monkeypatch.setattr(native, "runs", lambda scores: False)
    wanted = best_tokens(log_probs, rng, 2, 4)
    np.testing.assert_allclose(found.likeliest, wanted.likeliest, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5, rtol=1e-5)
    if not ties:
        assert np.array_equal(found.tokens, wanted.tokens)
        assert chosen == verify(Coupled(), tree, one, rng).next_tokens[1]


def test_a_token_that_is_chosen_has_a_probability():
    """Where sums of equal probabilities meet top-p exactly, too."""
    scores = torch.full((1, 1, 100), -torch.inf)
    scores[..., ::15] = 0.0
    for share in (1 / 7, 2 / 7, 0.5, 6 / 7):
        log_probs, tree = Pending(scores=scores, cuts=[Truncation(0, share)], vocab=100), root_alone([0])
        chosen = {verify(Coupled(), tree, log_probs, CounterRng([seed]).at([3])).next_tokens[0] for seed in range(200)}
        assert chosen == set((log_probs.settled.dense()[0, 0] > -torch.inf).nonzero().flatten().tolist())


@pytest.mark.parametrize("cut", [None, Truncation(6), Truncation(0, 0.8)], ids=str)
def test_noise_belongs_to_the_depth_and_to_common_tokens(cut, monkeypatch):
    tokens = torch.arange(5, 69).flip(0)

    def best(depth):
        log_probs = Pending(scores=scores_of(64, "plain"), cuts=[cut] * 2, tokens=tokens, vocab=80)
        return best_tokens(log_probs, CounterRng([3, 4]).at([5, 9]), depth, 4).tokens

    found, other = best(2), best(3)
    monkeypatch.setattr(native, "runs", lambda scores: False)
    assert np.array_equal(found, best(2))
    assert not np.array_equal(found, other)  # a control: another depth has other noise


@pytest.mark.parametrize("case", [("ar", None), ("adaptive", None), ("shared-noise", "3-2")])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2, "temperature": 1.3}])
def test_texts_are_the_same_with_and_without_the_library(case, cuts, monkeypatch):
    case, setting = (*case, "coupled"), Sampling(**cuts)
    found = texts(case, setting)
    monkeypatch.setattr("draftwood.sampling.truncation.LARGE", 1)
    assert texts(case, setting) == found
    monkeypatch.setattr(native, "_library", lambda: None)
    assert texts(case, setting) == found
    shift = CounterRoundRng.shared_keys
    monkeypatch.setattr(CounterRoundRng, "shared_keys", lambda rng, offset, count: shift(rng, offset + 1, count))
    assert texts(case, setting) != found  # a control: noise of other positions
