"""The slow reference verifiers keep the same paths and tokens as the recorded runs."""

from dataclasses import replace

import pytest

from draftwood.core.methods import METHODS
from tests.trace.replay import replay
from tests.trace.runs import run

PAIRS = [(spec.name, verifier) for spec in METHODS.values() for verifier in spec.verifiers]
DRAWN = [(*pair, 1.0) for pair in PAIRS if pair[1] != "greedy"]
GREEDY = [(*pair, 0.0) for pair in [*PAIRS, ("rsd-c", "tolerance")]]


@pytest.mark.parametrize(("method", "verifier", "temperature"), [*DRAWN, *GREEDY])
def test_the_reference_keeps_the_recorded_paths_and_tokens(method, verifier, temperature):
    more = {"beta": 2} if verifier == "tolerance" else {}
    rows, length = (10, 60) if temperature else (5, 24)
    results = [replay(trace) for trace in run(method, verifier, rows=rows, length=length, temperature=temperature, **more)]
    assert sum(found.replayed for found in results) > (50 if temperature else 10)
    assert not (temperature and sum(found.agreed for found in results)), "every distribution is stored completely"
    assert not [difference for found in results for difference in found.differences]


def edited(trace, **changes):
    """The first round that has a test with a clear outcome, with other values in that test."""
    rounds = list(trace.rounds)
    for i, one in enumerate(rounds):
        for j, trial in enumerate(one.trials):
            if trial.uniform is not None and trial.chance is not None and abs(trial.uniform - trial.chance) > 0.05:
                trials = list(one.trials)
                trials[j] = replace(trial, **changes)
                rounds[i] = replace(one, trials=trials)
                return replace(trace, rounds=rounds)
    raise AssertionError("no such test")


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_control_an_edited_verdict_is_seen(verifier):
    [trace] = run("rsd-c", verifier)
    accepted = next(t.accepted for one in trace.rounds for t in one.trials if abs((t.uniform or 0) - (t.chance or 0)) > 0.05)
    assert not replay(trace).differences
    assert replay(edited(trace, accepted=not accepted)).differences


@pytest.mark.parametrize(
    ("method", "verifier"), [("rsd-c", "recursive"), ("rsd-s", "traversal"), ("shared-noise", "coupled")]
)
def test_control_other_random_numbers_give_other_verdicts(method, verifier):
    """The reference reads the recorded numbers: with those of another seed its verdicts differ."""
    first, second = run(method, verifier)[0], run(method, verifier, first=1)[0]
    numbers = [(one.uniform, one.path_uniform) for one in second.rounds]
    rounds = [
        replace(one, trials=[], uniform=uniform, path_uniform=path)
        for one, (uniform, path) in zip(first.rounds, numbers, strict=False)
    ]
    assert replay(replace(first, rounds=rounds, seed=second.seed)).differences


def test_control_an_edited_distribution_is_seen():
    """With p and q of a node exchanged, the reference accepts with other chances."""
    [trace] = run("chain", "recursive", length=60)
    rounds = [
        replace(one, nodes=[replace(n, target=n.draft or n.target, draft=n.target) for n in one.nodes])
        for one in trace.rounds
    ]
    assert replay(replace(trace, rounds=rounds)).differences


def test_incomplete_distributions_are_compared_with_their_own_numbers():
    [trace] = run("rsd-c", "recursive", tokens=2)
    found = replay(trace)
    assert found.agreed > 0
    assert not found.differences
    assert replay(edited(trace, chance=0.123456)).differences
