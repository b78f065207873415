"""Sizes of trees, as written on the command line: ``4``, ``2-2-2`` or ``3x4``.

Every kind has ``wanted`` (its name in an error), ``parse`` (None for a text of another kind), ``length`` (levels below the
root) and ``nodes`` (without the root; a lower bound above ``MAX_NODES``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias, final

MAX_NODES: Final = 512  # of a tree, without the root
_NUMBER: Final = r"[1-9]\d*"
_LONGEST: Final = 9  # digits: a number with more of them is too large


@final
@dataclass(frozen=True)
class Length:
    """A chain: ``4`` or ``1-1-1-1``."""

    length: int
    wanted: ClassVar[str] = "a length"

    @property
    def nodes(self) -> int:
        return self.length

    @property
    def counts(self) -> tuple[int, ...]:
        """Children of a node, level by level."""
        return (1,) * self.length

    @classmethod
    def parse(cls, text: str) -> Length | None:
        if re.fullmatch(_NUMBER, text):
            return cls(_number(text))
        return cls(len(text.split("-"))) if re.fullmatch(r"1(-1)+", text) else None


@final
@dataclass(frozen=True)
class Branching:
    """The number of children of every node, level by level: ``2-2-2``."""

    counts: tuple[int, ...]
    wanted: ClassVar[str] = "branching"

    @property
    def length(self) -> int:
        return len(self.counts)

    @property
    def nodes(self) -> int:
        nodes, level = 0, 1
        for count in self.counts:
            level *= count
            nodes += level
            if nodes > MAX_NODES:
                break
        return nodes

    @classmethod
    def parse(cls, text: str) -> Branching | None:
        found = re.fullmatch(rf"{_NUMBER}(-{_NUMBER})*", text)
        return cls(tuple(map(_number, text.split("-")))) if found else None


@final
@dataclass(frozen=True)
class WidthByLength:
    """The same number of nodes on every level: ``3x4`` has 3 on each of 4 levels."""

    width: int
    length: int
    wanted: ClassVar[str] = "width x length"

    @property
    def nodes(self) -> int:
        return self.width * self.length

    @classmethod
    def parse(cls, text: str) -> WidthByLength | None:
        found = re.fullmatch(rf"({_NUMBER})x({_NUMBER})", text)
        return cls(_number(found[1]), _number(found[2])) if found else None


Shape: TypeAlias = Length | Branching | WidthByLength


def _number(text: str) -> int:
    return int(text) if len(text) <= _LONGEST else 10**_LONGEST
