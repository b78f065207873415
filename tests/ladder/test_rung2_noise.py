"""Rung 2: the Gumbel noise itself. Orders and beams have the distributions of the exact enumeration."""

from collections import Counter

import numpy as np
import pytest
import torch

from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import StochasticBeam
from draftwood.exactness.tape import beam_of, enumerate_distribution, without_replacement
from draftwood.sampling.counter_rng import CounterRng, CounterRoundRng, Stream
from draftwood.sampling.counters import exponential, token_bases
from draftwood.sampling.settings import Sampling
from tests.differences import largest
from tests.helpers import begin, sampler_of
from tests.tables import TableRunner

Z = 4.5  # two-sided 7e-6 per comparison; some hundred comparisons in this file
DISTRIBUTION = [0.5, 0.3, 0.15, 0.05]


def z_scores(counts, distribution, samples):
    """Per outcome; outcomes too rare for the normal approximation count as one, and impossible ones must not come."""
    assert all(distribution.get(k, 0.0) > 0 for k in counts)
    rare = [k for k in distribution if samples * distribution[k] < 25]
    pairs = [(counts.get(k, 0), distribution[k]) for k in distribution if samples * distribution[k] >= 25]
    if rare:
        pairs.append((sum(counts.get(k, 0) for k in rare), sum(distribution[k] for k in rare)))
    return [(n - samples * p) / np.sqrt(max(samples * p * (1 - p), 1e-9)) for n, p in pairs]


def rng(samples, first=0):
    return CounterRng(range(first, first + samples)).at([3] * samples)


def test_gumbel_top_k_is_an_ordered_sample_without_replacement():
    samples = 40_000
    log_q = torch.tensor(DISTRIBUTION).log().expand(samples, 1, -1)
    drawn = rng(samples).ordered(log_q, 3, 0)[:, 0].tolist()
    exact, _ = enumerate_distribution(lambda tapes: [tuple(without_replacement(t, DISTRIBUTION, 3)) for t in tapes])
    assert largest(z_scores(Counter(map(tuple, drawn)), exact, samples)) < Z


def test_the_token_draw_has_the_distribution_and_never_an_impossible_token():
    samples = 60_000
    distribution = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(samples, -1)
    drawn = Counter(rng(samples).token(distribution).tolist())
    assert 1 not in drawn
    assert largest(z_scores(drawn, {0: 0.5, 2: 0.3, 3: 0.2}, samples)) < Z


def test_acceptance_has_its_probability_and_zero_is_never_accepted():
    samples = 60_000
    c = rng(samples)
    node = [1] * samples
    for p, q in ((0.3, 0.4), (0.1, 0.9), (0.5, 0.2)):
        yes = sum(c.accept([p] * samples, [q] * samples, node))
        share = min(1.0, p / q)
        assert abs(yes - samples * share) <= Z * np.sqrt(samples * share * (1 - share)) + 1e-9
    assert not any(c.accept([0.0] * samples, [0.0] * samples, node))


DISTRIBUTIONS = [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]]  # of the draft, after each token
ROOT = 1


def exact_beam(width):
    def run(tapes):
        out = []
        for tape in tapes:
            first = beam_of(tape, [1.0], [DISTRIBUTIONS[ROOT]], width)
            second = beam_of(tape, [w for _, _, w in first], [DISTRIBUTIONS[x] for _, x, _ in first], width)
            out.append(tuple((first[i][1], x) for i, x, _ in second))
        return out

    return enumerate_distribution(run)[0]


def drafted_beam(width, samples):
    """The texts of the second level of trees that are drafted on real noise."""
    drafter = LevelDrafter(TableRunner(torch.tensor(DISTRIBUTIONS).log()), StochasticBeam(width, 2))
    sampler = sampler_of(Sampling(), [[0, ROOT]] * samples, 3)
    begin(drafter.runner, [[0]] * samples)
    tree = drafter.draft([ROOT] * samples, sampler, rng(samples), [2] * samples)
    return Counter(tuple(tuple(text) for text in row if text and len(text) == 2) for row in tree.prefixes())


