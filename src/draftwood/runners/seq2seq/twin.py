"""Shallow copies of modules: other parts in other places, the same weights, and the user's module untouched."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn


def twin(module: Any) -> Any:
    """A copy of a module that shares weights, buffers and parts, but may be given other parts."""
    out = copy.copy(module)
    out.__dict__["_modules"] = dict(module._modules)
    return out


def with_parts(module: Any, parts: Mapping[str, nn.Module]) -> Any:
    """A copy of a module in which the parts of these dotted names are others; everything else is shared."""
    out = twin(module)
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
    """The dotted name of a part of a module.

    Raises:
        LookupError: it is no part of it.
    """
    for name, candidate in module.named_modules():
        if candidate is part:
            return str(name)
    raise LookupError(f"{type(part).__name__} is no part of {type(module).__name__}")
