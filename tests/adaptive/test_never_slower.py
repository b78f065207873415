"""Short texts are not slower than plain decoding, from the first one on; what probes lose is a small share of a text."""

from functools import cache
from statistics import fmean

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.lookup import KINDS, PromptLookup
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Coupled, Greedy
from tests.adaptive.clocked import ClockedRunner, LateRunner, counting
from tests.adaptive.scenarios import WORLDS
from tests.adaptive.simulator import steer, text
from tests.helpers import rest_of, sampler_of

PLAIN = 100.0  # tokens per second
LIKELY = {"useless": 0.05, "poor": 0.2, "medium": 0.5, "good": 0.8}
SEEDS = range(8)


def speed(name, world, length, learnt=None):
    """Mean speed over some texts, each the first of its process, as a multiple of plain decoding."""
    runs = [
        steer(Controller(learnt=learnt), WORLDS[world], text(seed, lambda _: LIKELY[name], length=length), seed=seed)
        for seed in SEEDS
    ]
    return fmean(run.whole for run in runs) / PLAIN


@cache
def learnt(name, world):
    """The knowledge of an earlier process."""
    controller = Controller()
    steer(controller, WORLDS[world], text(50, lambda _: LIKELY[name], length=600), seed=50)
    return controller.learnt


@pytest.mark.parametrize("length", [40, 120, 400])
@pytest.mark.parametrize("name", LIKELY)
def test_with_nothing_known_a_text_is_not_slower(name, length):
    assert speed(name, "usual", length) >= 0.97
    assert speed(name, "dear", length) >= 0.955  # a round with a draft takes two plain ones, and one is needed to see it


@pytest.mark.parametrize("world", ["usual", "dear"])
@pytest.mark.parametrize("name", LIKELY)
def test_in_a_later_process_a_text_is_not_slower(name, world):
    """Probes of a draft that is known to be useless take at most a fiftieth of a text."""
    least = 0.98 if name == "useless" else 0.97 if world == "usual" else 0.955
    for length in (40, 120, 400, *[1500] * (name == "useless")):
        assert speed(name, world, length, learnt(name, world)) >= least


def test_lookup_that_was_right_before_is_soon_distrusted_in_another_text():
    lookup = PromptLookup(hits=[20.0] * KINDS, guesses=[20.0] * KINDS)
    assert min(lookup.probabilities) > 0.7
    sampler = sampler_of(Sampling(), [[1, 2, 1]], VOCAB)
    lookup.guess(sampler, [4])
    before = lookup.probabilities[0]
    for _ in range(3):
        lookup.guess(sampler, [4])
        lookup.learn([[9]])
    assert lookup.probabilities[0] < 0.75 * before


def test_guesses_that_were_seldom_right_in_earlier_texts_are_not_shown_until_a_text_repeats_itself():
    lookup = PromptLookup(hits=[11.0] * KINDS, guesses=[100.0] * KINDS)
    sampler = sampler_of(Sampling(), [[1, 2, 3, 4, 5, 1]], VOCAB)
    [guess] = lookup.guess(sampler, [4])
    assert max(guess.probabilities) < 0.13
    for _ in range(6):
        lookup.learn([[2, 3, 4, 5]])
    assert min(lookup.probabilities[:4]) > 0.5
    [again] = lookup.guess(sampler_of(Sampling(), [[1, 2, 3, 4, 5, 1]], VOCAB), [4])
    assert max(again.probabilities) < 0.2  # another text


def test_what_is_gained_stays():
    assert speed("good", "usual", 120) > 1.25
    for length in (40, 120):
        assert speed("good", "usual", length, learnt("good", "usual")) > 1.4


# ---- real rounds on a simulated clock ----

VOCAB, BASE, TREE, NODE = 40, 0.010, 0.003, 0.0005


def seconds_of(rows, tokens):
    return BASE + (TREE + NODE * (tokens - 1) * rows) * (tokens > 1)


@pytest.mark.parametrize("rows", [1, 4])
def test_short_texts_that_come_and_go_are_drafted_also_after_many_plain_ones(rows):
    now, controllers = [0.0], Controllers()
    table = 4 * torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1))
    target, draft = ClockedRunner(table, now, seconds_of), LateRunner(table, now, lambda *_: 0.1 * BASE)
    grower = build(Method(method="adaptive"), draft, greedy=False)[0].grower
    engine = Decoder(target, BestFirstDrafter(grower, budgets=controllers.at, clock=lambda: now[0]), Coupled())

    def forwards(method):
        before = target.forwards
        for first in range(0, 40, 40 if rows > 1 else 1):  # a single client sends the next text after the last
            with engine.batch(rows=rows) as batch:
                for n in range(first, first + (40 if rows > 1 else 1)):
                    request = Request(prompt=[1, 2, 3], seed=n, limits=Limits(max_new_tokens=12 + n % 9))
                    batch.add(request, Sampling(temperature=1.0), method=method)
                rest_of(batch)
        return target.forwards - before

    plain = forwards("ar")
    assert min(forwards(None) for _ in range(4)) < 0.7 * plain
    assert [forwards("ar") for _ in range(4)] == [plain] * 4
    assert forwards(None) < 0.7 * plain


# ---- prompt lookup alone ----


def alone(table, rows, new, *, temperature, always=False, equal=False):
    """Simulated seconds of a text over those of plain decoding, and tokens per forward. ``equal`` rows write one text."""
    now, controllers = [0.0], Controllers()
    drafter = BestFirstDrafter(None, budgets=controllers.at, lookup=controllers.lookup, clock=lambda: now[0])
    if always:
        controllers.at(rows).shows_guess = lambda chains: any(map(bool, chains))
        controllers.at(rows).tree_size = lambda values: len(values)
    target = ClockedRunner(table, now, seconds_of)
    engine = Decoder(target, drafter, Coupled() if temperature else Greedy())
    names = [0 if equal else row for row in range(rows)]
    requests = [Request(prompt=[1 + n, 2, 3, 1 + n], seed=n, limits=Limits(max_new_tokens=new)) for n in names]
    engine.generate(requests, Sampling(temperature=temperature))
    return now[0] / (BASE * new), engine.stats[0].block_efficiency


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("new", [33, 120, 400])
def test_lookup_is_not_slower_where_nothing_can_be_guessed(rows, new):
    seconds, _ = alone(torch.zeros(VOCAB, VOCAB), rows, new, temperature=1.0)  # matches are many, and never right
    assert seconds <= 1.02


@pytest.mark.parametrize("rows", [4, 8])
def test_lookup_is_not_slower_where_all_rows_are_equal(rows):
    seconds, _ = alone(counting(VOCAB, 12, 4.0), rows, 120, temperature=1.0, equal=True)
    assert seconds <= 1.01  # 1.02 if each row counts as evidence of its own


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_lookup_is_faster_where_a_text_repeats_itself(rows):
    seconds, tokens = alone(counting(VOCAB, 7, 30.0), rows, 120, temperature=0.0)
    assert seconds < 0.6
    assert tokens > 3


def test_control_lookup_that_always_drafts_is_slower():
    seconds, _ = alone(torch.zeros(VOCAB, VOCAB), 1, 120, temperature=1.0, always=True)
    assert seconds > 1.2
