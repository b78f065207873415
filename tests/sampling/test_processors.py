"""Processors are functions of one row's text and scores, or are refused before they can change the distribution."""

from itertools import pairwise
from threading import Lock

import pytest
import torch
from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor, SequenceBiasLogitsProcessor, TopKLogitsWarper
from transformers import PrefixConstrainedLogitsProcessor as Constrained
from transformers import SynthIDTextWatermarkLogitsProcessor as SynthID
from transformers.generation.logits_process import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

import draftwood
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.sampling.processors import ByRow
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_runner
from tests.hf.test_hf import ours, plain, target

VOCAB = 16


def generate(*processors, method="ngram"):
    engine = decoder(tiny_runner(VOCAB, 1), None, method)
    request = Request(prompt=[3, 4, 5, 3, 4], seed=1, limits=Limits(max_new_tokens=8))
    return engine.generate([request], Sampling(processors=list(processors)))[0].token_ids


def closure():
    """Keeps the texts that it saw in a list outside of itself."""
    seen = []

    def process(ids, scores):
        seen.append(int(ids[0, -1]))
        return scores.index_add(1, torch.tensor([len(seen) % VOCAB]), torch.full((len(scores), 1), 4.0))

    return process


class Automaton:
    """Steps on by one token a call, and holds what cannot be copied, as a grammar matcher does."""

    def __init__(self):
        self.handle, self.state = Lock(), 0

    def __call__(self, ids, scores):
        self.state = (self.state + int(ids[0, -1]) + 1) % VOCAB
        return scores.index_fill(1, torch.tensor([self.state]), -torch.inf)


class First:
    """Only the first call is another than all others."""

    def __init__(self):
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


def alternating(ids, scores):
    """Never the last token again."""
    return scores.scatter(1, ids[:, -1:], -torch.inf)


def synthid():
    return SynthID(
        ngram_len=3, keys=[1, 2], sampling_table_size=16, sampling_table_seed=0, context_history_size=8,
        skip_first_ngram_calls=False, device=torch.device("cpu"),
    )  # fmt: skip


def denying():
    processor = First()
    processor.stateless = False
    return processor


STATEFUL = [closure, Automaton, First]


@pytest.mark.parametrize("make", [*STATEFUL, Choosy, denying, lambda: Mine(3), lambda: alternating])
def test_what_does_not_call_itself_stateless_is_refused_by_name(make):
    processor = make()
    name = getattr(processor, "__name__", type(processor).__name__)
    for given in (processor, ByRow([processor])):
        with pytest.raises(ConfigError, match=rf"logits processor '?{name}'? .*draftwood\.Stateless"):
            Sampling(processors=[TopKLogitsWarper(3), given])


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (synthid(), "keeps state between calls"),
        (UnbatchedClassifierFreeGuidanceLogitsProcessor(2.0, None), "keeps state between calls"),
        (RepetitionPenaltyLogitsProcessor(1.5, torch.tensor([1, 2])), "is bound to the rows"),
        (Constrained(lambda row, _: [1, 2 + row], 2), "is bound to the rows"),
        (EncoderRepetitionPenaltyLogitsProcessor(1.5, torch.tensor([[1, 2]])), "is bound to the rows"),
        (EncoderNoRepeatNGramLogitsProcessor(2, torch.tensor([[1, 2, 3]])), "is bound to the rows"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_known_to_keep_state_or_to_look_at_other_rows_is_refused_by_name(processor, said):
    with pytest.raises(ConfigError, match=f"logits processor {type(processor).__name__} {said}"):
        Sampling(processors=[processor])


@pytest.mark.parametrize("make", STATEFUL)
def test_what_calls_itself_stateless_and_is_not_is_found(make):
    with pytest.raises(ConfigError, match="keeps state between calls"):
        generate(TopKLogitsWarper(9), draftwood.Stateless(make()))


@pytest.mark.parametrize(
    "looks",
    [
        draftwood.Stateless(lambda ids, scores: scores - scores.mean(0, keepdim=True)),
        draftwood.Stateless(lambda ids, scores: scores - len(ids) * (torch.arange(VOCAB) == 3)),
        draftwood.Stateless(lambda ids, scores: scores + torch.zeros(4, 1)),
        Constrained(lambda row, _: [1, 2 + row], 1),
    ],
    ids=["scores", "number of rows", "whole batch", "number of the row"],
)
def test_what_looks_at_other_rows_is_found_before_the_first_token(looks):
    with pytest.raises(ConfigError, match=r"logits processor .* is bound to the rows of one batch"):
        generate(looks)


@pytest.mark.parametrize("wrong", [lambda ids, scores: None, lambda ids, scores: scores[:, :3]], ids=["none", "short"])
def test_an_answer_of_another_shape_is_named(wrong):
    with pytest.raises(ConfigError, match=r"logits processor .* returned .*: return a tensor of the shape of its scores"):
        generate(draftwood.Stateless(wrong))


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match=r"Choosy cannot be tried.*KeyError.*unknown text"):
        generate(draftwood.Stateless(Choosy()))


def test_a_processor_without_state_may_say_so():
    class Says:
        stateless = True

        def __call__(self, ids, scores):
            return alternating(ids, scores)

    decorated = draftwood.Stateless(alternating)
    wanted = generate(decorated, method="ar")
    assert wanted == generate(Says(), method="ar") == generate(decorated) == generate(Says())
    assert wanted != generate(TopKLogitsWarper(VOCAB), method="ar"), "this processor changes nothing"
    assert all(a != b for a, b in pairwise(wanted))


def test_a_declared_processor_stands_behind_what_comes_before_it():
    """The probe asks about texts that the whole list allows, not about any."""

    @draftwood.Stateless
    def choosy(ids, scores):
        if not set(ids[0, 5:].tolist()) <= {6, 7}:
            raise KeyError("a text that the first processor forbids")
        return scores

    assert set(generate(Constrained(lambda row, ids: [6, 7], 1), choosy)) <= {6, 7}


def test_a_processor_that_is_asked_is_not_changed():
    processor = SequenceBiasLogitsProcessor({(1,): 2.0})
    Sampling(processors=[processor])
    assert not processor.prepared_bias_variables


def test_hf_refuses_them_too():
    for processor, said in ((Automaton(), "Automaton"), (draftwood.Stateless(Automaton()), "keeps state")):
        with pytest.raises(ConfigError, match=said):
            ours(target(), recipe(), logits_processor=LogitsProcessorList([processor]))


def test_a_prefix_function_with_a_state_is_found_and_one_without_needs_no_word():
    seen = []

    def counting(row, ids):
        seen.append(1)
        return [5 + len(seen) % 7, 20, 21]

    with pytest.raises(ConfigError, match="PrefixConstrainedLogitsProcessor keeps state"):
        ours(target(), recipe(), prefix_allowed_tokens_fn=counting)
    ids = {"input_ids": torch.tensor([[5, 6, 7, 5, 6]])}
    allowed = {"prefix_allowed_tokens_fn": lambda row, ids: [int(ids[-1]) + 1, 20, 21], "max_new_tokens": 6}
    assert torch.equal(ours(target(), recipe(), ids, **allowed), plain(target(), ids, **allowed))
