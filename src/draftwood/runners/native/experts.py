"""The weights of mixtures of experts: their names, and how files and ``transformers`` lay them out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from draftwood.native.library import Facts, LayerSource, Matrix
from draftwood.runners.native.families import EXPERTS, HALVES, Family, experts_of
from draftwood.runners.native.weights import Bytes, Weight, sized

_INPUTS_FIRST: Final = ("experts_gate_up", "experts_down")  # of experts with ``Family.alternating``
_NO_BYTES: Final = np.empty(0, np.uint8)
_BLOCKS, _SCALES = "_blocks", "_scales"  # ends of names of codes in MXFP4, and of their scales
_MXFP4: Final = 39


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
    names = {**experts_of(own), **HALVES}
    weights = {name: sized(name, one, *shapes[name]) for name in names if (one := part(names[name])) is not None}
    if (both := weights.pop("experts_gate_up_bias", None)) is not None:
        numbers = held.tensor(both)
        weights |= {"experts_gate_bias": numbers[:, 0::2], "experts_up_bias": numbers[:, 1::2]}
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
    """Weights of a folder as the engine takes them: codes in MXFP4 with their scales, and outputs of experts first.

    Args:
        own: of the model.
        weights: by name; bytes without a type are arrays.
    """
    found = dict(weights)
    if not own.alternating:
        return found
    for name in [name for name in weights if name.endswith(_BLOCKS)]:
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
    out = np.empty((*scales.shape, 17), np.uint8)
    out[..., 0], first, second = scales, blocks[..., :8], blocks[..., 8:]
    out[..., 1::2], out[..., 2::2] = first & 15 | second << 4, first >> 4 | second & 240
    return out


def _transposed(weight: Weight) -> Bytes:
    size = weight.nbytes // math.prod(weight.shape)
    numbers = weight.data.view(f"u{size}").reshape(weight.shape)
    return np.ascontiguousarray(numbers.transpose(0, 2, 1)).view(np.uint8)
