"""Layers that keep a running state in place of keys and values, as the native engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from draftwood.native.library import Facts, LayerSource
from draftwood.runners.native.weights import sized


class StateLayer(NamedTuple):
    """A kind of such layers.

    Attributes:
        kind: the engine's number.
        facts: settings of the configuration, by the engine's name.
        weights: their names in a layer of ``transformers``, by the engine's name.
        parts: names of those that files may have in place of ``mixed_joined``.
    """

    kind: int
    facts: Mapping[str, str]
    weights: Mapping[str, str]
    parts: Mapping[str, str] = {}

    def shapes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights, by their names in a layer."""
        sizes = self._sizes(facts)
        return {module: sizes[name] for name, module in self.weights.items()}

    def _sizes(self, facts: Facts) -> dict[str, tuple[int, ...]]:
        width, taps, heads, values = facts.width, facts.taps_of_convolution, facts.value_heads, facts.value_size
        outputs, channels = heads * values, width
        mixed, normed = 3 * width, values
        if self.kind in (LayerSource.DELTA_RULE, LayerSource.MAMBA):
            mixed = channels = 2 * facts.key_heads * facts.key_size + outputs
        if self.kind == LayerSource.MAMBA:
            mixed, normed = mixed + outputs + heads, outputs
        return {
            "mixed": (mixed, width), "mixed_gate": (outputs, width), "share": (heads, width), "decay": (heads, width),
            "mixed_joined": (mixed + outputs, width), "share_decay": (2 * heads, width),
            "out": (width, outputs or width), "convolution": (channels, 1, taps), "decay_rate": (heads,),
            "decay_bias": (heads,), "state_norm": (normed,), "convolution_bias": (channels,), "skip": (heads,),
        }  # fmt: skip

    def grouped(self, module: str, weight: Tensor, facts: Facts) -> Tensor:
        """A weight of this name in a layer whose value heads follow each other by their key heads, as in ``transformers``;
        they take turns with them in ``weight``."""
        name = {module: name for name, module in self.weights.items()}.get(module, "state_norm")
        if self.kind != LayerSource.DELTA_RULE or name == "state_norm":
            return weight
        keys, heads, axis = facts.key_heads, facts.value_heads, int(name == "out")
        size = 1 if name in ("share", "decay", "decay_rate", "decay_bias") else facts.value_size
        first = weight.shape[axis] - heads * size
        apart = weight.narrow(axis, first, heads * size).movedim(axis, 0)
        apart = apart.reshape(heads // keys, keys, size, -1).transpose(0, 1).reshape(apart.shape).movedim(0, axis)
        return torch.cat((weight.narrow(axis, 0, first), apart), axis)

    def source(self, part: Callable[[str], Any], held: Any, facts: Facts) -> dict[str, Any]:
        """The weights of a layer, as fields of a :class:`draftwood.native.library.LayerSource`.

        Args:
            part: the weight of a name in the layer.
            held: keeps the memory alive.
            facts: of the model.

        Raises:
            ModelError: a weight has another shape than the facts say.
        """
        sizes, found = self._sizes(facts), {}
        modules = {**self.weights, **self.parts}
        weights = {name: sized(module, part(module), *sizes[name]) for name, module in modules.items()}
        for name, weight in _apart({name: one for name, one in weights.items() if one is not None}, facts).items():
            if name == "decay_rate":  # the file has its logarithm
                weight = -(weight if isinstance(weight, Tensor) else weight.tensor(held.dtype)).detach().float().exp()
            found[name] = held.numbers(weight) if name in LayerSource.STATE else held.matrix(weight)
        return {"kind": self.kind, **found}


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


DELTA_RULE: Final = StateLayer(
    LayerSource.DELTA_RULE,
    {
        "taps_of_convolution": "linear_conv_kernel_dim", "key_heads": "linear_num_key_heads",
        "value_heads": "linear_num_value_heads", "key_size": "linear_key_head_dim", "value_size": "linear_value_head_dim",
    },
    {
        "mixed": "linear_attn.in_proj_qkv.weight", "mixed_gate": "linear_attn.in_proj_z.weight",
        "share": "linear_attn.in_proj_b.weight", "decay": "linear_attn.in_proj_a.weight",
        "out": "linear_attn.out_proj.weight", "convolution": "linear_attn.conv1d.weight",
        "decay_rate": "linear_attn.A_log", "decay_bias": "linear_attn.dt_bias", "state_norm": "linear_attn.norm.weight",
    },
)  # fmt: skip
_JOINED: Final = {
    "mixed_joined": "linear_attn.in_proj_qkvz.weight",
    "share_decay": "linear_attn.in_proj_ba.weight",
}
JOINED_RULE: Final = DELTA_RULE._replace(
    weights={**_JOINED, **{name: module for name, module in DELTA_RULE.weights.items() if name not in LayerSource.MIXED}},
    parts={name: DELTA_RULE.weights[name] for name in ("mixed", "mixed_gate")},
)
SHORT_CONVOLUTION: Final = StateLayer(
    LayerSource.SHORT_CONVOLUTION,
    {"taps_of_convolution": "conv_L_cache"},
    {"mixed": "conv.in_proj.weight", "out": "conv.out_proj.weight", "convolution": "conv.conv.weight"},
)
MAMBA: Final = StateLayer(
    LayerSource.MAMBA,
    {
        "taps_of_convolution": "mamba_d_conv", "key_heads": "mamba_n_groups", "value_heads": "mamba_n_heads",
        "key_size": "mamba_d_state", "value_size": "mamba_d_head",
    },
    {
        "mixed": "mamba.in_proj.weight", "out": "mamba.out_proj.weight", "convolution": "mamba.conv1d.weight",
        "convolution_bias": "mamba.conv1d.bias", "decay_rate": "mamba.A_log", "decay_bias": "mamba.dt_bias",
        "state_norm": "mamba.norm.weight", "skip": "mamba.D",
    },
)  # fmt: skip
TILED: Final = "tiled_value_heads"
"""The setting of a model from a GGUF file of llama.cpp, in which value heads take turns with key heads."""
