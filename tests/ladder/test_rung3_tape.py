"""Rung 3: the exact joint distribution of whole texts through the real engine, by forking on every random choice.

Trees, masks, cache, compaction, extra tokens, stop rules and ragged batches all take part: every branch of the tape is a row
of one batch. Two rounds at the least; a two-layer float64 transformer with a handful of tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.limits import Limits
from draftwood.core.log_probs import LogProbs
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.exactness.tape import TapeSource, enumerate_distribution, total_variation
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.helpers import decoder, tiny_runner

EXACT = 1e-9
WRONG = 1e-4  # a negative control must be at least this far off
PROMPT = (0, 1)


@cache
def runners(vocab: int) -> tuple[TorchRunner, TorchRunner]:
    return tiny_runner(vocab, 1), tiny_runner(vocab, 2, layers=1)


def engine_distribution(
    engine: Decoder, length: int, sampling: Sampling, shared=None, prompt=PROMPT, batch=512, rounding=1e-9, nodes=None,
    source=TapeSource,
):  # fmt: skip
    request = Request(prompt=prompt, limits=Limits(max_new_tokens=length), nodes=nodes)

    def run(tapes):
        for tape in tapes:
            tape.end = len(prompt) + length
        results = engine.generate([request] * len(tapes), sampling, noise=source(tapes, shared))
        return [tuple(r.token_ids) for r in results]

    distribution, _branches = enumerate_distribution(run, batch, rounding=rounding)
    return distribution


def reference_distribution(model, length: int, distribution_of_scores, eos: int | None = None, prompt=PROMPT):
    """The target alone: no cache, no tree, one forward per prefix."""
    out: dict[tuple[int, ...], float] = {}

    def walk(text: tuple[int, ...], weight: float) -> None:
        if len(text) == length or (eos is not None and eos in text):
            out[text] = weight
            return
        with torch.no_grad():
            scores = model(input_ids=torch.tensor([[*prompt, *text]])).logits[0, -1]
        for token, p in enumerate(distribution_of_scores(scores, [*prompt, *text]).tolist()):
            if p > 0:
                walk((*text, token), weight * p)

    walk((), 1.0)
    return out


def at_temperature(temperature: float):
    return lambda scores, _text: (scores / temperature).softmax(-1)


def distance(
    engine: Decoder, length: int, sampling: Sampling | None = None, of_scores=None, *, eos=None, prompt=PROMPT, **more
) -> float:
    """Total variation between the texts of an engine and those of its target alone, at temperature 1 unless others are
    given."""
    model = engine.pipeline.target.model
    expected = reference_distribution(model, length, of_scores or at_temperature(1.0), eos, prompt)
    return total_variation(engine_distribution(engine, length, sampling or Sampling(), prompt=prompt, **more), expected)


CASES = [
    ("ar", None, 3, 3), ("chain", "2", 3, 4), ("chain", "3", 2, 4), ("iid", "2x2", 2, 4), ("iid", "3x1", 3, 3),
    ("rsd-c", "2-1", 2, 4), ("rsd-c", "2-2", 2, 3), ("rsd-c", "3", 3, 3), ("rsd-s", "2x2", 2, 4), ("rsd-s", "2x2", 3, 3),
    ("rsd-s", "3x2", 2, 4), ("ngram", "2", 3, 4),
]  # fmt: skip


BOTH = pytest.mark.parametrize("verifier", ["recursive", "traversal"])


@BOTH
@pytest.mark.parametrize(("method", "shape", "vocab", "length"), CASES)
def test_drawn_trees_give_the_targets_joint_distribution(method, shape, vocab, length, verifier):
    assert distance(decoder(*runners(vocab), method, shape, verifier), length) < EXACT


@BOTH
@pytest.mark.parametrize(
    ("method", "shape", "nodes"),
    [("dynamic", None, 1), ("dynamic", None, 2), ("dynamic", None, 3), ("rsd-c", "2-1", 3), ("rsd-s", "2x2", 2)],
)
def test_a_drawn_tree_that_a_request_cuts_is_exact(method, shape, nodes, verifier):
    engine = decoder(*runners(3), method, shape, verifier, nodes=4 if shape is None else None)
    assert distance(engine, 3, nodes=nodes) < EXACT


@BOTH
@pytest.mark.parametrize(("method", "shape"), [("chain", "2"), ("rsd-s", "2x2"), ("iid", "2x2")])
def test_distribution_under_temperature_and_top_p(method, shape, verifier):
    def warped(scores, _text):
        distribution = (scores / 0.7).softmax(-1)
        order = distribution.argsort(descending=True)
        kept = (distribution[order].cumsum(0) - distribution[order] < 0.8).nonzero().flatten()
        out = torch.zeros_like(distribution)
        out[order[kept]] = distribution[order[kept]]
        return out / out.sum()

    engine = decoder(*runners(3), method, shape, verifier)
    assert distance(engine, 3, Sampling(temperature=0.7, top_p=0.8), warped) < EXACT


@BOTH
@pytest.mark.parametrize(("method", "shape"), [("chain", "2"), ("rsd-c", "2-1"), ("rsd-s", "2x2")])
def test_penalties_see_every_nodes_own_prefix(method, shape, verifier):
    def penalised(scores, text):
        scores = scores.clone()
        for token in set(text):
            scores[token] = scores[token] * 1.7 if scores[token] < 0 else scores[token] / 1.7
        for token in text[len(PROMPT) :]:
            scores[token] -= 0.3
        for token in set(text[len(PROMPT) :]):
            scores[token] -= 0.4
        return scores.softmax(-1)

    sampling = Sampling(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3)
    assert distance(decoder(*runners(3), method, shape, verifier), 3, sampling, penalised) < EXACT


@BOTH
@pytest.mark.parametrize(("method", "shape"), [("chain", "2"), ("rsd-s", "2x2"), ("rsd-c", "2-1")])
def test_an_end_token_inside_an_accepted_block_ends_the_text(method, shape, verifier):
    engine = decoder(*runners(3), method, shape, verifier, eos=(2,))
    assert distance(engine, 4 if method == "chain" else 3, eos=2) < EXACT


SHARED = torch.tensor([[0.3, -0.2, 2.9], [-0.8, 3.4, 0.1], [3.1, 0.2, -0.5]], dtype=torch.float64)


def coupled_distance(engine: Decoder, length: int) -> float:
    """Total variation between the texts of an engine and those of plain decoding on the same shared noise."""
    plain = decoder(engine.pipeline.target, None, "ar", None, "coupled")
    expected = engine_distribution(plain, length, Sampling(), SHARED)
    assert len(expected) > length
    return total_variation(engine_distribution(engine, length, Sampling(), SHARED), expected)


@pytest.mark.parametrize(("method", "shape", "nodes"), [
    ("shared-noise", "2-2", None), ("shared-noise", "1-1-1", None), ("shared-noise", None, 5), ("shared-noise", "2x3", 4),
    ("rsd-c", "2-1", None), ("ngram", "2", None), ("chain", "2", None), ("iid", "2x1", None), ("rsd-s", "2x1", None),
    ("adaptive", None, None),
])  # fmt: skip
def test_coupled_text_is_plain_decodings_text_for_every_noise(method, shape, nodes):
    """The text is a function of the shared noise alone: same distribution, branch by branch, as plain decoding on that
    noise."""
    length = 4 if method in ("shared-noise", "adaptive", "ngram") else 3
    assert coupled_distance(decoder(*runners(3), method, shape, "coupled", nodes=nodes), length) < EXACT


# ---- negative controls: each breaks one rule of the trade and must be seen ----


class Wrapped:
    """A drafter whose finished trees are tampered with."""

    def __init__(self, inner, tamper, draw=None):
        self.inner, self.tamper = inner, tamper
        self.name, self.draw, self.runner = "tampered", draw or inner.draw, inner.runner

    def commit(self, this_round):
        self.inner.commit(this_round)

    def draft(self, root, sampler, rng, limits):
        return self.tamper(self.inner.draft(root, sampler, rng, limits))


def sort_siblings(tree):
    """Put the likelier of two siblings first (nodes 1 and 2 of a 2-branching tree without grandchildren)."""
    if tree.size < 3:
        return tree
    tokens = tree.tokens.clone()
    p = tree.draft_logp[:, 0].gather(1, tokens[:, 1:3])
    tokens[:, 1:3] = torch.where(p[:, :1] < p[:, 1:], tokens[:, 1:3].flip(1), tokens[:, 1:3])
    return replace(tree, tokens=tokens)


def drop_unlikely(tree):
    """Forget drawn nodes that the draft finds unlikely."""
    p = tree.draft_logp[:, :1].squeeze(1).gather(1, tree.tokens) if tree.draft_logp is not None else None
    valid = tree.valid.clone()
    if p is not None:
        valid[:, 1:] &= p[:, 1:] > -1.2
    return replace(tree, valid=valid)


def other_temperature(tree):
    """Record another distribution than the one that was drawn from."""
    if (logp := tree.draft_logp) is None:
        return tree
    return replace(tree, draft_log_probs=LogProbs(logp=(logp * 0.7).log_softmax(-1), vocab=logp.shape[-1]))


@pytest.mark.parametrize("verifier", [Recursive, Traversal])
@pytest.mark.parametrize("tamper", [sort_siblings, drop_unlikely, other_temperature])
def test_control_tampering_with_drawn_trees_is_seen(tamper, verifier):
    target, draft = runners(3)
    inner = LevelDrafter(draft, ConstantBranching((2,)))
    assert distance(Decoder(target, inner, verifier()), 2) < EXACT
    assert distance(Decoder(target, Wrapped(inner, tamper), verifier()), 2) > WRONG


def test_control_shared_noise_under_recursive_rejection_is_refused_and_wrong():
    target, draft = runners(3)
    engine = decoder(target, draft, "shared-noise", "2-2", "coupled")
    with pytest.raises(Exception, match="recursive"):
        Decoder(target, engine.pipeline.drafter, Recursive())
    lying = Wrapped(engine.pipeline.drafter, lambda tree: replace(tree, draw=Draw.POINT_MASS), Draw.POINT_MASS)
    assert coupled_distance(Decoder(target, lying, Recursive()), 2) > WRONG


class Misplaced(ReadsAtOnce):
    """A target runner that keeps the wrong nodes of an accepted path, as a cache without compaction would."""

    reads_source = False
    pads = True

    def __init__(self, inner):
        self.inner = inner
        self.vocab_size, self.max_length, self.device = inner.vocab_size, inner.max_length, inner.device
        self.model = inner.model

    @property
    def forward_seconds(self):
        return self.inner.forward_seconds

    def clear(self):
        self.inner.clear()

    def set_rows(self, rows):
        self.inner.set_rows(rows)

    def extend(self, tokens, depths, ancestors):
        return self.inner.extend(tokens, depths, ancestors)

    def commit(self, nodes, hidden=None):
        self.inner.commit([list(range(len(path))) for path in nodes])


def test_control_an_uncompacted_cache_is_seen():
    target, draft = runners(2)
    assert distance(decoder(Misplaced(target), draft, "rsd-c", "2-1"), 4) > WRONG


def test_control_drawing_the_extra_token_from_the_target_is_seen():
    target, draft = runners(3)

    class Naive:
        name, lossless, draws, reads, greedy_only = "naive", True, Recursive.draws, "probabilities", False

        def verify(self, tree, target_logp, rng):
            verdict = Recursive().verify(tree, target_logp, rng)
            last = torch.tensor([max([0, *path]) for path in verdict.paths])
            distribution = target_logp.take_along_dim(last[:, None, None], dim=1).squeeze(1).exp()
            return replace(verdict, next_tokens=rng.token(distribution).tolist())

    assert distance(Decoder(target, LevelDrafter(draft, ConstantBranching((1, 1))), Naive()), 2) > WRONG


def test_control_noise_that_changes_between_rounds_breaks_the_coupling():
    """Plain decoding and coupled decoding agree only because the noise of a position is the same in every round."""
    target, draft = runners(3)

    class Shifting(TapeSource):
        """Other noise for a position whenever a round begins there."""

        def at(self, positions):
            rng = super().at(positions)
            shared = rng.shared

            def shifted(offset, count, vocab, tokens=None):
                noise = shared(offset, count, vocab, tokens).clone()
                if offset == 0:
                    noise[:, 0] = -noise[:, 0]
                return noise

            rng.shared = shifted
            return rng

        def select(self, rows):
            return Shifting([self.tapes[row] for row in rows], self.shared_noise)

    engine = decoder(target, draft, "shared-noise", "2-2", "coupled")
    plain = decoder(target, None, "ar", None, "coupled")
    ours, theirs = (engine_distribution(one, 4, Sampling(), SHARED, source=Shifting) for one in (engine, plain))
    assert total_variation(ours, theirs) > WRONG
