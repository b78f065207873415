"""A Llama model embedded in a larger network: the same scores at a larger model's cost.

How fast speculative decoding is hangs on what a forward of the target costs, and on how often the draft is right. A
cost-inflated copy changes the first and leaves the second alone. Of the wider residual stream only the old part is ever
written; what is new reads it with random weights, and its own output is multiplied by zero (Net2Net's function-preserving
growth, Chen et al. 2016, arXiv 1511.05641, with zeros in the place of copies).

RMSNorm divides by the root of a mean over all dimensions. With new ones that are zero the mean of ``D`` dimensions is
``d / D`` of the mean of the old ``d``, so weights are multiplied by ``sqrt(d / D)`` and epsilon by ``d / D``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from benchmarks.config import InflateConfig
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.loading.models import load_model, load_tokenizer
from draftwood.loading.names import locate, named_or_bundled

LABEL: Final = "cost_inflated"
"""The entry of ``config.json`` that marks such a model."""
RATIO: Final = 64  # width over layers, about that of GPT-3's and Llama's smaller models
SPREAD: Final = 0.02  # standard deviation of the new weights
_STEP: Final = 32  # feed-forward widths are multiples of it


@final
@dataclass(frozen=True, kw_only=True)
class Size:
    """Of a Llama network: width of the residual stream, layers, query heads, feed-forward width."""

    width: int
    layers: int
    heads: int
    feed_forward: int


def size_of(config: Any) -> Size:
    """The size in a configuration."""
    return Size(
        width=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        feed_forward=config.intermediate_size,
    )


def parameters_of(config: Any, size: Size) -> int:
    """Parameters of a network of this size with the configuration's vocabulary, head width and query groups."""
    pairs = 1 + config.num_key_value_heads / config.num_attention_heads
    attention = round(2 * pairs * size.heads * config.head_dim * size.width)
    layer = attention + 3 * size.width * size.feed_forward + 2 * size.width
    embeddings = config.vocab_size * size.width * (1 if config.tie_word_embeddings else 2)
    return int(embeddings + size.layers * layer + size.width)


def size_for(config: Any, parameters: int) -> Size:
    """The size that comes nearest to so many parameters: as many layers as go with the width, the rest in the feed-forward.

    Raises:
        ConfigError: the model would have to shrink.
    """
    own = size_of(config)
    group = config.num_attention_heads // config.num_key_value_heads
    found = []
    for heads in range(own.heads, 16 * own.heads + 64):
        width = max(own.width, heads * config.head_dim)
        layers = max(own.layers, round(width / RATIO))
        bare = Size(width=width, layers=layers, heads=heads, feed_forward=0)
        room = (parameters - parameters_of(config, bare)) / (3 * width * layers)
        feed_forward = round(room / _STEP) * _STEP
        if heads % group == 0 and feed_forward >= own.feed_forward:
            found.append(Size(width=width, layers=layers, heads=heads, feed_forward=feed_forward))
    if not found:
        smallest = parameters_of(config, own)
        raise ConfigError(f"parameters is {parameters:,}, but the model has {smallest:,} already and only grows: give more")
    return min(found, key=lambda size: abs(size.feed_forward / size.width - 8 / 3))


def check_kind(config: Any) -> None:
    """Refuse all but plain Llama models.

    Raises:
        ModelError: says what was found.
    """
    kind = config.model_type
    if kind != "llama" or config.attention_bias or config.mlp_bias:
        name = f"model type {kind!r}" + (" with biases" if kind == "llama" else "")
        raise ModelError(f"{name} cannot be inflated: only Llama models without biases can; give one as --target")


def inflated(model: Any, size: Size, *, seed: int, context: int | None = None) -> Any:
    """The model in a larger network, with the same scores up to rounding.

    Args:
        model: a ``LlamaForCausalLM`` without biases.
        size: of the new network; nowhere smaller than the model.
        seed: of the weights that do not matter.
        context: positions of the new network; the model's own without it. Its distribution there is what rotary positions
        make of it.

    Returns:
        A ``LlamaForCausalLM`` on the model's device. Its norms are float32, as their factor is no number of eight bits; the
        other weights have the model's number format.

    Raises:
        ConfigError: a size or context below the model's own.
        ModelError: another kind of model.
    """
    check_kind(model.config)
    own = size_of(model.config)
    config = _config(model.config, own, size, context)
    own_generators = [] if model.device.type == "cpu" else [model.device]
    with torch.random.fork_rng(devices=own_generators), torch.no_grad(), model.device:
        grown = type(model)(config)
        generator = torch.Generator(model.device).manual_seed(seed)
        weights = dict(model.named_parameters())
        share = sqrt(own.width / size.width)
        for name, new in grown.named_parameters():
            _fill(name, new, weights.get(name), share, generator)
            if not name.endswith("norm.weight"):
                new.data = new.data.to(model.dtype)
    grown.generation_config = copy.deepcopy(model.generation_config)
    return grown.eval()


