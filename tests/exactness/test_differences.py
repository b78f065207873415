"""No comparison of scores passes on NaN: the helper of the tests, every rung, and every gate of ``draftwood.exactness``."""

import ast
import re
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch

from draftwood.core.errors import NumericsError
from draftwood.core.log_probs import Distributions
from draftwood.exactness import enumeration, evidence, tape
from draftwood.exactness.goodness import BINS, Evidence, goodness_of_fit
from draftwood.exactness.rounds import Rounds, drafted
from draftwood.exactness.texts import Choice, Pairs, Text
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from tests.differences import difference, largest
from tests.helpers import decoder, ragged
from tests.ladder.pairs import VOCAB, new_pair
from tests.ladder.test_enumeration import pair_of
from tests.ladder.test_rung2_noise import z_scores
from tests.ladder.test_rung3_tape import EXACT, distance
from tests.ladder.test_rung7_statistics import far_off
from tests.runners.test_block_runners import masked_rounds
from tests.runners.test_hidden_states import hidden_walk
from tests.runners.test_logit_identity import walk
from tests.runners.test_seq2seq import SourceWalk
from tests.runners.test_seq2seq import runner_of as source_runner

NAN, INF = float("nan"), float("inf")
ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("tests", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


def test_the_largest_difference_is_found_and_a_nan_on_either_side_fails():
    found, wanted = torch.tensor([1.0, -INF, 2.0]), torch.tensor([1.5, -INF, 2.0])
    assert (difference(found, wanted), difference(found, torch.zeros(3))) == (0.5, INF)
    assert largest([0.5, -2]) == 2
    for one, other in ((found, torch.tensor([1.5, -INF, NAN])), (torch.tensor([NAN, 0.0, 0.0]), wanted)):
        with pytest.raises(AssertionError, match="NaN"):
            difference(one, other)
    with pytest.raises(AssertionError, match="NaN"):
        largest([0.5, NAN])


def careless(source):
    """Expressions that may drop a NaN: ``max`` or ``min`` of floats that are no names, and the largest ``abs`` of a
    difference."""
    out = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            given = ", ".join(map(ast.unparse, node.args))
            of_floats = getattr(node.func, "id", "") in ("max", "min") and re.search(r"\babs\b|\bfloat\(", given)
            of_tensors = re.search(r" - .*\.abs\(\)\.a?max$", ast.unparse(node.func)) and not given
            out += [ast.unparse(node)] * bool(of_floats or of_tensors)
    return out


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_differences_are_compared_by_the_helper(path):
    assert path.name == "differences.py" or not careless(path.read_text())


def test_control_careless_comparisons_are_seen():
    lines = "max(worst, float(x))\nmax(map(abs, scores))\nmax(abs(a - b) for a, b in c)\nfloat((a - b).abs().max())\n"
    assert len(careless(lines)) == 4
    assert not careless("max(0, len(a) - 1)\nmax(worst, difference(a, b))\na.abs().max()\n")


# ---- the rungs of the ladder, with NaN where scores should be ----


def spoilt(rows):
    """Random rounds over a runner whose last score is NaN."""
    for name in ("extend", "score_block"):
        if (method := getattr(rows.runner, name, None)) is not None:

            def with_nan(*given, method=method):
                scores = method(*given)
                with torch.inference_mode():
                    for part in (getattr(scores, "logits", scores), getattr(scores, "hidden", None)):
                        if part is not None:
                            part[-1, -1, -1] = NAN
                return scores

            setattr(rows.runner, name, with_nan)
    return rows


WALKS = {
    "torch": lambda: walk("llama", [5, 1]),
    "native": lambda: walk("llama", [5, 1], "native"),
    "encoder and decoder": lambda: SourceWalk(source_runner("marian"), [5, 1], sources=[6, 3]),
    "hidden states": lambda: hidden_walk("llama", [5, 1]),
    "hidden states, native": lambda: hidden_walk("llama", [5, 1], "native"),
    "a block": masked_rounds,
}


@pytest.mark.parametrize("name", WALKS)
def test_control_a_nan_fails_the_comparison_with_plain_scores(name):
    assert WALKS[name]().round(5) < 1e-3
    with pytest.raises(AssertionError, match="NaN"):
        spoilt(WALKS[name]()).round(5)


def test_control_a_nan_fails_the_other_rungs():
    """Rung 1 counts in fractions, which have no NaN."""
    with pytest.raises(AssertionError, match="NaN"):
        largest(z_scores({0: 5000, 1: NAN}, {0: 0.5, 1: 0.5}, 10_000))
    assert not abs(far_off([(0,) * 8, *[(NAN,) * 8] * 2_000])) < 5
    engine = decoder(*new_pair("model", 4), "chain", "2")
    assert not distance(engine, 2, None, lambda scores, _: scores.softmax(-1) + NAN) < EXACT
    with torch.no_grad():
        engine.pipeline.target.model.lm_head.weight.fill_(NAN)
    with pytest.raises(NumericsError, match="NaN"):
        distance(engine, 2)


# ---- the gates of draftwood.exactness ----


def ratios_of(value):
    now, tokens, first = torch.tensor([[0.6, 0.4]]), torch.tensor([[0, 1]]), torch.tensor([0])
    return evidence.ratios(now, now, tokens, torch.tensor([0.6]), torch.tensor([value]), first, torch.tensor([1]))


def wealth_of(value):
    return evidence.of_wealth(evidence.wealth(torch.tensor([1.0, value])))


def texts_of(value):
    """The verdict on pairs of tokens."""
    pairs = Pairs()
    pairs.add(torch.tensor([1.0, value]), torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    return dict(pairs.p_values("pairs"))["pairs, noise"]


def choice_of(value):
    test, probs = Choice(1e-3), torch.full((30, 4), 0.25)
    probs[:, 0] = value
    noise = torch.as_tensor(CounterRng([0]).at([0]).shared(0, 30, 4))[0]
    tokens = (probs.nan_to_num(0.25).log() + noise).argmax(-1)
    test.add(Text(prompt=[1], tokens=tokens, probs=probs, pit=torch.rand(30)), 0)
    return dict(test.p_values())["choice"]


def trials_of(value):
    made = Rounds("recursive", torch.Generator().manual_seed(0))
    made._trials["accepted"] = [(0.5, True), (value, False)]
    return dict(made.p_values())["accepted"]


def values(value):
    return [*torch.linspace(0.01, 0.99, 99).tolist(), value]


P_VALUES = {
    "of_wealth": wealth_of,
    "ratios": lambda value: evidence.of_wealth(evidence.wealth(ratios_of(value))),
    "of_events": lambda value: evidence.of_events([0.5, value], [True, False]),
    "of_mean": lambda value: evidence.of_mean(values(value)),
    "of_pairs": lambda value: evidence.of_pairs([(one, 0.5) for one in values(value)]),
    "pairs of tokens": texts_of,
    "choice": choice_of,
    "trials": trials_of,
}


@pytest.mark.parametrize("name", P_VALUES)
def test_control_a_nan_fails_a_test_of_the_report(name):
    level = Evidence(name=name, p_value=P_VALUES[name](0.25), level=1e-6)
    assert not level.fails
    assert Evidence(name=name, p_value=P_VALUES[name](NAN), level=1e-6).fails


@pytest.mark.parametrize("share", [1, 40, 200])
def test_control_pit_values_that_are_nan_are_not_uniform(share):
    pit = (torch.arange(128 * BINS) + 0.5) / (128 * BINS)
    assert goodness_of_fit(pit).exact
    pit[:share] = NAN
    assert not goodness_of_fit(pit).exact
    assert Evidence(name="x", p_value=NAN, level=1e-4).fails
    probs = torch.tensor([[0.5, 0.5], [NAN, 0.5]])
    assert evidence.pit(probs, torch.tensor([1, 1]), torch.tensor([0.5, 0.5])).isnan().tolist() == [False, True]


def test_control_drafted_tokens_of_a_distribution_that_is_nan_count():
    [pieces] = [next(decoder(*new_pair("model"), "rsd-s", "2x2").stream(ragged(), Sampling()))]
    tree = pieces[0].round.tree
    logp = torch.full_like(tree.draft_logp, NAN)
    spoilt_tree = replace(tree, ranking=lambda: Distributions(logp=logp, vocab=VOCAB))
    values = [[value for _, value in drafted(one, torch.Generator())] for one in (tree, spoilt_tree)]
    assert not any(map(isnan, values[0]))
    assert all(map(isnan, values[1]))
    assert len(values[0]) == len(values[1]) > 0


def test_control_a_nan_fails_the_enumeration(monkeypatch):
    pair = pair_of()
    engine = pair.decoder("ar", temperature=1.0)

    def found(*distances):
        left = iter(distances)
        monkeypatch.setattr(enumeration, "total_variation", lambda *_: next(left))
        return enumeration.enumerated(pair, engine, Sampling(), ["1 2", "3"], tokens=1, seed=0)

    assert found(1e-12, 0.0).exact
    assert not found(1e-12, NAN).exact
    assert not tape.total_variation({(1,): 0.5, (2,): NAN}, {(1,): 0.5, (2,): 0.5}) <= EXACT
    with pytest.raises(RuntimeError, match="not to one"):
        tape.enumerate_distribution(lambda tapes: [setattr(tapes[0], "weight", NAN) or (0,)])
