"""The facts about every method, for the command line, ``info``, tables of the documentation and errors.

This module imports nothing heavy; :mod:`draftwood.engine.methods` builds the drafters. A new method needs a
:class:`MethodSpec` here, its name in :data:`MethodName` and a builder there; ``tests/core/test_methods.py`` finds missing
parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, final

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError
from draftwood.core.shapes import MAX_NODES, Branching, Length, Shape, WidthByLength
from draftwood.core.verifiers import VERIFIERS, VerifierName

MethodName: TypeAlias = Literal[
    "auto", "ar", "chain", "iid", "rsd-c", "rsd-s", "dynamic", "shared-noise", "adaptive", "block", "ngram", "lookup",
]  # fmt: skip
Needs: TypeAlias = Literal["nothing", "draft", "block"]
"""No draft model, any draft model, or one that scores a whole block in one forward."""


@final
@dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """The facts about a method.

    Attributes:
        name: the name on the command line.
        summary: one line for help and tables.
        source: the paper.
        draw: how siblings are chosen.
        greedy_draw: how they are chosen at temperature 0, where that differs.
        needs: the draft model that the method needs.
        verifier: the verifier of ``auto`` above temperature 0.
        shapes: kind of shape -> an example, for each kind that the method takes.
        no_shape: why the method takes no shape.
        shape: the default shape.
        nodes: the most nodes of a tree without shape and node budget; None if there is a default shape.
        grows: such a tree grows as far as it pays.
        repeats: it drafts what stands in the texts, and in a draft text.
        takes_nodes: the method takes a node budget.
    """

    name: MethodName
    summary: str
    source: str
    draw: Draw = Draw.WITHOUT_REPLACEMENT
    needs: Needs = "draft"
    verifier: VerifierName = "recursive"
    shapes: Mapping[type[Shape], str] = field(default_factory=dict)
    no_shape: str = ""
    shape: str | None = None
    nodes: int | None = None
    repeats: bool = False
    grows: bool = False
    greedy_draw: Draw | None = None
    takes_nodes: bool = False

    @property
    def verifiers(self) -> list[VerifierName]:
        """The verifiers that are exact for the method, in the order of :data:`VERIFIERS`."""
        return [verifier.name for verifier in VERIFIERS.values() if verifier.lossless and self.draw in verifier.draws]

    @property
    def wanted(self) -> str:
        """The shapes that the method takes, in words."""
        return ", or ".join(f"{kind.wanted} such as {example}" for kind, example in self.shapes.items())

    @property
    def size(self) -> str:
        """The default size, in a few words."""
        return self.shape or ("-" if self.nodes is None else f"up to {self.nodes}")

    def parse(self, text: str) -> Shape:
        """The shape that ``text`` describes.

        Raises:
            ConfigError: the method takes no shape or not this kind, or the tree is too large.
        """
        if not self.shapes:
            raise ConfigError(f"shape {text!r} was given, but method {self.name!r} {self.no_shape}: leave one of them out")
        shape = next((found for kind in self.shapes if (found := kind.parse(text)) is not None), None)
        if shape is None:
            raise ConfigError(f"shape {text!r} does not fit method {self.name!r}: give {self.wanted}")
        if shape.nodes > MAX_NODES:
            raise ConfigError(f"shape {text!r} of method {self.name!r} has more than {MAX_NODES} nodes: give a smaller one")
        return shape


_SPECS: Final = (
    MethodSpec(
        name="ar",
        summary="plain decoding: no draft",
        source="-",
        draw=Draw.POINT_MASS,
        needs="nothing",
        verifier="coupled",
        no_shape="drafts nothing",
    ),
    MethodSpec(
        name="chain",
        summary="one drawn token after another",
        source="Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv 2302.01318",
        shapes={Length: "4"},
        shape="4",
    ),
    MethodSpec(
        name="iid",
        summary="independent chains",
        source="SpecInfer, arXiv 2305.09781; SpecTr, arXiv 2310.15141",
        draw=Draw.INDEPENDENT,
        shapes={WidthByLength: "3x4"},
        shape="3x4",
    ),
    MethodSpec(
        name="rsd-c",
        summary="a tree of constant branching, siblings drawn without replacement",
        source="RSD-C: Jeon et al. 2024, arXiv 2402.14160",
        shapes={Branching: "2-2-2"},
        shape="2-2-2",
    ),
    MethodSpec(
        name="rsd-s",
        summary="a stochastic beam: the same number of nodes on every level",
        source="RSD-S: Jeon et al. 2024, arXiv 2402.14160; Kool et al. 2019",
        shapes={WidthByLength: "3x4"},
        shape="3x4",
    ),
    MethodSpec(
        name="dynamic",
        summary="a drawn tree, grown where the draft is most certain",
        source="after EAGLE-2: Li et al. 2024, arXiv 2406.16858",
        greedy_draw=Draw.POINT_MASS,
        verifier="traversal",
        shapes={WidthByLength: "4x8"},
        nodes=14,
        takes_nodes=True,
    ),
    MethodSpec(
        name="shared-noise",
        summary="a tree ranked with the target's own Gumbel noise, grown as far as it pays",
        source="after Daliri et al. 2024 and EAGLE-2, arXiv 2406.16858",
        draw=Draw.SHARED_NOISE,
        verifier="coupled",
        shapes={Branching: "2-2-2", WidthByLength: "4x6"},
        nodes=24,
        grows=True,
        takes_nodes=True,
    ),
    MethodSpec(
        name="adaptive",
        summary="shared-noise trees with prompt lookup, grown as far as it pays",
        source="after Dinkelbach 1967, Sequoia, arXiv 2402.12374, and prompt lookup",
        draw=Draw.SHARED_NOISE,
        verifier="coupled",
        no_shape="grows its trees as far as it pays",
        nodes=24,
        grows=True,
        repeats=True,
    ),
    MethodSpec(
        name="block",
        summary="a chain from one forward of a draft model that scores a whole block",
        source="SpecDec: Xia et al. 2023, arXiv 2203.16487",
        needs="block",
        shapes={Length: "10"},
        nodes=8,
    ),
    MethodSpec(
        name="ngram",
        summary="prompt lookup: what followed the text's ending before",
        source="Saxena 2023",
        draw=Draw.POINT_MASS,
        needs="nothing",
        verifier="coupled",
        shapes={Length: "5"},
        shape="5",
        repeats=True,
    ),
    MethodSpec(
        name="lookup",
        summary="prompt lookup, drafted as far as it pays",
        source="after Saxena 2023 and Dinkelbach 1967",
        draw=Draw.POINT_MASS,
        needs="nothing",
        verifier="coupled",
        no_shape="drafts as far as it pays",
        nodes=24,
        grows=True,
        repeats=True,
    ),
)
METHODS: Final[dict[str, MethodSpec]] = {spec.name: spec for spec in _SPECS}