def _config(config: Any, own: Size, size: Size, context: int | None) -> Any:
    wanted, there = vars(size) | {"context": context}, vars(own) | {"context": config.max_position_embeddings}
    for name, value in wanted.items():
        if value is not None and value < there[name]:
            raise ConfigError(f"{name} is {value}, but the model has {there[name]} and only grows: give as much or more")
    group = config.num_attention_heads // config.num_key_value_heads
    if size.heads % group:
        raise ConfigError(
            f"heads is {size.heads}, but {group} query heads share keys and values: give a multiple of {group}"
        )
    found = copy.deepcopy(config)
    found.hidden_size, found.num_hidden_layers = size.width, size.layers
    found.num_attention_heads, found.num_key_value_heads = size.heads, size.heads // group
    found.intermediate_size = size.feed_forward
    found.rms_norm_eps = config.rms_norm_eps * own.width / size.width
    if context is not None:
        found.max_position_embeddings = context
    return found


def _fill(name: str, new: Tensor, old: Tensor | None, share: float, generator: torch.Generator) -> None:
    """Write one weight: the old values first, zero where it would write to the new part of the residual stream, random
    numbers elsewhere."""
    writes = name.endswith(("o_proj.weight", "down_proj.weight", "embed_tokens.weight"))
    if writes:
        new.zero_()
    else:
        new.normal_(float(name.endswith("norm.weight")), SPREAD, generator=generator)
    if old is not None:
        values = old.float() * share if name.endswith("norm.weight") else old.float()
        new[tuple(slice(length) for length in old.shape)] = values


def label_of(model: Any) -> str | None:
    """What the configuration says where a model is a cost-inflated copy; None elsewhere."""
    found = getattr(model.config, LABEL, None)
    return None if found is None else str(found)


def write_pair(config: InflateConfig) -> Iterator[tuple[str, Path]]:
    """Write ``target`` and, where there is a draft, ``draft`` into the output folder; tells each as it is done.

    Raises:
        ConfigError: a folder with something in it, or a size that cannot be.
        ModelError: a model that cannot be loaded or is no plain Llama.
    """
    target, draft = named_or_bundled("language", config.target, config.draft)
    if config.out.exists() and any(config.out.iterdir()):
        raise ConfigError(f"output folder {config.out} is not empty: give another one as --out")
    written = _write(target, config, config.count(), config.out / "target")
    yield written, config.out / "target"
    if draft is not None:
        yield _write(draft, config, None, config.out / "draft"), config.out / "draft"


def _write(source: str | Path, config: InflateConfig, parameters: int | None, folder: Path) -> str:
    source = locate(source)
    options = LoadOptions()
    model = load_model(source, options, torch.device("cpu"), torch.float32)
    check_kind(model.config)
    size = size_of(model.config) if parameters is None else size_for(model.config, parameters)
    stored = _stored_dtype(source)
    grown = inflated(model.to(stored), size, seed=config.seed, context=config.context)
    label = _label(model, source, size, grown)
    if parameters is not None:
        setattr(grown.config, LABEL, label)
    grown.save_pretrained(folder)
    tokenizer = load_tokenizer(source, options)
    tokenizer.model_max_length = grown.config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(_card(label, model, grown, size, parameters), encoding="utf-8")
    return label


def _stored_dtype(source: str | Path) -> torch.dtype:
    from transformers import AutoConfig

    found = AutoConfig.from_pretrained(str(source)).dtype
    return found if isinstance(found, torch.dtype) else torch.float32


def _label(model: Any, source: str | Path, size: Size, grown: Any) -> str:
    name = "/".join(Path(source).parts[-2:])
    count = sum(weight.numel() for weight in model.parameters()) / 1e6
    if size == size_of(model.config):
        return f"copy of {name} ({count:.3g} M parameters) with {grown.config.max_position_embeddings} positions"
    return f"cost-inflated copy of {name} ({count:.3g} M parameters), for benchmarks only"


def _card(label: str, model: Any, grown: Any, size: Size, parameters: int | None) -> str:
    own, count = size_of(model.config), sum(weight.numel() for weight in grown.parameters())
    lines = [f"# {label[0].upper()}{label[1:]}", ""]
    if parameters is not None:
        lines += [
            "Its scores are those of the original up to rounding; its forward costs what a model of its size costs.",
            "What was added is random and multiplied by zero: how well models of this size write, it does not tell.",
            "",
            f"* {count:,} parameters: width {size.width} (of which {own.width} are used),",
            f"  {size.layers} layers ({own.layers}), {size.heads} heads ({own.heads}),",
            f"  feed-forward {size.feed_forward} ({own.feed_forward})",
        ]
    before, after = model.config.max_position_embeddings, grown.config.max_position_embeddings
    if after != before:
        lines.append(
            f"* context {after} tokens; the original was trained with {before}, and beyond them its distribution is what "
            "its rotary positions make of it"
        )
    return "\n".join(lines) + "\n"
