"""Training of masked-block drafters for translation models.

A drafter learns from the target's outputs (sequence-level distillation, Kim & Rush 2016, arXiv 1606.07947), as in Xia et al.
2023, arXiv 2203.16487. It also glances at some tokens that it predicts wrongly (Qian et al. 2021, arXiv 2008.07905).
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MarianMTModel, TrainerState

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_tokenizer, raw_config
from draftwood.loading.names import check_model
from draftwood.runners.blocks.masked_block import MaskedBlockDrafter
from draftwood.runners.pairing import digest_of
from draftwood.train import loop
from draftwood.train.blocks import Batch, BlockBatches, evaluate, glance
from draftwood.train.callbacks import measured
from draftwood.train.config import SpecDrafterConfig
from draftwood.train.corpus import read_sentence_pairs
from draftwood.train.lm import saved_model
from draftwood.train.pairs import IGNORED, TokenPairs, encode_pairs
from draftwood.train.translator import cross_entropy, translate

_OUTPUTS_PER_FILE = 2_000


def train_spec_drafter(config: SpecDrafterConfig) -> dict[str, Any]:
    """Distil a drafter into ``config.out``; returns the contents of ``metrics.json``.

    Raises:
        ConfigError: invalid settings or data.
        ModelError: the target folder holds no Marian model, or a tokenizer without a mask token.
    """
    target, tokenizer = load_translator(config.target)
    pad, start = tokenizer.pad_token_id, target.config.decoder_start_token_id
    sides = {part: read_sentence_pairs(config.data, part, config.languages) for part in ("train", "val")}
    loop.claim(config)
    encoded = {part: encode_pairs(tokenizer, s, target.config.max_position_embeddings) for part, s in sides.items()}
    if config.outputs is not None:
        encoded["train"] = encoded["train"].spread(config.outputs)
    outputs = {part: _outputs(config, target, pairs, part) for part, pairs in encoded.items()}
    dataset = BlockBatches(outputs["train"], config, pad, start)
    model = _drafter(config, target, tokenizer)

    def report(pairs: TokenPairs, model: Any) -> dict[str, float]:
        return evaluate(partial(masked_block_scores, model), pairs, config.block, pad, start, model.device)

    def loss(model: Any, inputs: Batch, state: TrainerState) -> Tensor:
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + state.global_step)
        return masked_block_loss(config, model, inputs, state.global_step / state.max_steps, generator)

    subset, what = outputs["val"].spread(config.report_pairs), f"{len(outputs['train']):,} outputs, {len(dataset):,} steps"
    result = loop.fit(config, model, dataset, partial(report, subset), loss=loss, what=what)
    loop.save(model, tokenizer, config.out)
    figures = {
        "target": model.config.target,
        "left_out": {
            part: {"too_long": p.too_long, "repeated_or_empty": len(p) - len(outputs[part])} for part, p in encoded.items()
        },
        "held_out": measured(model, partial(report, outputs["val"])),
        **result,
    }
    return loop.record(config, model, {"target": sum(map(len, outputs["val"].targets))}, figures)


def load_translator(folder: Path) -> tuple[Any, Any]:
    """The frozen target in float32, and its tokenizer."""
    check_model(folder)
    if (kind := raw_config(folder, LoadOptions()).get("model_type")) != "marian":
        raise ModelError(f"{folder} holds a model of type {kind!r}; give one of type 'marian'")
    tokenizer = load_tokenizer(folder, LoadOptions())
    if tokenizer.mask_token_id is None:
        raise ModelError(f"the tokenizer in {folder} has no mask token; give a model made by draftwood train translator")
    target = saved_model(folder, cls=MarianMTModel).requires_grad_(False)
    return target.to(loop.device()), tokenizer


def _drafter(config: SpecDrafterConfig, target: Any, tokenizer: Any) -> MaskedBlockDrafter:
    """A new drafter."""
    torch.manual_seed(config.seed)
    return MaskedBlockDrafter.for_target(
        target,
        tokenizer.mask_token_id,
        decoder_layers=config.decoder_layers,
        decoder_ffn_dim=config.intermediate,
        block=config.block,
        dropout=config.dropout,
    )


def masked_block_scores(model: Any, batch: Batch) -> Tensor:
    """Scores float [row, k, vocab] of a masked-block drafter."""
    source = model.encode(batch["input_ids"], batch["attention_mask"])
    scores: Tensor = model(source, batch["prefix"], batch["prefix_mask"], batch["labels"].shape[1])
    return scores


def masked_block_loss(
    config: SpecDrafterConfig, model: Any, batch: Batch, progress: float, generator: torch.Generator
) -> Tensor:
    """Cross-entropy of the tokens that stay masked, after a glance at some that a first pass predicts wrongly."""
    labels = batch["labels"]
    real = labels != IGNORED  # only these are scored: the output layer costs most, and most of a block lies beyond the end
    source = model.encode(batch["input_ids"], batch["attention_mask"])
    states = partial(model.states, source, batch["prefix"], batch["prefix_mask"], labels.shape[1])
    with torch.no_grad():
        guessed = labels.masked_scatter(real, model.scores(states()[real]).argmax(-1))
        share = config.glance_start + (config.glance_end - config.glance_start) * progress
        revealed = glance(guessed, labels, share, generator)
    known = torch.where(revealed, labels, model.config.mask_token_id)
    masked = real & ~revealed
    return cross_entropy(model.scores(states(known)[masked]), labels[masked], config.label_smoothing)


def _outputs(config: SpecDrafterConfig, target: Any, pairs: TokenPairs, part: str) -> TokenPairs:
    """Distinct source sentences and the target's outputs, without empty outputs."""
    sources = [list(s) for s in dict.fromkeys(map(tuple, pairs.sources))]
    written = written_outputs(target, sources, config.out / "outputs", part)
    kept = [pair for pair in zip(sources, written, strict=True) if pair[1]]
    if not kept:
        raise ConfigError(f"the target in {config.target} writes nothing for the {part} sentences; train it first")
    return TokenPairs(sources=[s for s, _ in kept], targets=[t for _, t in kept])


@torch.no_grad()
def written_outputs(target: Any, sources: list[list[int]], cache: Path, part: str) -> list[list[int]]:
    """Greedy translations, in the order of ``sources``.

    Outputs of 2,000 sentences of nearly equal lengths at a time become a file in the folder ``cache``, so that a stopped run
    continues with the next file.
    """
    cache.mkdir(parents=True, exist_ok=True)
    claim, mine = cache / "target.txt", digest_of(target)
    if claim.is_file() and claim.read_text() != mine:
        raise ConfigError(f"{cache} holds outputs of target {claim.read_text()}, not of {mine}; give another folder")
    claim.write_text(mine)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    outputs: list[list[int]] = [[] for _ in sources]
    for number, begin in enumerate(range(0, len(order), _OUTPUTS_PER_FILE)):
        chosen, path = order[begin : begin + _OUTPUTS_PER_FILE], cache / f"{part}-{number:05d}.json"
        if not path.is_file():
            loop.write_json(path, [" ".join(map(str, row)) for row in translate(target, [sources[i] for i in chosen])])
            print(f"the target has written {begin + len(chosen):,} of {len(order):,} outputs ({part})", flush=True)
        for index, row in zip(chosen, json.loads(path.read_text(encoding="utf-8")), strict=True):
            outputs[index] = [int(token) for token in row.split()]
    return outputs
