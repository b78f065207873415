"""The weights of mixtures of experts: their names, and how files and ``transformers`` lay them out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from draftwood.native.library import Facts, LayerSource, Matrix
from draftwood.runners.native.family import EXPERTS, Family
from draftwood.runners.native.weights import Bytes, Weight, sized

_INPUTS_FIRST: Final = ("experts_gate_up", "experts_down")  # of experts with ``Family.alternating``
_NO_BYTES: Final = np.empty(0, np.uint8)
_BLOCKS, _SCALES = "_blocks", "_scales"  # ends of names of codes in MXFP4, and of their scales
_MXFP4: Final = 39
_ONE_EXPERT: Final = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.weight")
_OTHER_NAMES: Final = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def expert_sources(part: Callable[[str], Any], held: Any, facts: Facts, own: Family) -> dict[str, Any]:
    """The weights of a mixture in a layer, as fields of a :class:`draftwood.native.library.LayerSource`.

    Args:
        part: the weight of a name in the layer, or None.
        held: keeps the memory alive.
        facts, own: of the model.

    Raises:
        ModelError: a weight has another shape than the facts say.
    """
    shapes, found = LayerSource.shapes(facts, facts.width), dict[str, Any]()
    names = {**own.mixture(), **own.halves()}
    weights = {name: sized(name, one, *shapes[name]) for name in names if (one := part(names[name])) is not None}
    if (both := weights.pop("experts_gate_up_bias", None)) is not None:
        numbers = held.tensor(both)
        weights |= {"experts_gate_bias": numbers[:, 0::2], "experts_up_bias": numbers[:, 1::2]}
    if facts.sigmoid_routing and isinstance(bias := weights.get("router_bias"), Weight):
        weights["router_bias"] = bias.tensor(torch.float32)  # which ``transformers`` does not round either
    for name, weight in weights.items():
        found[name] = held.numbers(weight) if name in LayerSource.EXPERT_BIASES else held.matrix(weight)
    if (both := found.pop("experts_gate_up", None)) is not None:
        both.flags |= Matrix.ALTERNATING if own.alternating else 0
        found["experts_gate"] = both
    return found


def outputs_first(own: Family, weights: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tensors of a model of ``transformers`` as the engine takes them, or the other way round."""
    if not own.alternating:
        return weights
    ends = tuple(EXPERTS[name] for name in _INPUTS_FIRST)
    return {name: weight.transpose(1, 2) if name.endswith(ends) else weight for name, weight in weights.items()}


def from_folder(own: Family, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights of a folder as the engine takes them: those of all experts as one, codes in MXFP4 with their scales, and
    outputs of experts first.

    Args:
        own: of the model.
        weights: by name; bytes without a type are arrays.
    """
    found: dict[str, Any] = {}
    for name, weight in weights.items():
        for part, named in own.published.items():
            name = name.replace(part, named)
        found[name] = weight
    return _in_order(found) if own.alternating else _together(found) if own.experts else found


def together(name: str, parts: Sequence[Weight]) -> Weight:
    """Weights of experts as one, of this name; raises a ValueError if they are unlike."""
    first = parts[0]
    if other := next((one for one in parts if (one.kind, one.shape) != (first.kind, first.shape)), None):
        raise ValueError(f"experts have weights {name} of two types or shapes, {list(first.shape)} and {list(other.shape)}")
    make = partial(np.concatenate, [part.data for part in parts])
    return replace(first, data=_NO_BYTES, shape=(len(parts), *first.shape), mapped=False, make=make)


def _together(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights in which those of all experts are one."""
    found: dict[str, Any] = {}
    apart: dict[str, dict[int, Weight]] = {}
    for name, weight in weights.items():
        if (match := _ONE_EXPERT.fullmatch(name)) is None:
            found[name] = weight
        else:
            apart.setdefault(match[1] + _OTHER_NAMES.get(match[3], match[3]), {})[int(match[2])] = weight
    return found | {name: together(name, [one for _, one in sorted(each.items())]) for name, each in apart.items()}


def _in_order(found: dict[str, Any]) -> dict[str, Any]:
    """Weights with codes as GGML has them, and with outputs of experts first."""
    for name in [name for name in found if name.endswith(_BLOCKS)]:
        whole, blocks = name.removesuffix(_BLOCKS), found.pop(name)
        shape, make = (*blocks.shape[:-2], 32 * blocks.shape[-2]), partial(_mxfp4, blocks, found.pop(whole + _SCALES))
        found[whole] = Weight(data=_NO_BYTES, kind=_MXFP4, shape=shape, make=make)
    for name, weight in found.items():
        if name.endswith(tuple(EXPERTS[one] for one in _INPUTS_FIRST)) and not weight.coded:
            experts, inputs, outputs = weight.shape
            make = partial(_transposed, weight)
            found[name] = replace(weight, data=_NO_BYTES, shape=(experts, outputs, inputs), mapped=False, make=make)
    return found


def _mxfp4(blocks: Bytes, scales: Bytes) -> Bytes:
    """Blocks of GGML, a scale and 16 bytes each, of bytes with two successive codes."""
    low, four, out = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(4), np.empty((*scales.shape, 17), np.uint8)
    for expert, to in enumerate(out):  # numbers between stay in memory that is used again
        halves = np.ascontiguousarray(blocks[expert]).view(np.uint64)
        first, second = halves[..., :1], halves[..., 1:]
        codes = np.empty((*scales.shape[1:], 8, 2), np.uint8)
        codes[..., 0] = (first & low | (second & low) << four).view(np.uint8)
        codes[..., 1] = (first >> four & low | second & ~low).view(np.uint8)
        to[..., 0], to[..., 1:] = scales[expert], codes.reshape(*scales.shape[1:], 16)
    return out


def _transposed(weight: Weight) -> Bytes:
    size = weight.nbytes // math.prod(weight.shape)
    numbers = weight.data.view(f"u{size}").reshape(weight.shape)
    return np.ascontiguousarray(numbers.transpose(0, 2, 1)).view(np.uint8)
