"""Weights by name, as the native engine takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from draftwood.native.library import Facts, LayerSource, Matrix
from draftwood.runners.native.experts import expert_sources
from draftwood.runners.native.family import ROUTER, SCALAR, SINKS, Family, StateLayer
from draftwood.runners.native.states import state_source
from draftwood.runners.native.weights import Weight, sized, turned

Part: TypeAlias = Tensor | Weight


@final
class Held:
    """Tensors whose memory the engine reads; they live at least as long as this object.

    Args:
        dtype: the model's number format.
        coded: codes stay codes.
        mapped: pages of files in which matrices lie leave the process once they are packed.
    """

    def __init__(self, dtype: torch.dtype, *, coded: bool = False, mapped: bool = False) -> None:
        self.dtype, self.coded, self._mapped = dtype, coded, mapped
        self._kept: list[Any] = []

    def weights(self, part: Tensor) -> int:
        """Where these weights lie, in the model's format."""
        return self._place(part.detach().to(self.dtype).contiguous())

    def matrix(self, part: Part) -> Matrix:
        """The same as a matrix."""
        if isinstance(part, Tensor):
            place = self.weights(part)
            return Matrix(place, -1, 0, self._kept[-1].nbytes if self._mapped else 0)
        made = part.made()
        self._kept.append(made)
        return made.matrix(coded=self.coded)

    def numbers(self, part: Any) -> int | None:
        """Where these numbers lie in float32; None for None."""
        if part is None:
            return None
        return self._place(self.tensor(part).float().contiguous())

    def tensor(self, part: Part) -> Tensor:
        """The same as a tensor, whose numbers are those of the model's format."""
        return part.tensor(self.dtype) if isinstance(part, Weight) else part.detach()

    def _place(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def factor(weight: Any, family: Family, dtype: torch.dtype) -> Any:
    """What a norm multiplies by; None if there is no norm, or one that does nothing."""
    if weight is None or not family.plus_one:
        return weight
    return (weight.tensor(dtype) if isinstance(weight, Weight) else weight.detach()).float() + 1


def _products(
    part: Callable[[str], Any], family: Family, shapes: Mapping[str, Any], head: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The matrices of a layer, apart where one weight has several, and their biases. Heads have the size ``head``."""
    modules, _ = family.modules()
    found = {name: part(f"{module}.weight") for name, module in modules.items()}
    for module, names in family.fused.items():
        if (both := part(f"{module}.weight")) is not None:
            found |= zip(names, both.split([shapes[name][0] for name in names]), strict=True)
    biases = {f"{name}_bias": part(f"{module}.bias") for name, module in modules.items()}
    if family.interleaved:
        for whole, names in ((found, ("query", "key")), (biases, ("query_bias", "key_bias"))):
            whole |= {name: whole[name] if whole[name] is None else turned(whole[name], head) for name in names}
    if family.varied and found["value"] is None:  # values are made as keys are
        found["value"], biases["value_bias"] = found["key"], biases["key_bias"]
    return found, biases


def _router(part: Callable[[str], Any], held: Held, width: int) -> dict[str, Any]:
    """What a router's inputs and the weights of its experts are multiplied by, or None."""
    found = {name: part(module) for name, module in ROUTER.items()}
    if (scale := found["router_norm"]) is not None:
        found["router_norm"] = held.tensor(scale).float() * width**-0.5
    return found


def layer_source(
    weights: Mapping[str, Any],
    prefix: str,
    held: Held,
    facts: Facts,
    family: Family,
    window: int = 0,
    rotary: int = 0,
    states: StateLayer | None = None,
    lender: int = 0,
) -> LayerSource:
    """The weights of a layer; raises a ModelError if one has another shape than the facts say.

    Args:
        weights: by name; those of the layer begin with ``prefix``.
        held: keeps their memory alive.
        facts: of the model, with the sizes of the layer.
        family: of the model.
        window: tokens that a token sees at most; 0 for all.
        rotary: the layer's table of rotations; -1 for none.
        states: the kind of a layer with a running state.
        lender: how many layers before it is the one whose keys and values it reads; 0 for its own.
    """

    def part(name: str) -> Any:
        return weights.get(prefix + name)

    joined = part("hidden_norm.weight")  # of a drafter that reads features
    shapes = LayerSource.shapes(facts, facts.width if joined is None else 2 * facts.width)
    products, biases = _products(part, family, shapes, facts.head_dim)
    norms = {name: part(f"{module}.weight") for name, module in family.modules()[1].items()}

    def taken(take: Callable[[Any], Any], parts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: take(sized(name, one, *shapes[name])) for name, one in parts.items() if one is not None}

    return LayerSource(
        **taken(held.matrix, products),
        **taken(held.numbers, biases),
        **taken(held.numbers, {name: factor(one, family, held.dtype) for name, one in norms.items()}),
        **taken(held.numbers, {"hidden_norm": joined, "sinks": part(SINKS) if family.sinks else None}),
        **taken(held.numbers, {"scalar": part(SCALAR), **_router(part, held, facts.width)}),
        **{name: getattr(facts, name) for name in LayerSource.SIZES},
        **expert_sources(part, held, facts, family),
        **(state_source(states, part, held, facts) if states is not None else {}),
        window=window,
        rotary=rotary,
        lender=lender,
    )
