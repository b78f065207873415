"""What a tree expects of the target's choice, and how it learns."""

import numpy as np
import pytest

from draftwood.draft.adaptive.expand import AcceptanceModel

COUNT = 4
TRUE = [2.5, -0.1, -1.5, 0.4]


def world(nodes, seed=0):
    """Nodes whose choices follow a model with the true weights."""
    rng = np.random.default_rng(seed)
    truth = AcceptanceModel(TRUE)
    out = []
    for _ in range(nodes):
        scores, uncertainty = (-np.sort(rng.exponential(1.0, COUNT).cumsum())).tolist(), float(rng.uniform(0.1, 3.0))
        true = np.exp(truth.log_probs(scores, uncertainty))
        out.append((scores, uncertainty, int(rng.choice(COUNT + 1, p=true / true.sum()))))
    return out


def surprise(model, nodes):
    return -np.mean([model.log_probs(scores, uncertainty)[choice] for scores, uncertainty, choice in nodes])


def taught(nodes):
    model = AcceptanceModel()
    for scores, uncertainty, choice in nodes:
        model.learn(scores, uncertainty, choice)
    return model


def test_probabilities_add_up_and_fall_with_gap_and_rank():
    model = AcceptanceModel()
    full = np.exp(model.log_probs([0.0, -0.5, -0.5, -4.0], 0.5))
    cut = np.exp(model.log_probs([0.0, -1.0], 2.5))
    assert [full.sum(), cut.sum()] == pytest.approx([1.0, 1.0])
    assert full[0] > full[1] > full[2] > full[3] > 0
    assert cut[2] > full[4]  # an uncertain draft foresees less


def test_it_learns_the_distribution_that_the_rounds_reveal():
    held_out = world(2_000, seed=9)
    truth = AcceptanceModel(TRUE)
    start, learnt, best = (surprise(m, held_out) for m in (AcceptanceModel(), taught(world(4_000)), truth))
    assert start - best > 0.05
    assert learnt - best < 0.1 * (start - best)


def test_the_first_rounds_do_no_harm():
    held_out = world(2_000, seed=9)
    start = surprise(AcceptanceModel(), held_out)
    for seed in range(5):
        assert surprise(taught(world(12, seed)), held_out) < start + 0.02


def test_control_choices_that_were_shuffled_teach_something_else():
    nodes, held_out = world(4_000), world(2_000, seed=9)
    rng = np.random.default_rng(1).permutation([choice for *_, choice in nodes])
    shuffled = [(scores, uncertainty, int(choice)) for (scores, uncertainty, _), choice in zip(nodes, rng, strict=True)]
    assert surprise(taught(shuffled), held_out) > surprise(taught(nodes), held_out) + 0.05
