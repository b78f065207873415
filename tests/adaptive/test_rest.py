"""Where no draft pays, rounds rest: they go the way of plain decoding, and looking for a draft costs next to nothing."""

import math

import pytest
import torch

from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.budget import RESTING
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Coupled
from tests.adaptive.clocked import ClockedRunner
from tests.engine.test_decode import VOCAB
from tests.helpers import Words, tiny_gpt
from tests.tables import TableRunner

BASE, LOOK = 0.001, 0.0001  # seconds of a forward, and of looking for a draft
ROUNDS = 400
TABLE = torch.zeros(40, 40)


def decoder(kind, monkeypatch, *, base=BASE):
    """A decoder whose drafts never pay, the looks of its drafter, and its clock."""
    now, looks, controllers = [0.0], [0], Controllers()
    monkeypatch.setattr(Controller, "drafts", lambda *_: False)
    monkeypatch.setattr(Controller, "shows_guess", lambda *_: False)
    guess = controllers.lookup.guess

    def look(*given):
        looks[0] += 1
        now[0] += LOOK
        return guess(*given)

    monkeypatch.setattr(controllers.lookup, "guess", look)
    draft = None if kind == "lookup" else ClockedRunner(TABLE, now, lambda *_: LOOK)
    grower = build(Method(method=kind), draft, greedy=False)[0].grower
    drafter = BestFirstDrafter(grower, budgets=controllers.at, lookup=controllers.lookup, clock=lambda: now[0])
    return Decoder(ClockedRunner(TABLE, now, lambda *_: base), drafter, Coupled()), looks, now


def write(made, rounds=ROUNDS, seed=1):
    limits = Limits(max_new_tokens=rounds, ignore_eos=True)
    [result] = made.generate([Request(prompt=[1, 2, 3], seed=seed, limits=limits)], Sampling(temperature=1.0))
    return list(result.token_ids)


@pytest.mark.parametrize("kind", ["adaptive", "lookup"])
def test_a_draft_that_never_pays_costs_a_fiftieth_at_most(kind, monkeypatch):
    made, looks, now = decoder(kind, monkeypatch)
    text = write(made)
    assert now[0] <= 1.02 * BASE * ROUNDS
    assert looks[0] < 0.2 * ROUNDS
    assert text == write(Decoder(TableRunner(TABLE), None, Coupled()))
    assert kind == "lookup" or made.pipeline.drafter.runner.forwards == 0  # it reads nothing meanwhile


@pytest.mark.parametrize("kind", ["adaptive", "lookup"])
def test_control_without_rests_it_costs_more(kind, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(constants, "REST_ROUNDS", 0)
        made, looks, now = decoder(kind, patch)
        write(made)
    assert looks[0] == ROUNDS
    assert now[0] > 1.05 * BASE * ROUNDS
    made, looks, _ = decoder(kind, monkeypatch, base=100 * LOOK / 0.4)
    write(made, 60)
    assert looks[0] == 60  # next to a long forward every round looks


def test_the_budget_learns_of_a_rest():
    controller = Controller()
    for _ in range(12):
        controller.begin_round()
        controller.end_round(1, 1.0, 0.0, BASE)
    assert controller.rest(0.5 * BASE) == 3  # a quarter of twelve rounds
    assert controller.rest(0.004 * BASE) == 0
    wait = [probe.wait for probe in controller._probes]
    for _ in range(4):
        controller.end_round(1, 1.0, 0.0, 2 * BASE)
    assert controller.costs.base > BASE
    assert [probe.wait for probe in controller._probes] == pytest.approx([w - 8 * BASE for w in wait])
    assert controller.rest(0.5 * BASE) == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_after_a_rest_the_draft_goes_on_from_the_whole_text(temperature, monkeypatch):
    """A draft model that is the target is always right, unless its memory has a gap or a token of its own."""
    monkeypatch.setattr(Controller, "shows_guess", lambda *_: False)
    monkeypatch.setattr(Controller, "rest", lambda *_: 3)
    monkeypatch.setattr(Controller, "tree_size", lambda _self, values: min(1, len(values)))
    rounds = [0]

    def sometimes(*_):
        rounds[0] += 1
        return rounds[0] % 3 == 0

    monkeypatch.setattr(Controller, "begin_round", lambda *_: False)
    monkeypatch.setattr(Controller, "drafts", sometimes)
    monkeypatch.setattr(Controller, "gain", lambda *_: -math.inf)
    pair = Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 1), Words())
    rests, accepted = [], []
    settings = {"temperature": temperature, "seed": 3, "method": "adaptive"}
    text = []
    for piece in pair.stream([1, 2, 3], **settings, limits=Limits(max_new_tokens=40, ignore_eos=True)):
        rests.append(piece.round.tree.stop == RESTING)
        text += piece.tokens
        if piece.round.tree.size > 1:
            accepted.append(piece.drafted)
    assert sum(rests) > 8
    assert len(accepted) >= 2
    assert set(accepted) == {1} if temperature == 0.0 else accepted
    plain = pair.generate([1, 2, 3], **{**settings, "method": "ar"}, limits=Limits(max_new_tokens=40, ignore_eos=True))
    assert text == list(plain.token_ids)
