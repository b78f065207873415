"""Copies of models for tracing: their graphs compute in float32, and hold matrices in bfloat16 as they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn


def float32_copy(model: Any) -> Any:
    """A copy in float32 without gradients; it shares weights that are float32."""
    return _copied(model, {id(w): w.detach().float() for w in model.parameters()})


def traceable(model: Any) -> Any:
    """The model if all weights are float32; else a copy that computes in float32 and shares all matrices.

    Matrices that are not float32 are converted where they are read. They become constants of the traced graph, which
    converts them too. These share the memory of the model, which must live as long.
    """
    if all(weight.dtype == torch.float32 for weight in model.parameters()):
        return model
    found = _copied(model, {id(w): _held(w) for w in model.parameters()})
    layers: list[Any] = [*found.modules()]
    for layer in layers:
        if short := tuple(n for n, w in layer.named_parameters(recurse=False) if w.dtype != torch.float32):
            kind: Any = type(layer)
            layer.__class__ = _reading(kind, short)
    return found


def _copied(model: Any, weights: Mapping[int, Tensor]) -> Any:
    known: dict[int, Any] = {key: nn.Parameter(weight, requires_grad=False) for key, weight in weights.items()}
    known |= {id(b): b.detach().float() for b in model.buffers() if b.is_floating_point()}
    return copy.deepcopy(model, known)


def _held(weight: Tensor) -> Tensor:
    return weight.detach() if weight.ndim > 1 and weight.is_contiguous() else weight.detach().float()


class _Embedding(nn.Embedding):
    """Converts the rows that it found."""

    def forward(self, tokens: Tensor) -> Tensor:
        if self.max_norm is not None:  # it changes its matrix
            return super().forward(tokens)
        held: Any = self._parameters["weight"]
        return nn.functional.embedding(tokens, held, self.padding_idx).float()


@cache
def _reading(kind: Any, short: tuple[str, ...]) -> type[nn.Module]:
    """A class of layers that reads its parameters of these names in float32."""
    # A subclass, such as an embedding that is scaled, finds ours where it calls the forward of its base.
    bases = (_Embedding,) if kind is nn.Embedding else (kind, _Embedding) if issubclass(kind, nn.Embedding) else (kind,)

    def listed(layer: Any) -> list[str]:  # the tracer would read, and so convert, whatever is listed
        return [name for name in kind.__dir__(layer) if name not in short]

    return type(str(kind.__name__), bases, {"__dir__": listed, **{name: _in_float32(name) for name in short}})


def _in_float32(name: str) -> property:
    return property(lambda layer: layer._parameters[name].float())


@cache
def products() -> list[Any]:
    """What the tracer writes for linear layers of a copy: OpenVINO's product with a matrix of any number format.

    Nothing is computed meanwhile. The tracer would keep every converted matrix.
    """
    from openvino.frontend.pytorch import ModuleExtension

    def converted(layer: nn.Module, product: Any, values: Tensor) -> Any:
        return product(values, layer._parameters["weight"], layer.bias)

    def computed(layer: Any, values: Tensor, *_weights: Any) -> Tensor:
        return values.new_zeros(*values.shape[:-1], layer.out_features)

    linear = _reading(nn.Linear, ("weight",))
    return [ModuleExtension(linear, "ov_ext::linear", convert=converted, evaluate=computed)]
