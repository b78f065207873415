"""Rungs 3 and 5 for encoder-decoder models: exact joint distributions of whole texts over a source, and relations between
runs."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.core.scores import Scores
from draftwood.engine.requests import Request
from draftwood.exactness.tape import TapeSource, enumerate_distribution, total_variation
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.runners.seq2seq_zoo import plain_scores, tiny

EXACT, WRONG = 1e-9, 1e-4
START, END = 2, 3
SOURCE = (0, 3, 1, 2, 3)
SHARED = torch.tensor([[0.3, -0.2, 2.9, 0.4], [-0.8, 3.4, 0.1, 0.2], [3.1, 0.2, -0.5, 1.7]], dtype=torch.float64)


@cache
def model(seed: int, vocab: int = 4, layers: int = 2, kind: str = "marian"):
    sizes = {"d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20,
             "decoder_ffn_dim": 20, "max_position_embeddings": 64}  # fmt: skip
    return tiny(kind, seed, vocab_size=vocab, decoder_layers=layers, init_std=0.5, **sizes)


def pair(vocab: int = 4):
    return Seq2SeqRunner(model(1, vocab)), Seq2SeqRunner(model(2, vocab, layers=1), drafts=True)


def engine_distribution(engine, length: int, sampling: Sampling, shared=None, source=SOURCE):
    request = Request(prompt=(START,), source=source, limits=Limits(max_new_tokens=length))

    def run(tapes):
        for tape in tapes:
            tape.end = 1 + length
        results = engine.generate([request] * len(tapes), sampling, noise=TapeSource(tapes, shared))
        return [tuple(r.token_ids) for r in results]

    return enumerate_distribution(run)[0]


def reference_distribution(length: int, eos: int | None = None):
    """The plain model alone: no memory, no tree, one forward of everything per prefix."""
    out: dict[tuple[int, ...], float] = {}

    def walk(text: tuple[int, ...], weight: float) -> None:
        if len(text) == length or (eos is not None and eos in text):
            out[text] = weight
            return
        for token, p in enumerate(plain_scores(model(1), SOURCE, (START, *text)).softmax(-1).tolist()):
            walk((*text, token), weight * p)

    walk((), 1.0)
    return out


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
@pytest.mark.parametrize(("method", "shape", "length"), [
    ("ar", None, 3), ("chain", "2", 3), ("chain", "3", 3), ("rsd-c", "2-1", 3), ("rsd-c", "2-2", 2), ("rsd-s", "2x2", 3),
    ("ngram", "2", 4),
])  # fmt: skip
def test_drawn_trees_give_the_targets_joint_distribution(method, shape, length, verifier):
    target, draft = pair()
    distribution = engine_distribution(decoder(target, draft, method, shape, verifier), length, Sampling())
    assert total_variation(distribution, reference_distribution(length)) < EXACT


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_an_end_token_inside_an_accepted_block_ends_the_text(verifier):
    target, draft = pair()
    distribution = engine_distribution(decoder(target, draft, "rsd-c", "2-1", verifier, eos=(END,)), 3, Sampling())
    assert total_variation(distribution, reference_distribution(3, eos=END)) < EXACT


@pytest.mark.parametrize(("method", "shape", "length"), [
    ("shared-noise", "2-2", 4), ("shared-noise", "1-1-1", 4), ("ngram", "2", 4), ("chain", "2", 3), ("rsd-c", "2", 3),
])  # fmt: skip
def test_coupled_text_is_plain_decodings_text_for_every_noise(method, shape, length):
    target, draft = pair()
    distribution = engine_distribution(decoder(target, draft, method, shape, "coupled"), length, Sampling(), SHARED)
    plain: dict[tuple[int, ...], float] = {}
    for noise in torch.cartesian_prod(*[torch.arange(3)] * length).tolist():  # that of each position
        text: tuple[int, ...] = ()
        for outcome in noise:
            scores = plain_scores(model(1), SOURCE, (START, *text)).log_softmax(-1)
            text = (*text, int((scores + SHARED[outcome]).argmax()))
        plain[text] = plain.get(text, 0.0) + 3.0**-length
    assert len(plain) > 3
    assert total_variation(distribution, plain) < EXACT


def test_control_a_drafters_distribution_is_not_the_targets():
    _, draft = pair()
    distribution = engine_distribution(decoder(draft, None, "ar"), 3, Sampling())
    assert total_variation(distribution, reference_distribution(3)) > WRONG


def test_control_an_uncompacted_cache_is_seen():
    target, draft = pair()
    commit = target.commit
    target.commit = lambda nodes, hidden=None: commit([list(range(len(path))) for path in nodes])
    distribution = engine_distribution(decoder(target, draft, "rsd-c", "2-1"), 3, Sampling())
    assert total_variation(distribution, reference_distribution(3)) > WRONG


def test_control_another_source_is_another_distribution():
    distribution = engine_distribution(decoder(pair()[0], None, "ar"), 3, Sampling(), source=(1, 0, 3))
    assert total_variation(distribution, reference_distribution(3)) > WRONG


# ---- relations between runs of the real engine on its real noise ----

VOCAB = 23
SOURCES = [[5, 6, 7, 8, 3], [9, 3], [4, 4, 20, 21, 22, 11, 3], [12, 6, 3]]
KINDS = ["marian", "m2m_100", "t5"]


def requests(length: int = 20) -> list[Request]:
    return [
        Request(prompt=(START,), source=s, seed=11 + i, limits=Limits(max_new_tokens=length - 3 * i))
        for i, s in enumerate(SOURCES)
    ]


def runner(kind: str, seed: int, **settings):
    made = model(seed, VOCAB, kind=kind) if kind != "t5" else tiny("t5", seed, vocab_size=VOCAB, d_model=16, num_layers=3)
    return Seq2SeqRunner(made, **settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "shape", "full"), [
    ("chain", "3", 3), ("rsd-c", "2-2-1", 3), ("rsd-s", "3x3", 3), ("shared-noise", "2-2", 2),
])  # fmt: skip
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_as_its_own_drafter_accepts_every_token(kind, method, shape, full, temperature):
    """It sees every error of cache, mask, position and source: every round of every row goes to full depth."""
    engine = decoder(runner(kind, 1), runner(kind, 1, drafts=True), method, shape, greedy=temperature == 0)
    for request, result in zip(requests(), engine.generate(requests(), Sampling(temperature=temperature)), strict=True):
        rounds, rest = divmod(request.limits.max_new_tokens, full + 1)
        expected = [0] * (full + 1)
        expected[full] = rounds
        if rest:
            expected[rest - 1] += 1  # the last round is only as deep as the limit allows
        assert result.stats.histogram == expected


def test_control_a_drafter_that_reads_another_source_is_seen():
    target, draft = runner("marian", 1), runner("marian", 1, drafts=True)
    read = draft._reader.read
    draft._reader.read = lambda sources: read([[7, 3] for _ in sources])
    results = decoder(target, draft, "chain", "3").generate(requests(), Sampling())
    assert any(r.stats.accepted[0] for r in results)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "shape"), [("chain", "3"), ("rsd-s", "3x3"), ("shared-noise", "2-2"), ("ar", None)])
def test_a_ragged_batch_is_its_rows_one_by_one(kind, method, shape):
    engine = decoder(runner(kind, 1), runner(kind, 2, drafts=True), method, shape)
    sampling = Sampling(top_p=0.9, repetition_penalty=1.1)
    together = [r.token_ids for r in engine.generate(requests(), sampling)]
    assert together == [engine.generate([request], sampling)[0].token_ids for request in requests()]
    assert len({tuple(t) for t in together}) == len(together)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "shape"), [
    ("ar", None), ("chain", "3"), ("rsd-s", "3x3"), ("shared-noise", "2-2"), ("ngram", "3"),
])  # fmt: skip
def test_greedy_text_is_that_of_generate(kind, method, shape):
    target = runner(kind, 1)
    eos = int(target.model.config.eos_token_id)
    engine = decoder(target, runner(kind, 2, drafts=True), method, shape, greedy=True, eos=(eos,))
    for request, result in zip(requests(), engine.generate(requests(), Sampling(temperature=0.0)), strict=True):
        wanted = target.model.generate(
            torch.tensor([request.source]), num_beams=1, do_sample=False, max_new_tokens=request.limits.max_new_tokens
        )
        assert result.token_ids == wanted[0, 1:].tolist()


def test_prompt_lookup_finds_what_the_source_holds():
    """A target that copies its source, as translation copies names and numbers."""

    class Copies(ReadsAtOnce):
        reads_source, pads, max_length, forward_seconds = True, True, None, 0.0
        vocab_size, device = VOCAB, torch.device("cpu")

        def clear(self):
            self.rows = []

        def set_rows(self, rows):
            self.rows = rows

        def extend(self, tokens, depths, ancestors):
            scores = torch.full((*tokens.shape, VOCAB), -30.0)
            for number, row in enumerate(self.rows):
                for node, depth in enumerate(depths[number].tolist()):
                    scores[number, node, row.source[(len(row.tokens) - 1 + depth) % len(row.source)]] = 0.0
            return Scores(scores)

        def commit(self, nodes, hidden=None):
            pass

    source = [5, 6, 7, 8, 9, 10, 11]
    request = Request(prompt=(START,), source=source, limits=Limits(max_new_tokens=7))
    result = decoder(Copies(), None, "ngram", "6", greedy=True).generate([request], Sampling(temperature=0.0))[0]
    assert result.token_ids == source
    assert result.stats.histogram[5] == 1  # after the first token, all others at once