@pytest.mark.parametrize("width", [2, 3])
def test_drafted_beams_have_the_distribution_of_the_race(width):
    """For which ``test_rung1_fractions.py`` proves that the output is the target's."""
    samples = 20_000
    assert largest(z_scores(drafted_beam(width, samples), exact_beam(width), samples)) < Z


def test_control_an_unconditioned_beam_is_seen(monkeypatch):
    """Every parent seems to have arrived at once, and the order of the level above is lost."""
    beam, samples = CounterRoundRng.beam, 20_000
    monkeypatch.setattr(
        CounterRoundRng,
        "beam",
        lambda self, log_q, phi, times, *rest: beam(self, log_q, phi, torch.zeros_like(times), *rest),
    )
    assert largest(z_scores(drafted_beam(2, samples), exact_beam(2), samples)) > 3 * Z


# ---- the counters ----


def test_noise_depends_on_seed_position_stream_and_slot_and_on_nothing_else():
    log_q = torch.zeros(3, 2, 11)
    together = CounterRng([5, 6, 7]).at([3, 4, 5])
    alone = CounterRng([6]).at([4])
    assert torch.equal(together.ordered(log_q, 4, 0)[1], alone.ordered(log_q[:1], 4, 0)[0])
    assert torch.equal(together.shared(2, 1, 11)[1], alone.shared(0, 3, 11)[0, 2:])
    assert torch.equal(together.shared(0, 2, 11), CounterRng([5, 6, 7]).at([3, 4, 5]).shared(0, 2, 11))
    # The shared noise of a position is the same in every round; the draft's noise is not.
    earlier, later = CounterRng([6]).at([4]), CounterRng([6]).at([5])
    assert torch.equal(earlier.shared(1, 1, 11), later.shared(0, 1, 11))
    assert not torch.equal(earlier.ordered(log_q[:1], 11, 0), later.ordered(log_q[:1], 11, 0))


def test_a_row_at_temperature_0_gets_no_noise_and_costs_none(monkeypatch):
    made = []
    monkeypatch.setattr(
        "draftwood.sampling.counter_rng.exponential", lambda keys, *rest: made.append(len(keys)) or exponential(keys, *rest)
    )
    mixed = CounterRng([5, 6, 7], greedy=[True, False, True]).at([3, 4, 5]).shared(0, 2, 11)
    assert made == [1]
    assert torch.equal(mixed[1:2], CounterRng([6]).at([4]).shared(0, 2, 11))
    assert not mixed[[0, 2]].any()


def test_shared_noise_of_some_tokens_is_that_of_all():
    some, rng = torch.tensor([4, 0, 6]), CounterRng([5, 6, 7]).at([3, 9, 4])
    torch.testing.assert_close(rng.shared(1, 2, 11, some), rng.shared(0, 3, 11)[:, 1:, some])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_are_exponential_and_independent_over_neighbouring_counters(dtype):
    bases = token_bases(2_000, torch.device("cpu"))
    keys = CounterRng(range(100)).at([7] * 100)._keys(Stream.DRAFT, 0, 1)
    u = (-torch.expm1(-exponential(keys, bases, dtype))).squeeze(1).numpy()
    assert u.min() > 0
    assert u.max() < 1
    n = u.size
    counts = np.histogram(u, bins=1000, range=(0, 1))[0]
    chi2 = ((counts - n / 1000) ** 2 / (n / 1000)).sum()
    assert abs(chi2 - 999) < 5 * np.sqrt(2 * 999)
    for a, b in ((u[:, 1:], u[:, :-1]), (u[1:], u[:-1]), (u[:, 2:], u[:, :-2])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)
    for tail in (u < 1e-4, u > 1 - 1e-4):
        assert abs(tail.sum() - n * 1e-4) < 5 * np.sqrt(n * 1e-4)
    assert len(np.unique(u[u < 1e-3])) > 0.999 * (u < 1e-3).sum()  # first arrivals hardly ever tie


def test_seeds_out_of_range_are_refused():
    for seed in (-1, 1 << 63):
        with pytest.raises(ValueError, match="from 0 to"):
            CounterRng([seed])
