"""Rung 3: the exact joint distribution of whole texts through the real engine, by forking on every random choice.

Trees, masks, cache, compaction, extra tokens, stop rules and ragged batches all take part: every branch of the tape is a row
of one batch. Two rounds at the least; a two-layer float64 transformer with a handful of tokens.
"""

from dataclasses import replace

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.limits import Limits
from draftwood.core.log_probs import Distributions
from draftwood.draft.level import LevelDrafter
from draftwood.draft.policies import ConstantBranching
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.exactness.tape import TapeSource, enumerate_distribution, total_variation
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from tests.helpers import decoder
from tests.ladder.pairs import END, HIDDEN, START, new_pair, pair
from tests.runners import seq2seq_zoo, zoo

EXACT = 1e-9
WRONG = 1e-4  # a negative control must be at least this far off
PROMPT = (0, 1)
SOURCE = (0, 3, 1, 2, 3)  # of encoder-decoder models
NOISES = torch.tensor([[0.3, -0.2, 2.9, 0.4], [-0.8, 3.4, 0.1, 0.2], [3.1, 0.2, -0.5, 1.7]], dtype=torch.float64)
SHARED = NOISES[:, :3]  # of a vocabulary of three
VERIFIERS = ("recursive", "traversal")
ONE_EACH = {"rsd-s": ("recursive",), "rsd-c": ("traversal",)}
BOTH = pytest.mark.parametrize("verifier", VERIFIERS)


def engine_distribution(
    engine, length, sampling, shared=None, prompt=PROMPT, batch=512, rounding=1e-9, nodes=None,
    source=(), noise=TapeSource,
):  # fmt: skip
    request = Request(prompt=prompt, source=source, limits=Limits(max_new_tokens=length), nodes=nodes)

    def run(tapes):
        for tape in tapes:
            tape.end = len(prompt) + length
        results = engine.generate([request] * len(tapes), sampling, noise=noise(tapes, shared))
        return [tuple(r.token_ids) for r in results]

    distribution, _branches = enumerate_distribution(run, batch, rounding=rounding)
    return distribution


def reference_distribution(model, length, distribution_of_scores, eos=None, prompt=PROMPT, source=()):
    """The target alone: no cache, no tree, one forward per prefix."""
    out = {}

    def walk(text, weight):
        if len(text) == length or (eos is not None and eos in text):
            out[text] = weight
            return
        whole = [*prompt, *text]
        scores = seq2seq_zoo.plain_scores(model, source, whole) if source else zoo.plain_scores(model, whole)
        for token, p in enumerate(distribution_of_scores(scores, whole).tolist()):
            if p > 0:
                walk((*text, token), weight * p)

    walk((), 1.0)
    return out


def at_temperature(temperature):
    return lambda scores, _text: (scores / temperature).softmax(-1)


def start_of(target):
    """The prompt and the source of the texts that a target writes."""
    return {"prompt": (START,), "source": SOURCE} if target.kind.reads_source else {"prompt": PROMPT}


def distance(engine, length, sampling=None, of_scores=None, *, eos=None, prompt=None, **more):
    """Total variation between the texts of an engine and those of its target alone, at temperature 1 unless others are
    given."""
    target = engine.pipeline.target
    start = start_of(target) if prompt is None else {"prompt": prompt}
    expected = reference_distribution(target.model, length, of_scores or at_temperature(1.0), eos, **start)
    return total_variation(engine_distribution(engine, length, sampling or Sampling(), **start, **more), expected)


def engine_of(kind, vocab, method, shape, verifier, *, proposes=None, **more):
    nodes = 4 if method == "dynamic" else None
    return decoder(*pair(kind, vocab, proposes), method, shape, verifier, **{"nodes": nodes, **more})


