"""Errors that depend on drawn tokens: texts that go on keep the target's joint distribution, enumerated as in rung 3.

A drafter that raises when it reads a token, and a target or a processor that fails after a token. Whether they fail in a
round depends on what was drafted, so a tree that is dropped for it biases what follows.
"""

from collections import defaultdict
from contextlib import contextmanager, nullcontext
from functools import cache

import pytest
import torch

from draftwood.core.errors import ModelError
from draftwood.core.limits import Limits
from draftwood.draft.none import root_alone
from draftwood.engine.requests import Request
from draftwood.exactness.tape import TapeSource, enumerate_distribution, total_variation
from draftwood.sampling.processors import Stateless
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_runner
from tests.ladder.test_rung3_tape import EXACT, SHARED, WRONG, at_temperature, reference_distribution, tampered

VOCAB = 3
LENGTH = 3
PROMPT = (0, 1)
BAD = 2  # the token that breaks something
FAILED = ("failed",)  # in place of a text that ended with an error


class BadTokenError(Exception):
    """What a broken part raises."""


@cache
def runners():
    """A target, and a draft model that raises when a forward reads the bad token below the root."""
    target, draft = tiny_runner(VOCAB, 1), tiny_runner(VOCAB, 2, layers=1)
    extend = draft.extend

    def raises(tokens, depths, ancestors):
        if bool(((tokens == BAD) & (depths > 0)).any()):
            raise BadTokenError("no such token")
        return extend(tokens, depths, ancestors)

    draft.extend = raises
    return target, draft


def engine(method, shape, verifier, **more):
    return decoder(*runners(), method, shape, verifier, **more)


def outcomes(made, sampling, shared=None, rows=1):
    """Each text with its probability. A drafter that raises is switched off for a whole batch, which then has one row."""
    request = Request(prompt=PROMPT, limits=Limits(max_new_tokens=LENGTH))

    def run(tapes):
        texts = [()] * len(tapes)
        for tape in tapes:
            tape.end = len(PROMPT) + LENGTH
        with made.batch(noise=TapeSource(tapes, shared), tolerant=True) as batch:
            for _ in tapes:
                batch.add(request, sampling)
            while len(batch):
                for piece in batch.step():
                    texts[piece.row] += tuple(piece.tokens)
                for row in batch.failed:
                    texts[row] = FAILED
        return texts

    distribution, _ = enumerate_distribution(run, rows)
    return distribution


def wanted(*, fails=False):
    """The target alone; if it fails, so does every text with a token after the bad one."""
    whole = reference_distribution(runners()[0].model, LENGTH, at_temperature(1.0), prompt=PROMPT)
    found = defaultdict(float)
    for text, p in whole.items():
        found[FAILED if fails and BAD in text[:-1] else text] += p
    return found


@pytest.mark.parametrize(("method", "shape", "verifier"), [
    ("chain", "2", "recursive"), ("chain", "3", "traversal"), ("rsd-c", "2-1", "recursive"), ("rsd-s", "2x2", "traversal"),
    ("iid", "1x2", "recursive"),
])  # fmt: skip
def test_levels_that_were_drawn_before_the_drafter_raises_stay(method, shape, verifier):
    made = engine(method, shape, verifier)
    assert total_variation(outcomes(made, Sampling()), wanted()) < EXACT


def test_control_a_tree_that_is_dropped_when_its_drafter_raises():
    def drops(tree):
        return tree if tree.error is None else root_alone(tree.tokens[:, 0], error=tree.error)

    made = tampered(engine("chain", "2", "recursive"), drops)
    assert total_variation(outcomes(made, Sampling()), wanted()) > WRONG


@pytest.mark.parametrize(("method", "shape"), [("shared-noise", "2-2"), ("adaptive", None), ("chain", "2")])
def test_a_verifier_that_matches_needs_no_tree(method, shape):
    plain = outcomes(engine("ar", None, "coupled"), Sampling(), SHARED)
    assert total_variation(outcomes(engine(method, shape, "coupled"), Sampling(), SHARED), plain) < EXACT


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_a_drawn_tree_that_cannot_be_kept_ends_its_texts(verifier):
    """The best of its nodes are known only with the next level, so texts go on by what was never drawn, or not at all."""
    made, errors = engine("dynamic", None, verifier, nodes=3), []
    for seed in range(20):
        with made.batch(tolerant=True) as batch:
            for temperature in (1.0, 0.0):
                request = Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=12))
                batch.add(request, Sampling(temperature=temperature))
            while len(batch):
                batch.step()
                assert batch.failed.keys() <= {0}
                errors += batch.failed.values()
    assert errors
    assert {type(error) for error in errors} == {ModelError}
    assert "the drafter failed and its tree, which was drawn, is lost (no such token)" in str(errors[0])


def sound_drafts(method, shape, verifier, **more):
    return decoder(runners()[0], tiny_runner(VOCAB, 2, layers=1), method, shape, verifier, **more)


@contextmanager
def nan_after_the_bad_token():
    """The target's scores are NaN there."""
    extend = runners()[0].extend

    def broken(tokens, depths, ancestors):
        scores = extend(tokens, depths, ancestors)
        scores.logits[tokens[:, -scores.logits.shape[1] :] == BAD] = torch.nan
        return scores

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners()[0], "extend", broken)
        yield


CASES = [("ar", None, "recursive"), ("chain", "2", "recursive"), ("rsd-s", "2x2", "traversal"), ("iid", "2x2", "recursive")]


@Stateless
def raises_after_the_bad_token(ids, scores):
    if any(row[-1] == BAD for row in ids.tolist()):
        raise BadTokenError("after this token")
    return scores


@pytest.mark.parametrize(("method", "shape", "verifier"), CASES)
@pytest.mark.parametrize("fails", ["scores", "processor"])
def test_scores_that_are_nan_or_a_processor_that_raises_end_the_texts_that_get_there(fails, method, shape, verifier):
    made = sound_drafts(method, shape, verifier)
    with nan_after_the_bad_token() if fails == "scores" else nullcontext():
        found = outcomes(made, Sampling(processors=[raises_after_the_bad_token] if fails == "processor" else []), rows=512)
    assert total_variation(found, wanted(fails=True)) < EXACT


@pytest.mark.parametrize(("method", "shape", "verifier"), [*CASES, ("shared-noise", "2-2", "coupled")])
def test_a_text_that_has_ended_cannot_fail_after_its_end(method, shape, verifier):
    """Nodes below the end of a text, and the end's own, give it no token."""
    made = sound_drafts(method, shape, verifier, eos=(BAD,))
    expected = reference_distribution(runners()[0].model, LENGTH, at_temperature(1.0), eos=BAD, prompt=PROMPT)
    requests = [Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=8)) for seed in range(40)]
    with nan_after_the_bad_token():
        if verifier != "coupled":
            assert total_variation(outcomes(made, Sampling(), rows=512), expected) < EXACT
        found = made.generate(requests, Sampling())  # where errors are raised
    assert {one.finish_reason for one in found} == {"stop", "length"}


def test_control_texts_that_fail_where_only_a_draft_gets(monkeypatch):
    monkeypatch.setattr(
        "draftwood.core.log_probs.Pending.dead_end",
        lambda self, row, path: next(((0, e) for (r, _), e in self.dead_ends.items() if r == row), None),
    )

    made = sound_drafts("chain", "2", "recursive")
    found = outcomes(made, Sampling(processors=[raises_after_the_bad_token]), rows=512)
    assert total_variation(found, wanted(fails=True)) > WRONG
