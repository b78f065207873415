"""A stand-in for jaxtyping, for machines without a network where it is not installed: shapes in signatures say nothing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class Unchecked:
    """Any annotation: ``Float[Tensor, "row node"]``."""

    def __class_getitem__(cls, item: Any) -> type[Unchecked]:
        return cls


def _annotation(name: str) -> type[Unchecked]:
    if not name[0].isupper():
        raise AttributeError(name)
    return Unchecked


def install() -> list[str]:
    """Put stand-ins in the place of packages that are missing and only annotate; returns their names."""
    try:
        import jaxtyping  # noqa: F401
    except ImportError:
        pass
    else:
        return []
    module = ModuleType("jaxtyping")
    vars(module)["__getattr__"] = _annotation
    sys.modules["jaxtyping"] = module
    return ["jaxtyping"]