CASES = [
    *(("model", *case) for case in [
        ("ar", None, 3, 3), ("chain", "2", 3, 4), ("chain", "3", 2, 4), ("iid", "2x2", 2, 4), ("iid", "3x1", 3, 3),
        ("rsd-c", "2", 3, 2), ("rsd-c", "2-1", 2, 4), ("rsd-c", "2-2", 2, 3), ("rsd-c", "3", 3, 3), ("dynamic", "2x2", 3, 3),
        ("rsd-s", "2x2", 2, 4), ("rsd-s", "2x2", 3, 3), ("rsd-s", "3x2", 2, 4), ("ngram", "2", 3, 4),
    ]),
    *(("block", *case) for case in [
        ("block", "1", 3, 3), ("block", "2", 3, 3), ("block", None, 2, 4), ("auto", "2", 2, 4), ("chain", "2", 3, 3),
        ("rsd-c", "2-1", 2, 4), ("rsd-s", "2x2", 2, 4), ("iid", "2x2", 2, 4), ("dynamic", "2x2", 3, 3),
    ]),
    *((kind, *case, 4) for kind in HIDDEN for case in [  # three tokens follow the first round, which reads the prompt
        ("chain", "2", 3), ("rsd-c", "2-1", 3), ("rsd-s", "2x2", 3), ("iid", "2x2", 2), ("dynamic", "2x2", 2),
    ]),
    *(("marian", *case) for case in [
        ("ar", None, 4, 3), ("chain", "2", 4, 3), ("chain", "3", 4, 3), ("rsd-c", "2-1", 4, 3), ("rsd-c", "2-2", 4, 2),
        ("rsd-s", "2x2", 4, 3), ("ngram", "2", 4, 4),
    ]),
]  # fmt: skip


def verifiers(kind, method):
    """A verifier sees the tree alone: the large trees of one kind of draft have one each."""
    return ONE_EACH.get(method, VERIFIERS) if kind in (*HIDDEN, "marian") else VERIFIERS


@pytest.mark.parametrize(
    ("kind", "method", "shape", "vocab", "length", "verifier"),
    [(*case, verifier) for case in CASES for verifier in verifiers(*case[:2])],
)
def test_drawn_trees_give_the_targets_joint_distribution(kind, method, shape, vocab, length, verifier):
    engine = engine_of(kind, vocab, method, shape, verifier)
    assert distance(engine, length) < EXACT
    assert method in ("ar", "ngram") or engine.stats[0].drafted > 0


@pytest.mark.parametrize(("method", "shape", "nodes", "verifier"), [
    ("dynamic", None, 2, "recursive"), ("dynamic", None, 3, "traversal"),
    *((*tree, verifier) for verifier in VERIFIERS for tree in [
        ("dynamic", None, 1), ("rsd-c", "2-1", 3), ("rsd-s", "2x2", 2),
    ]),
])  # fmt: skip
def test_a_drawn_tree_that_a_request_cuts_is_exact(method, shape, nodes, verifier):
    assert distance(engine_of("model", 3, method, shape, verifier), 3, nodes=nodes) < EXACT


def truncated(scores, _text):
    """At temperature 0.7 and top-p 0.8."""
    distribution = (scores / 0.7).softmax(-1)
    order = distribution.argsort(descending=True)
    kept = (distribution[order].cumsum(0) - distribution[order] < 0.8).nonzero().flatten()
    out = torch.zeros_like(distribution)
    out[order[kept]] = distribution[order[kept]]
    return out / out.sum()


def penalised(scores, text):
    """Penalties see the drafted tokens before each place."""
    scores = scores.clone()
    for token in set(text):
        scores[token] = scores[token] * 1.7 if scores[token] < 0 else scores[token] / 1.7
    for token in text[len(PROMPT) :]:
        scores[token] -= 0.3
    for token in set(text[len(PROMPT) :]):
        scores[token] -= 0.4
    return scores.softmax(-1)


SETTINGS = {
    "none": (Sampling(), at_temperature(1.0)),
    "temperature": (Sampling(temperature=0.7), at_temperature(0.7)),
    "top-p": (Sampling(temperature=0.7, top_p=0.8), truncated),
    "penalties": (Sampling(repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.3), penalised),
}


