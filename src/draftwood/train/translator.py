"""A small translation model trained on sentence pairs: tokenizer, training, held-out loss, BLEU.

The architecture is Marian's (Junczys-Dowmunt et al. 2018, arXiv 1804.00344), the Transformer of Vaswani et al. 2017 (arXiv
1706.03762): encoder and decoder, sinusoidal positions, one embedding for both languages and the output. sacreBLEU (Post
2018, arXiv 1804.08771) measures the quality of greedy translations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from draftwood.train import loop
from draftwood.train.callbacks import measured
from draftwood.train.config import TranslatorConfig
from draftwood.train.corpus import read_sentence_pairs
from draftwood.train.pairs import IGNORED, PairBatches, TokenPairs, batches_of, encode_pairs, held_out_batches, padded
from draftwood.train.tokenizer import tokenizer_in, train_pair_tokenizer

_TRANSLATED_TOKENS = 3_000
"""Most source tokens of a batch to translate, padding included."""


def train_translator(config: TranslatorConfig) -> dict[str, Any]:
    """Train a model and its tokenizer into ``config.out``; returns the contents of ``metrics.json``.

    Raises:
        ConfigError: a missing package, or data that are not sentence pairs.
    """
    loop.require("sacrebleu", "this training")
    train, val = (read_sentence_pairs(config.data, part, config.languages) for part in ("train", "val"))
    loop.claim(config)
    tokenizer = tokenizer_in(config.out, lambda: train_pair_tokenizer(train[0] + train[1], config.vocab, config.context))
    pairs, held_out = (encode_pairs(tokenizer, sides, config.context) for sides in (train, val))
    dataset = PairBatches(pairs, config, tokenizer.pad_token_id)
    model = new_marian(config, tokenizer)
    subset = held_out.spread(config.report_pairs)

    def smoothed(model: Any, inputs: dict[str, Tensor], state: object) -> Tensor:
        return cross_entropy(model(**inputs, use_cache=False).logits, inputs["labels"], config.label_smoothing)

    what = f"{len(pairs):,} sentence pairs, {len(dataset):,} steps"
    result = loop.fit(config, model, dataset, lambda m: quality(m, tokenizer, subset), loss=smoothed, what=what)
    loop.save(model, tokenizer, config.out)
    figures = {
        "too_long_pairs": {"train": pairs.too_long, "val": held_out.too_long},
        "held_out": measured(model, lambda m: quality(m, tokenizer, held_out)),
        **result,
    }
    return loop.record(config, model, {"target": sum(map(len, held_out.targets))}, figures)


def new_marian(config: TranslatorConfig, tokenizer: Any) -> MarianMTModel:
    """A Marian model with the sizes in ``config`` and random weights from ``config.seed``."""
    torch.manual_seed(config.seed)
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    ids |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": None}
    settings = MarianConfig(
        vocab_size=len(tokenizer),
        d_model=config.hidden,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        encoder_ffn_dim=config.intermediate,
        decoder_ffn_dim=config.intermediate,
        max_position_embeddings=config.context,
        activation_function="relu",
        dropout=config.dropout,
        scale_embedding=True,
        tie_word_embeddings=True,
        **ids,
    )
    model = MarianMTModel(settings)
    model.generation_config = GenerationConfig(do_sample=False, num_beams=1, max_length=config.context, **ids)
    return model


def quality(model: Any, tokenizer: Any, pairs: TokenPairs) -> dict[str, float]:
    """The loss in nats per target token, and BLEU and chrF of greedy translations."""
    import sacrebleu

    written, wanted = (
        tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in (translate(model, pairs.sources), pairs.targets)
    )
    return {
        "loss": round(held_out_loss(model, pairs), 4),
        "bleu": round(sacrebleu.corpus_bleu(written, [wanted]).score, 2),
        "chrf": round(sacrebleu.corpus_chrf(written, [wanted]).score, 2),
    }


def held_out_loss(model: Any, pairs: TokenPairs) -> float:
    """Mean cross-entropy in nats per target token, the end of sentence included."""
    total = 0.0
    for batch in held_out_batches(pairs, model.config.pad_token_id, model.device):
        total += model(**batch, use_cache=False).loss.item() * int((batch["labels"] != IGNORED).sum())
    return total / sum(map(len, pairs.targets))


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The loss in nats of logits [..., vocab] over labels int64 [...], without ``IGNORED`` ones."""
    flat = logits.flatten(0, -2).float(), labels.flatten()
    return nn.functional.cross_entropy(*flat, ignore_index=IGNORED, label_smoothing=smoothing)


def translate(model: Any, sources: list[list[int]]) -> list[list[int]]:
    """Greedy translations of token ids, in order, with the end-of-sentence token and without the start token.

    A translation that repeats itself endlessly is cut at three times the longest source of its batch plus ten tokens.
    """
    eos = model.config.eos_token_id
    out: list[list[int]] = [[] for _ in sources]
    for chosen in batches_of(np.array([[len(s)] for s in sources]), _TRANSLATED_TOKENS, np.random.default_rng(0)):
        tokens = padded([sources[i] for i in chosen], model.config.pad_token_id).to(model.device)
        mask = (tokens != model.config.pad_token_id).long()
        length = min(3 * tokens.shape[1] + 10, model.config.max_position_embeddings)
        written = model.generate(tokens, attention_mask=mask, do_sample=False, num_beams=1, max_length=length)
        for index, row in zip(chosen, written[:, 1:].tolist(), strict=True):
            out[index] = row[: row.index(eos) + 1] if eos in row else row
    return out
