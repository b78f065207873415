"""Averaging of models: the mean of the weights of several models from one training.

Models that share their first steps can be averaged. The mean often generalises better than any of them ("Model soups",
Wortsman et al. 2022, arXiv 2203.05482).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.train import data, loop
from draftwood.train.config import AverageConfig
from draftwood.train.lm import held_out_losses, load_tokenizer, saved_model
from draftwood.train.tokenizer import encoder


def average(config: AverageConfig) -> dict[str, Any]:
    """Save the mean of the models in ``config.out``; returns the contents of ``metrics.json``, with held-out losses.

    Raises:
        ConfigError: fewer than two models, or models of different sizes.
        ModelError: a folder holds no model.
    """
    if len(config.models) < 2:
        raise ConfigError(f"number of models to average is {len(config.models)}; give --models two times or more")
    for path in config.models:
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} holds no config.json; give the folder of a saved model")
    model = _mean(config.models)
    tokenizer = load_tokenizer(config.models[0])
    names, context = data.sources(config.data), int(model.config.max_position_embeddings)
    held_out = data.held_out_blocks(config.data, names, encoder(tokenizer), tokenizer.eos_token_id, context)
    config.out.mkdir(parents=True, exist_ok=True)
    loop.save(model, tokenizer, config.out)
    metrics = {
        "models": ["/".join(path.parts[-2:]) for path in config.models],
        "parameters": loop.parameters(model),
        "held_out_tokens": {name: blocks.numel() for name, blocks in held_out.items()},
        "held_out_loss": loop.measured(model, lambda m: held_out_losses(m, held_out, config.batch)),
    }
    loop.write_json(config.out / "metrics.json", metrics)
    return metrics


@torch.no_grad()
def _mean(folders: tuple[Path, ...]) -> Any:
    model, *others = (saved_model(path) for path in folders)
    mean = dict(model.named_parameters())  # without duplicates of tied weights
    for path, other in zip(folders[1:], others, strict=True):
        weights = dict(other.named_parameters())
        if {k: v.shape for k, v in weights.items()} != {k: v.shape for k, v in mean.items()}:
            raise ConfigError(f"the models in {folders[0]} and {path} differ in size; give models from one training")
        for name, weight in mean.items():
            weight += weights[name]
    for weight in mean.values():
        weight /= len(folders)
    return model