@BOTH
@pytest.mark.parametrize(("kind", "method", "shape", "length", "settings", "eos"), [
    *(("model", *tree, 3, "top-p", None) for tree in [("chain", "2"), ("rsd-s", "2x2"), ("iid", "2x2"), ("dynamic", "2x2")]),
    *(("model", *tree, 3, "penalties", None) for tree in [("chain", "2"), ("rsd-c", "2-1"), ("rsd-s", "2x2")]),
    *(("model", *tree, "none", 2) for tree in [("chain", "2", 4), ("rsd-s", "2x2", 3), ("rsd-c", "2-1", 3)]),
    *(("block", "block", "2", 3, *case) for case in [("temperature", None), ("temperature", 2), ("penalties", None)]),
    *((kind, "rsd-s", "2x2", 4, "temperature", eos) for kind in HIDDEN for eos in (None, 1)),
    ("marian", "rsd-c", "2-1", 3, "none", END),
])  # fmt: skip
def test_distribution_under_settings_and_with_an_end_token_inside_an_accepted_block(
    kind, method, shape, length, settings, eos, verifier
):
    """And where a drafter of hidden states cannot propose every token."""
    sampling, of_scores = SETTINGS[settings]
    vocab, proposes = 4 if kind == "marian" else 3, 2 if kind in HIDDEN else None
    engine = engine_of(kind, vocab, method, shape, verifier, proposes=proposes, eos=() if eos is None else (eos,))
    assert distance(engine, length, sampling, of_scores, eos=eos) < EXACT


def coupled_distance(engine, length):
    """Total variation between the texts of an engine and those that its target alone picks with the same shared noise."""
    target = engine.pipeline.target
    shared, start = NOISES[:, : target.vocab_size], start_of(target)

    def picked(scores, _text):
        best = (scores.log_softmax(-1) + shared).argmax(-1)
        return best.bincount(minlength=len(scores)).double() / len(shared)

    expected = reference_distribution(target.model, length, picked, **start)
    assert len(expected) > length
    return total_variation(engine_distribution(engine, length, Sampling(), shared, **start), expected)


@pytest.mark.parametrize(("kind", "method", "shape", "nodes", "length"), [
    *(("model", *tree, 4) for tree in [
        ("shared-noise", "2-2", None), ("shared-noise", "1-1-1", None), ("shared-noise", None, 5),
        ("shared-noise", "2x3", 4), ("adaptive", None, None), ("ngram", "2", None),
    ]),
    *(("model", *tree, None, 3) for tree in [
        ("ar", None), ("rsd-c", "2-1"), ("chain", "2"), ("iid", "2x1"), ("rsd-s", "2x1"),
    ]),
    *(("block", *tree, None, 3) for tree in [
        ("block", "2"), ("shared-noise", "2-2"), ("shared-noise", "1-1-1"), ("shared-noise", "2x2"),
    ]),
    *((kind, *tree, None, 3) for kind in HIDDEN for tree in [
        ("shared-noise", "2-2"), ("shared-noise", "2x2"), ("adaptive", None),
    ]),
    *(("marian", method, shape, None, length) for method, shape, length in [
        ("shared-noise", "2-2", 4), ("shared-noise", "1-1-1", 4), ("ngram", "2", 4), ("chain", "2", 3), ("rsd-c", "2", 3),
    ]),
])  # fmt: skip
def test_coupled_text_is_plain_decodings_text_for_every_noise(kind, method, shape, nodes, length):
    """The text is a function of the shared noise alone: that which the target alone picks with it."""
    engine = engine_of(kind, 4 if kind == "marian" else 3, method, shape, "coupled", nodes=nodes)
    assert coupled_distance(engine, length) < EXACT


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
    tokens = torch.from_numpy(tree.tokens.copy())
    p = tree.draft_logp[:, 0].gather(1, tokens[:, 1:3])
    tokens[:, 1:3] = torch.where(p[:, :1] < p[:, 1:], tokens[:, 1:3].flip(1), tokens[:, 1:3])
    return replace(tree, tokens=tokens.numpy())


