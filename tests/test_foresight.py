"""What a best-first tree believes about the target's choice, and how it learns."""

from __future__ import annotations

import numpy as np
import pytest

from draftwood.draft.foresight import Foresight

FAN = 4
TRUE = np.array([2.5, -0.1, -1.5, 0.2])


def world(nodes, seed=0, weights=TRUE):
    """Nodes whose choices follow a model with these weights."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(rng.exponential(1.0, (nodes, FAN)).cumsum(axis=1))
    entropy = rng.uniform(0.5, 4.0, nodes)
    truth = Foresight(FAN)
    truth.weights = np.array(weights)
    law = np.exp(truth.log_shares(scores, entropy))
    choice = np.array([rng.choice(FAN + 1, p=p) for p in law])
    return scores, entropy, choice.astype(float)


def surprise(model, scores, entropy, choice):
    return -model.log_shares(scores, entropy)[np.arange(len(choice)), choice.astype(int)].mean()


def taught(nodes, seed=0):
    model = Foresight(FAN)
    scores, entropy, choice = world(nodes, seed)
    for at in range(0, nodes, 3):
        model.learn(scores[at : at + 3], entropy[at : at + 3], choice[at : at + 3])
    return model


def test_shares_are_a_law_and_fall_with_gap_and_rank():
    scores = np.array([[0.0, -0.5, -0.5, -4.0], [0.0, -1.0, -np.inf, -np.inf]])
    shares = np.exp(Foresight(FAN).log_shares(scores, np.array([1.0, 3.0])))
    assert shares.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert shares[0, 0] > shares[0, 1] > shares[0, 2] > shares[0, 3] > 0
    assert (shares[1, 2:4] == 0).all()
    assert shares[1, 4] > shares[0, 4]  # an uncertain draft foresees less


def test_it_learns_the_law_that_the_rounds_reveal():
    held_out = world(4_000, seed=9)
    start, learnt = surprise(Foresight(FAN), *held_out), surprise(taught(6_000), *held_out)
    truth = Foresight(FAN)
    truth.weights = TRUE
    best = surprise(truth, *held_out)
    assert start - best > 0.05
    assert learnt - best < 0.1 * (start - best)


def test_the_first_rounds_do_no_harm():
    held_out = world(4_000, seed=9)
    start = surprise(Foresight(FAN), *held_out)
    for seed in range(5):
        assert surprise(taught(12, seed), *held_out) < start + 0.02


def test_control_choices_that_were_shuffled_teach_something_else():
    model, (scores, entropy, choice) = Foresight(FAN), world(6_000)
    shuffled = np.random.default_rng(1).permutation(choice)
    for at in range(0, len(choice), 3):
        model.learn(scores[at : at + 3], entropy[at : at + 3], shuffled[at : at + 3])
    held_out = world(4_000, seed=9)
    assert surprise(model, *held_out) > surprise(taught(6_000), *held_out) + 0.05
