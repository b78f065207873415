"""A small Llama, trained from scratch or further: tokenizer, training, held-out losses.

The architecture is Llama's (Touvron et al. 2023, arXiv 2302.13971): RMSNorm, rotary positions, SwiGLU, with tied embeddings.
Small models of this kind write coherent stories when the text is simple (TinyStories, arXiv 2305.07759).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_model, load_tokenizer
from draftwood.loading.names import locate
from draftwood.train import data, loop
from draftwood.train.callbacks import measured
from draftwood.train.config import AverageConfig, LMConfig
from draftwood.train.tokenizer import tokenizer_in, train_tokenizer


def train_lm(config: LMConfig) -> dict[str, Any]:
    """Train a model and its tokenizer into ``config.out``; returns the contents of ``metrics.json``."""
    mix = data.parse_mix(config.mix)
    documents = {name: data.read_part(config.data, name, "train") for name in mix}
    loop.claim(config)
    if (given := config.tokenizer or config.start) is not None:  # weights are useless without their own tokenizer
        tokenizer = load_tokenizer(given, LoadOptions())
    else:
        texts = data.mixed(documents, mix, config.seed)
        tokenizer = tokenizer_in(config.out, lambda: train_tokenizer(texts, config.vocab, config.context))
    blocks = data.train_blocks(documents, mix, tokenizer, config.context, config.seed)
    held_out = data.held_out_blocks(config.data, mix, tokenizer, config.context)
    model = new_llama(config, tokenizer)
    subset = {name: blocks[: config.report_blocks] for name, blocks in held_out.items()}
    what = f"{blocks.numel():,} tokens in the mix"
    result = loop.fit(config, model, data.items(blocks), lambda m: held_out_losses(m, subset, config.batch), what=what)
    loop.save(model, tokenizer, config.out)
    figures = {"held_out_loss": measured(model, lambda m: held_out_losses(m, held_out, config.batch)), **result}
    return loop.record(config, model, {name: blocks.numel() for name, blocks in held_out.items()}, figures)


def new_llama(shape: Any, tokenizer: Any) -> LlamaForCausalLM:
    """A Llama with the sizes in ``shape`` and the weights of ``shape.start``, or random ones from ``shape.seed``."""
    torch.manual_seed(shape.seed)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    ids["pad_token_id"] = tokenizer.pad_token_id
    settings = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        **ids,
    )
    model = LlamaForCausalLM(settings)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, **ids)
    if shape.start is not None:
        _start_from(model, shape.start)
    return model


def saved_model(name: str | Path, dtype: torch.dtype = torch.float32, cls: type[Any] | None = None) -> Any:
    """A saved model in evaluation mode on the CPU.

    Args:
        cls: its class; a causal language model by default.

    Raises:
        ModelError: there is no model, or it cannot be loaded, or its files do not hold exactly its tensors.
    """
    return load_model(locate(name), LoadOptions(), torch.device("cpu"), dtype, cls)


def _start_from(model: Any, folder: Path) -> None:
    """Load the weights of a saved model of the same sizes."""
    found = saved_model(folder).state_dict()
    if {k: v.shape for k, v in found.items()} != {k: v.shape for k, v in model.state_dict().items()}:
        raise ConfigError(f"the model in {folder} has other sizes than these settings; give its vocab, hidden, layers, ...")
    model.load_state_dict(found)


def held_out_losses(model: Any, held_out: dict[str, Tensor], batch: int) -> dict[str, float]:
    """Mean cross-entropy in nats per token of each source's blocks int64 [block, length]."""
    losses = {}
    for name, blocks in held_out.items():
        total = 0.0
        for tokens in torch.split(blocks.to(model.device), batch):
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
            total += nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").item()
        losses[name] = round(total / (len(blocks) * (blocks.shape[1] - 1)), 4)
    return losses


def average(config: AverageConfig) -> dict[str, Any]:
    """Save the mean of the models in ``config.out``; returns the contents of ``metrics.json``, with held-out losses.

    Raises:
        ConfigError: fewer than two models, or models of different sizes.
        ModelError: a folder holds no model.
    """
    if len(config.models) < 2:
        raise ConfigError(f"number of models to average is {len(config.models)}; give --models two times or more")
    model = _mean(config.models)
    tokenizer = load_tokenizer(config.models[0], LoadOptions())
    names, context = data.sources(config.data), int(model.config.max_position_embeddings)
    held_out = data.held_out_blocks(config.data, names, tokenizer, context)
    config.out.mkdir(parents=True, exist_ok=True)
    loop.save(model, tokenizer, config.out)
    metrics = {
        "models": ["/".join(path.parts[-2:]) for path in config.models],
        "parameters": loop.parameters(model),
        "held_out_tokens": {name: blocks.numel() for name, blocks in held_out.items()},
        "held_out_loss": measured(model, lambda m: held_out_losses(m, held_out, config.batch)),
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