def drop_unlikely(tree):
    """Forget drawn nodes that the draft finds unlikely."""
    if tree.draft_logp is None:
        return tree
    p = tree.draft_logp[:, :1].squeeze(1).gather(1, torch.from_numpy(tree.tokens))
    likely = torch.nn.functional.pad(p[:, 1:] > -1.2, (1, 0), value=True)
    return replace(tree, valid=tree.valid & likely.numpy())


def other_temperature(tree, factor=0.7):
    """Record another distribution than the one that was drawn from."""
    if (logp := tree.draft_logp) is None:
        return tree
    return replace(tree, ranking=lambda: Distributions(logp=(logp * factor).log_softmax(-1), vocab=logp.shape[-1]))


def end_at_unlikely(tree):
    """A chain that depends on its own tokens: it ends before one that the draft finds unlikely."""
    if tree.draft_logp is None:
        return tree
    own = tree.draft_logp.gather(2, torch.from_numpy(tree.tokens[:, 1:, None])).squeeze(2)
    likely = torch.nn.functional.pad((own > -1.2).long().cumprod(1), (1, 0), value=1).bool()
    return replace(tree, valid=tree.valid & likely.numpy())


def tampered(engine, tamper, **more):
    """The engine, its trees tampered with."""
    parts = engine.pipeline
    return Decoder(parts.target, Wrapped(parts.drafter, tamper), parts.verifier, **more)


@pytest.mark.parametrize(("kind", "method", "shape", "length", "tamper", "verifier"), [
    *((kind, "rsd-s", "2x2", 4, other_temperature, VERIFIERS[i % 2]) for i, kind in enumerate(HIDDEN)),
    *((*case, verifier) for verifier in VERIFIERS for case in [
        *(("model", "rsd-c", "2", 2, tamper) for tamper in [sort_siblings, drop_unlikely, other_temperature]),
        ("block", "block", "2", 2, other_temperature), ("block", "block", "2", 3, end_at_unlikely),
    ]),
])  # fmt: skip
def test_control_tampering_with_drawn_trees_is_seen(kind, method, shape, length, tamper, verifier):
    assert distance(tampered(engine_of(kind, 3, method, shape, verifier), tamper), length) > WRONG


def test_control_shared_noise_under_recursive_rejection_is_refused_and_wrong():
    target, draft = pair("model", 3)
    engine = decoder(target, draft, "shared-noise", "2-2", "coupled")
    with pytest.raises(Exception, match="recursive"):
        Decoder(target, engine.pipeline.drafter, Recursive())
    lying = Wrapped(engine.pipeline.drafter, lambda tree: replace(tree, draw=Draw.POINT_MASS), Draw.POINT_MASS)
    assert coupled_distance(Decoder(target, lying, Recursive()), 2) > WRONG


def misplaced(target):
    """A target that keeps the wrong nodes of an accepted path, as a cache without compaction would."""
    commit = target.commit
    target.commit = lambda nodes, hidden=None: commit([list(range(len(path))) for path in nodes])
    return target


@pytest.mark.parametrize(("kind", "vocab", "length"), [("model", 2, 4), ("marian", 4, 3)])
def test_control_an_uncompacted_cache_is_seen(kind, vocab, length):
    target, draft = new_pair(kind, vocab)
    assert distance(decoder(misplaced(target), draft, "rsd-c", "2-1"), length) > WRONG


def test_control_another_model_or_another_source_is_another_distribution():
    target, draft = pair("marian", 4)
    expected = reference_distribution(target.model, 3, at_temperature(1.0), None, (START,), SOURCE)
    for runner, source in ((draft, SOURCE), (target, (1, 0, 3))):
        found = engine_distribution(decoder(runner, None, "ar"), 3, Sampling(), prompt=(START,), source=source)
        assert total_variation(found, expected) > WRONG


def test_control_drawing_the_extra_token_from_the_target_is_seen():
    target, draft = pair("model", 3)

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
    target, draft = pair("model", 3)

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
    ours, theirs = (engine_distribution(one, 4, Sampling(), SHARED, noise=Shifting) for one in (engine, plain))
    assert total_variation(ours, theirs) > WRONG
