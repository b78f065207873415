"""Processors with a state of their own are refused before they can change the distribution."""

from __future__ import annotations

from itertools import pairwise
from threading import Lock

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor, TopKLogitsWarper
from transformers.generation import PrefixConstrainedLogitsProcessor as Constrained

import draftwood
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_runner
from tests.runners.zoo import VOCAB as WORDS
from tests.runners.zoo import tiny

VOCAB = 16


def generate(processor, method="ngram", prompt=(3, 4, 5, 3, 4), **settings):
    engine = decoder(tiny_runner(VOCAB, 1), None, method)
    request = Request(prompt=list(prompt), seed=1, limits=Limits(max_new_tokens=8))
    return engine.generate([request], Sampling(processors=[processor], **settings))[0].token_ids


def closure():
    """Keeps the texts that it saw in a list outside of itself."""
    seen: list[int] = []

    def process(ids, scores):
        seen.append(int(ids[0, -1]))
        return scores.index_add(1, torch.tensor([len(seen) % VOCAB]), torch.full((len(scores), 1), 4.0))

    return process


class Slots:
    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, ids, scores):
        scores[:, self.last] -= 5
        self.last = int(ids[0, -1])
        return scores


class Automaton:
    """Steps on by one token a call, and holds what cannot be copied, as a grammar matcher does."""

    def __init__(self) -> None:
        self.handle, self.state = Lock(), 0

    def __call__(self, ids, scores):
        self.state = (self.state + int(ids[0, -1]) + 1) % VOCAB
        return scores.index_fill(1, torch.tensor([self.state]), -torch.inf)


class First:
    """Only the first call is another than all others."""

    def __init__(self) -> None:
        self.begun = Lock()

    def __call__(self, ids, scores):
        return scores - 3 * (torch.arange(scores.shape[-1]) < 5) if self.begun.acquire(blocking=False) else scores


class Choosy:
    """Answers only while the text is short."""

    def __call__(self, ids, scores):
        if ids.shape[1] > 5:
            raise KeyError("unknown text")
        return scores


class Mine(TopKLogitsWarper):
    """A subclass may do anything."""


def pure(ids, scores):
    return scores.index_fill(1, ids[:, -1] if len(ids) == 1 else ids[0, -1:], -torch.inf) if len(ids) == 1 else torch.cat(
        [pure(one.unsqueeze(0), score.unsqueeze(0)) for one, score in zip(ids, scores, strict=True)]
    )  # fmt: skip


MAKE = [closure, Slots, Automaton, First]


@pytest.mark.parametrize("make", [*MAKE, Choosy, lambda: Mine(3), lambda: pure])
def test_what_does_not_call_itself_stateless_is_refused_by_name(make):
    processor = make()
    name = getattr(processor, "__name__", type(processor).__name__)
    with pytest.raises(ConfigError, match=rf"logits processor '?{name}'? .*draftwood\.Stateless"):
        Sampling(processors=[processor])


@pytest.mark.parametrize("make", MAKE)
def test_what_calls_itself_stateless_and_is_not_is_found(make):
    with pytest.raises(ConfigError, match="keeps state between calls"):
        generate(draftwood.Stateless(make()))


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match=r"Choosy cannot be tried.*KeyError.*unknown text"):
        generate(draftwood.Stateless(Choosy()))


def test_a_processor_without_state_may_say_so():
    class Says:
        stateless = True

        def __call__(self, ids, scores):
            return pure(ids, scores)

    @draftwood.Stateless
    def decorated(ids, scores):
        return pure(ids, scores)

    wanted = generate(decorated, "ar")
    assert wanted == generate(Says(), "ar") == generate(decorated, "ngram") == generate(Says(), "ngram")
    assert wanted != generate(TopKLogitsWarper(VOCAB), "ar"), "this processor changes nothing"
    assert all(a != b for a, b in pairwise(wanted))


def test_the_word_stateless_must_be_true():
    class Denies(Slots):
        stateless = False

    with pytest.raises(ConfigError, match="Denies"):
        Sampling(processors=[Denies()])


def test_a_penalty_that_counts_each_row_from_its_own_place_is_bound_to_the_batch():
    with pytest.raises(ConfigError, match="RepetitionPenaltyLogitsProcessor is bound to the rows"):
        Sampling(processors=[RepetitionPenaltyLogitsProcessor(1.5, torch.tensor([1, 2]))])


def test_a_declared_processor_stands_behind_what_comes_before_it():
    """The probe asks about texts that the whole list allows, not about any."""

    @draftwood.Stateless
    def choosy(ids, scores):
        if not set(ids[0, 5:].tolist()) <= {6, 7}:
            raise KeyError("a text that the first processor forbids")
        return scores

    def only(row, ids):
        return [6, 7]

    engine = decoder(tiny_runner(VOCAB, 1), None, "ngram")
    request = Request(prompt=[3, 4, 5, 3, 4], seed=1, limits=Limits(max_new_tokens=8))
    texts = engine.generate([request], Sampling(processors=[Constrained(only, 1), choosy]))
    assert set(texts[0].token_ids) <= {6, 7}


class Counting(LogitsProcessor):
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, ids, scores):
        self.calls += 1
        return scores.index_fill(1, torch.tensor([self.calls % WORDS]), 20.0)


def plain(**settings):
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    return tiny("llama", dtype=torch.float32).generate(ids, max_new_tokens=6, do_sample=False, **settings)


def test_hf_refuses_them_too():
    with pytest.raises(ConfigError, match="Counting"):
        plain(custom_generate=recipe(), logits_processor=LogitsProcessorList([Counting()]))
    declared = LogitsProcessorList([draftwood.Stateless(Counting())])
    with pytest.raises(ConfigError, match="keeps state"):
        plain(custom_generate=recipe(), logits_processor=declared)


def test_a_prefix_function_with_a_state_is_found():
    seen: list[int] = []

    def allowed(row, ids):
        seen.append(1)
        return [5 + len(seen) % 7, 20, 21]

    with pytest.raises(ConfigError, match="PrefixConstrainedLogitsProcessor keeps state"):
        plain(custom_generate=recipe(), prefix_allowed_tokens_fn=allowed)


def test_a_prefix_function_without_a_state_needs_no_word():
    def allowed(row, ids):
        return [int(ids[-1]) + 1, 20, 21]

    wanted = plain(prefix_allowed_tokens_fn=allowed)
    assert torch.equal(plain(custom_generate=recipe(), prefix_allowed_tokens_fn=allowed), wanted)


def test_an_answer_that_depends_on_the_scores_of_other_rows_is_found() -> None:
    batchy = draftwood.Stateless(lambda ids, scores: scores - scores.mean(0, keepdim=True))
    with pytest.raises(ConfigError, match="is bound to the rows of one batch"):
        generate(batchy)


@pytest.mark.parametrize("wrong", [lambda ids, scores: None, lambda ids, scores: scores[:, :3]], ids=["none", "short"])
def test_an_answer_of_another_shape_is_named(wrong) -> None:
    with pytest.raises(ConfigError, match=r"logits processor .* returned .*: return a tensor of the shape of its scores"):
        generate(draftwood.Stateless(wrong))
