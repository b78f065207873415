"""Weights of files that hold them under other names or in another order than ``transformers``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from draftwood.runners.native.experts import outputs_first
from draftwood.runners.native.facts import facts_of, shapes_of
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import TILED, Family
from draftwood.runners.native.layers import kinds_of
from draftwood.runners.native.states import grouped, mixed_rows

MTP_STEMS: Final = {
    "nextn.eh_proj": "fc", "nextn.enorm": "pre_fc_norm_embedding", "nextn.hnorm": "pre_fc_norm_hidden",
    "nextn.shared_head_norm": "norm", "nextn.embed_tokens": "embed_tokens", "nextn.shared_head_head": "lm_head",
}  # fmt: skip
"""Modules of an MTP head, by their names in GGUF files; the others are those of a layer."""


class _Joined(NamedTuple):
    """A weight of a layer in place of which a file may have two.

    Attributes:
        parts: their names.
        axis: of its rows.
        mixed: it has rows of both parts for each key head.
    """

    parts: tuple[str, str]
    axis: int = 0
    mixed: bool = False


def _joined(own: Family) -> dict[str, _Joined]:
    """Such weights, by name."""
    experts, halves = own.mixture(), own.halves()
    found = {
        experts[f"experts_gate_up{end}"]: _Joined((halves[f"experts_gate{end}"], halves[f"experts_up{end}"]), 1)
        for end in ("", "_bias") if f"experts_gate_up{end}" in experts
    }  # fmt: skip
    products, _ = own.modules()
    for module, names in own.fused.items():
        if len(names) == 2:
            first, second = (f"{products[name]}.weight" for name in names)
            found[f"{module}.weight"] = _Joined((first, second))
    for layer in own.states.values():
        if layer.parts:
            (first, _), (second, _) = layer.parts.values()
            found[layer.weights["mixed_joined"][0]] = _Joined((first, second), mixed=True)
    return found


def parts_of(config: Any, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that a file may have in place of a joined one; of another one, itself."""
    for joined, (parts, axis, mixed) in _joined(FAMILIES[config.model_type]).items():
        if name.endswith(joined):
            counts = list(map(len, mixed_rows(facts_of(config)))) if mixed else [shape[axis] // 2] * 2
            return {
                name.removesuffix(joined) + part: (*shape[:axis], count, *shape[axis + 1 :])
                for part, count in zip(parts, counts, strict=True)
            }
    return {name: shape}


def shapes_among(config: Any, whole: Callable[[str], bool]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of files; of one that is not there as a ``whole``, those of its parts."""
    found: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes_of(config).items():
        found |= {name: shape} if whole(name) else parts_of(config, name, shape)
    return found


def for_transformers(config: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names and in the order of ``transformers``: parts are joined, and value heads of a key head are
    together."""
    facts, kinds, found, own = facts_of(config), kinds_of(config), {}, FAMILIES[config.model_type]
    for name, tensor in tensors.items():
        number, _, module = name.removeprefix("model.layers.").partition(".")
        moves = getattr(config, TILED, False) and number.isdigit()
        layer = own.states.get(kinds[int(number)]) if moves else None
        found[name] = tensor if layer is None else grouped(layer, module, tensor, facts)
    for joined, ((first, second), axis, mixed) in _joined(own).items():
        for name in [name for name in found if name.endswith(first)]:
            layer_name = name.removesuffix(first)
            halves = found.pop(name), found.pop(layer_name + second)
            both = torch.stack(halves, 2).flatten(1, 2) if own.alternating else torch.cat(halves, axis)
            if mixed:
                rows, gate = mixed_rows(facts)
                both = both[torch.tensor(rows + gate).argsort()]
            found[layer_name + joined] = both
    return dict(outputs_first(own, found))
