"""In a tolerant batch an error of one row ends this row only, and an error of the drafter costs its drafts only."""

import pytest
import torch

from draftwood.core.errors import NumericsError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.sampling.processors import Stateless
from draftwood.sampling.settings import Sampling
from tests.engine.test_batch import VOCAB, alone, causal, method_id
from tests.helpers import decoder

METHODS = [
    ("chain", "3", "recursive"), ("rsd-s", "2x3", "traversal"), ("adaptive", None, "coupled"), ("ngram", "3", "coupled"),
]  # fmt: skip
PROMPTS = [[2, 3, 4], [5, 6], [7, 8, 9, 7, 8]]


class RefusedError(Exception):
    """What the tests raise."""


def engine(method=METHODS[0]):
    return decoder(*causal("torch"), *method)


def requests(**second):
    """Three requests; the second has other settings."""
    limits = Limits(max_new_tokens=12)
    own = [{}, second, {}]
    return [Request(prompt=prompt, seed=i, limits=limits, **own[i]) for i, prompt in enumerate(PROMPTS)]


def written(made, given, samplings, act=lambda step: None):
    """The texts, the errors, and how often the drafter failed."""
    texts = {i: [] for i in range(len(given))}
    errors = {}
    with made.batch(tolerant=True) as batch:
        for request, sampling in zip(given, samplings, strict=True):
            batch.add(request, sampling)
        for step in range(99):
            if not len(batch):
                break
            act(step)
            for piece in batch.step():
                assert piece.row not in errors
                texts[piece.row] += piece.tokens
            errors |= batch.failed
        return texts, errors, batch.draft_errors


def raises_late(ids, scores):
    if ids.shape[1] > len(PROMPTS[1]) + 4:
        raise RefusedError("a processor")
    return scores


def criterion(tokens):
    if len(tokens) > 6:
        raise RefusedError("a criterion")
    return False


def nothing_left(ids, scores):
    return scores if ids.shape[1] < 5 else torch.full_like(scores, -torch.inf)


@pytest.mark.parametrize("part", [raises_late, nothing_left, criterion], ids=["raises", "leaves nothing", "criterion"])
@pytest.mark.parametrize("method", METHODS, ids=method_id)
def test_a_processor_or_criterion_that_fails_ends_its_row_only(method, part):
    made, given = engine(method), requests(criterion=criterion if part is criterion else None)
    processors = [] if part is criterion else [Stateless(part)]
    samplings = [Sampling(), Sampling(processors=processors), Sampling(temperature=0.0)]
    whole = [alone(made, request, sampling, None) for request, sampling in zip(given[::2], samplings[::2], strict=True)]
    texts, errors, draft_errors = written(made, given, samplings)
    assert (texts[0], texts[2]) == tuple(whole)
    assert list(errors) == [1]
    assert isinstance(errors[1], NumericsError if part is nothing_left else RefusedError)
    assert len(texts[1]) < 12
    assert draft_errors == 0
    with pytest.raises((RefusedError, NumericsError)):
        made.generate(given[1:2], samplings[1])


def broken(runner, monkeypatch, first, row, rows):
    """From its ``first`` call on a runner returns NaN scores for a row, while there are so many rows."""
    extend, calls = runner.extend, []

    def nan(tokens, depths, ancestors):
        scores = extend(tokens, depths, ancestors)
        calls.append(1)
        if len(calls) >= first and len(tokens) == rows:
            scores.logits[row] = torch.nan
        return scores

    monkeypatch.setattr(runner, "extend", nan)


@pytest.mark.parametrize("method", METHODS, ids=method_id)
def test_scores_of_one_row_that_are_nan_end_this_row_only(method, monkeypatch):
    made, given = engine(method), requests()
    samplings = [Sampling(), Sampling(top_k=4), Sampling(temperature=0.0)]
    whole = [alone(made, request, sampling, None) for request, sampling in zip(given, samplings, strict=True)]
    broken(made.pipeline.target, monkeypatch, 3, row=1, rows=3)
    texts, errors, _ = written(made, given, samplings)
    assert (texts[0], texts[2]) == (whole[0], whole[2])
    assert {row: type(error) for row, error in errors.items()} == {1: NumericsError}
    assert texts[1] == whole[1][: len(texts[1])]


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize("method", METHODS[:3], ids=method_id)
def test_a_row_without_a_sound_draft_is_written_by_plain_decoding(method, monkeypatch):
    made, given = engine(method), requests()
    whole = [alone(made, request, Sampling(temperature=0.0), None) for request in given]
    broken(made.pipeline.drafter.runner, monkeypatch, 1, row=1, rows=3)
    texts, errors, draft_errors = written(made, given, [Sampling(temperature=0.0)] * 3)
    assert ([texts[i] for i in range(3)], errors) == (whole, {})
    assert draft_errors > 0


@pytest.mark.parametrize(("name", "first"), [("draft", 2), ("commit", 2), ("set_rows", 0), ("set_rows", 2)])
def test_texts_go_on_without_a_drafter_that_raises(name, first, monkeypatch):
    made, given = engine(("shared-noise", "2-2", "coupled")), requests()
    whole = [alone(made, request, Sampling(), None) for request in given]
    drafter = made.pipeline.drafter
    part = drafter if name in ("draft", "commit") else drafter.runner
    own, raising = getattr(part, name), []

    def fails(*arguments):
        if raising:
            raise RefusedError(name)
        return own(*arguments)

    monkeypatch.setattr(part, name, fails)
    samplings = [Sampling()] * 3
    texts, errors, draft_errors = written(made, given, samplings, lambda step: raising.append(1) if step == first else None)
    assert ([texts[i] for i in range(3)], errors, draft_errors) == (whole, {}, 1)
    with pytest.raises(RefusedError):
        made.generate(given, Sampling())
    monkeypatch.undo()
    assert [found.token_ids for found in made.generate(given, Sampling())] == whole


def test_a_target_that_raises_ends_the_batch(monkeypatch):
    made = engine()
    monkeypatch.setattr(made.pipeline.target, "extend", lambda *given: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        written(made, requests(), [Sampling()] * 3)


def test_errors_are_raised_where_nobody_looks_for_them():
    with engine().batch() as batch:
        batch.add(requests()[1], Sampling(processors=[Stateless(raises_late)]))
        with pytest.raises(RefusedError):
            list(iter(batch.step, []))
        assert batch.failed == {}
        with pytest.raises(ValueError, match=f"logit_bias names token {VOCAB}"):
            batch.add(requests()[0], Sampling(logit_bias={VOCAB: 1.0}))
