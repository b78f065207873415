"""Tiny random pairs of every kind of draft, and requests for them."""

from functools import cache

import torch

from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from tests.helpers import hidden_pair, published_pair, ragged, tiny_gpt, tiny_model, tiny_runner
from tests.runners import seq2seq_zoo
from tests.tables import BlockTableRunner

VOCAB = 23
HIDDEN = ["hidden", "eagle3", "dflash", "dspark"]
SEQ2SEQ = ["marian", "m2m_100", "t5"]
START, END = seq2seq_zoo.START, seq2seq_zoo.EOS
SOURCES = [[5, 6, 7, 8, 3], [9, 3], [4, 4, 20, 21, 22, 11, 3], [12, 6, 3]]


def random_blocks(vocab, block):
    generator = torch.Generator().manual_seed(2)
    return BlockTableRunner(1.5 * torch.randn(vocab, block, vocab, generator=generator, dtype=torch.float64))


def seq2seq_runner(kind, seed, vocab=VOCAB, layers=2, *, drafts=False):
    sizes = {
        "d_model": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 20,
        "decoder_ffn_dim": 20, "max_position_embeddings": 64, "init_std": 0.5, "decoder_layers": layers,
    }  # fmt: skip
    if kind == "t5":
        sizes = {"d_model": 16, "num_layers": 3, "num_decoder_layers": 1 + layers}
    return Seq2SeqRunner(seq2seq_zoo.tiny(kind, seed, vocab_size=vocab, **sizes), drafts=drafts)


def new_pair(kind, vocab=VOCAB, proposes=None, backend="torch"):
    """A target, and a draft of this kind: a model, blocks that depend on the root alone, hidden states, or an
    encoder-decoder for one; a draft of hidden states proposes the first tokens only, or all."""
    if kind in SEQ2SEQ:
        return seq2seq_runner(kind, 1, vocab), seq2seq_runner(kind, 2, vocab, layers=1, drafts=True)
    if kind in (*HIDDEN, "mtp"):
        model = tiny_gpt(vocab, 1) if backend == "torch" else tiny_model(backend, vocab, 1)
        if kind == "hidden":
            return hidden_pair(model, backend, proposes=proposes)
        return published_pair(model, kind, backend, proposes=proposes)
    if kind == "block":
        return tiny_runner(vocab, 1), random_blocks(vocab, 6 if vocab == VOCAB else 3)
    return tiny_runner(vocab, 1), tiny_runner(vocab, 2, layers=1)


_pair = cache(new_pair)


def pair(kind, vocab=VOCAB, proposes=None, backend="torch"):
    """:func:`new_pair`, made once."""
    return _pair(kind, vocab, proposes, backend)


def self_drafting(kind):
    """A target that is its own draft."""
    if kind in SEQ2SEQ:
        return seq2seq_runner(kind, 1), seq2seq_runner(kind, 1, drafts=True)
    return tiny_runner(VOCAB, 1), tiny_runner(VOCAB, 1)


def requests_of(kind, length=24):
    """Requests with prompts or sources and lengths that differ."""
    if kind not in SEQ2SEQ:
        return ragged(length)
    limits = [Limits(max_new_tokens=length - 4 - 3 * i) for i in range(len(SOURCES))]
    return [Request(prompt=(START,), source=SOURCES[i], seed=11 + i, limits=limits[i]) for i in range(len(SOURCES))]
