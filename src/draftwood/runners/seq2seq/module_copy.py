"""Shallow copies of modules: some parts are replaced, weights are shared, and the user's module is unchanged."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn


def shallow_copy(module: Any) -> Any:
    """A copy of a module with the same weights, buffers and parts, in which parts can be replaced."""
    out = copy.copy(module)
    out.__dict__["_modules"] = dict(module._modules)
    return out


def with_parts(module: Any, parts: Mapping[str, nn.Module]) -> Any:
    """A copy of a module with other parts at these dotted names; everything else is shared."""
    out = shallow_copy(module)
    deeper: dict[str, dict[str, nn.Module]] = {}
    for name, part in parts.items():
        first, _, rest = name.partition(".")
        if rest:
            deeper.setdefault(first, {})[rest] = part
        else:
            out._modules[first] = part
    for first, inner in deeper.items():
        out._modules[first] = with_parts(out._modules[first], inner)
    return out


def name_of(part: Any, module: nn.Module) -> str:
    """The dotted name of a part of a module; raises a LookupError if it has no such part."""
    for name, candidate in module.named_modules():
        if candidate is part:
            return str(name)
    raise LookupError(f"{type(part).__name__} is not a part of {type(module).__name__}")
