"""Layers that keep a running state in place of keys and values, as the native engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from draftwood.native.library import Facts, LayerSource
from draftwood.runners.native.family import StateLayer
from draftwood.runners.native.weights import sized


def state_shapes(layer: StateLayer, facts: Facts) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of such a layer, by their names in it."""
    sizes = _sizes(layer, facts)
    return {module: sizes[name] for name, module in layer.modules().items()}


def _sizes(layer: StateLayer, facts: Facts) -> dict[str, tuple[int, ...]]:
    width, taps, heads, values = facts.width, facts.taps_of_convolution, facts.value_heads, facts.value_size
    outputs, channels = heads * values, width
    mixed, normed = 3 * width, values
    if layer.kind in (LayerSource.DELTA_RULE, LayerSource.MAMBA):
        mixed = channels = 2 * facts.key_heads * facts.key_size + outputs
    if layer.kind == LayerSource.MAMBA:
        mixed, normed = mixed + outputs + heads, outputs
    return {
        "mixed": (mixed, width), "mixed_gate": (outputs, width), "share": (heads, width), "decay": (heads, width),
        "mixed_joined": (mixed + outputs, width), "share_decay": (2 * heads, width),
        "out": (width, outputs or width), "convolution": (channels, 1, taps), "decay_rate": (heads,),
        "decay_bias": (heads,), "state_norm": (normed,), "convolution_bias": (channels,), "skip": (heads,),
    }  # fmt: skip


def grouped(layer: StateLayer, module: str, weight: Tensor, facts: Facts) -> Tensor:
    """A weight of this name in a layer whose value heads follow each other by their key heads, as in ``transformers``; they
    take turns with them in ``weight``."""
    name = {module: name for name, module in layer.modules().items()}.get(module, "state_norm")
    if layer.kind != LayerSource.DELTA_RULE or name == "state_norm":
        return weight
    keys, heads, axis = facts.key_heads, facts.value_heads, int(name == "out")
    size = 1 if name in ("share", "decay", "decay_rate", "decay_bias") else facts.value_size
    first = weight.shape[axis] - heads * size
    apart = weight.narrow(axis, first, heads * size).movedim(axis, 0)
    apart = apart.reshape(heads // keys, keys, size, -1).transpose(0, 1).reshape(apart.shape).movedim(0, axis)
    return torch.cat((weight.narrow(axis, 0, first), apart), axis)


def state_source(layer: StateLayer, part: Callable[[str], Any], held: Any, facts: Facts) -> dict[str, Any]:
    """The weights of a layer, as fields of a :class:`draftwood.native.library.LayerSource`.

    Args:
        layer: its kind.
        part: the weight of a name in the layer.
        held: keeps the memory alive.
        facts: of the model.

    Raises:
        ModelError: a weight has another shape than the facts say.
    """
    sizes, found = _sizes(layer, facts), {}
    modules = {name: module for name, (module, _) in {**layer.weights, **layer.parts}.items()}
    weights = {name: sized(module, part(module), *sizes[name]) for name, module in modules.items()}
    for name, weight in _apart({name: one for name, one in weights.items() if one is not None}, facts).items():
        if name == "decay_rate":  # the file has its logarithm
            weight = -(weight if isinstance(weight, Tensor) else weight.tensor(held.dtype)).detach().float().exp()
        found[name] = held.numbers(weight) if name in LayerSource.STATE else held.matrix(weight)
    return {"kind": layer.kind, **found}


def _apart(weights: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    """Weights of one kind each: two of Qwen3-Next have rows of several kinds for each key head."""
    found = dict(weights)
    if (mixed := found.pop("mixed_joined", None)) is not None:
        rows, gate = mixed_rows(facts)
        found |= {"mixed": _taken(mixed, rows), "mixed_gate": _taken(mixed, gate)}
    if (both := found.pop("share_decay", None)) is not None:
        group = facts.value_heads // facts.key_heads
        share, decay = _rows(facts.key_heads, group, group)
        found |= {"share": _taken(both, share), "decay": _taken(both, decay)}
    return found


def mixed_rows(facts: Facts) -> tuple[list[int], list[int]]:
    """Rows of queries, keys and values, and of gates, in a matrix that has all of them for each key head."""
    values = facts.value_heads // facts.key_heads * facts.value_size
    query, key, value, gate = _rows(facts.key_heads, facts.key_size, facts.key_size, values, values)
    return query + key + value, gate


def _rows(groups: int, *sizes: int) -> list[list[int]]:
    """The rows of each part, of a matrix that has all parts of these sizes in each group."""
    every = torch.arange(groups * sum(sizes)).view(groups, -1)
    return [part.flatten().tolist() for part in torch.split(every, list(sizes), 1)]


def _taken(weight: Any, rows: list[int]) -> Any:
    return weight[rows] if isinstance(weight, Tensor) else weight.rows(rows)
