"""Which settings are measured, of ours and of the peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, cast, final

from draftwood import METHODS as SPECS
from draftwood.core.errors import ConfigError

if TYPE_CHECKING:
    from draftwood.core.methods import MethodName
    from draftwood.core.settings import Method
    from draftwood.core.verifiers import VerifierName

TRAVERSED = ("chain", "rsd-c", "rsd-s")  # methods whose trees are measured under traversal verification too
OURS = (
    "ar", "chain", "iid", "rsd-c", "rsd-s", *(f"{name}+traversal" for name in TRAVERSED), "dynamic",
    "shared-noise", "adaptive", "ngram", "lookup",
)  # fmt: skip
_SPECS = {name: SPECS[name.partition("+")[0]] for name in OURS}
BY_NODES = tuple(name for name, spec in _SPECS.items() if spec.takes_nodes)
PEERS = ("generate", "assisted", "prompt-lookup")
PACKAGES = {
    **dict.fromkeys(("genai", "genai-lookup"), "openvino-genai"),
    **dict.fromkeys(("llama.cpp", "llama.cpp-lookup"), "llama-cpp-python"),
    "llama.cpp-file": "xllamacpp",
}
ENGINES = tuple(PACKAGES)  # other programs
METHODS = OURS + PEERS + ENGINES
DRAFTING = frozenset(name for name, spec in _SPECS.items() if spec.needs != "nothing") | {"assisted"}


@final
@dataclass(frozen=True, kw_only=True)
class Setting:
    """One way to generate, measured at every temperature.

    Attributes:
        method: one of ``METHODS``; ``+traversal`` names the verifier, otherwise it is the method's own.
        shape: as on the command line; None for no draft, or for a shared-noise tree given by its nodes alone.
        nodes: tokens drafted in a full round; 0 for no draft, or for a shared-noise tree that grows as far as it pays.
        backend: what runs ours, where several do in one run; empty otherwise.
        batch: texts that are continued together.
    """

    method: str
    shape: str | None = None
    nodes: int = 0
    backend: str = ""
    batch: int = 1

    @property
    def kind(self) -> str:
        """The method, and what runs it where several do."""
        return f"{self.method} ({self.backend})" if self.backend else self.method

    @property
    def name(self) -> str:
        """Unique within a run at each batch size."""
        return f"{self.kind} {self.label}".rstrip()

    @property
    def label(self) -> str:
        """The shape in short."""
        free = "as it pays" if self.method == "shared-noise" else ""
        return self.shape or (f"{self.nodes} nodes" if self.nodes else free)

    @property
    def is_peer(self) -> bool:
        """It is none of ours."""
        return self.method in PEERS + ENGINES

    def to_method(self) -> Method:
        """What Draftwood builds for it."""
        from draftwood.core.settings import Method

        nodes = self.nodes or None if self.method in BY_NODES else None
        method, _, verifier = self.method.partition("+")
        return Method(
            method=cast("MethodName", method),
            verifier=cast("VerifierName", verifier or "auto"),
            shape=self.shape,
            nodes=nodes,
        )


def node_count(shape: str) -> int:
    """Drafted nodes of a shape: ``4`` is 4, ``3x5`` is 15, ``2-2-1`` is 2 + 4 + 4."""
    if "x" in shape:
        width, length = shape.split("x")
        return int(width) * int(length)
    return sum(accumulate(map(int, shape.split("-")), mul)) if "-" in shape else int(shape)


SHAPES: Mapping[str, tuple[str, ...]] = {
    "chain": ("2", "3", "4", "5"),
    "iid": ("2x2", "2x3", "3x3", "2x4"),
    "rsd-c": ("2-1", "2-2", "2-1-1", "2-2-1"),
    "rsd-s": ("2x2", "2x3", "3x3", "2x4"),
    "chain+traversal": ("3", "4", "5", "6"),
    "rsd-c+traversal": ("2-1", "2-1-1", "2-1-1-1", "2-2-1"),
    "rsd-s+traversal": ("2x3", "2x4", "2x5", "3x3"),
    "ngram": ("2", "3", "5", "8"),
    "assisted": ("2", "3", "4", "5"),
    "prompt-lookup": ("2", "3", "5", "8"),
    "genai-lookup": ("2", "3", "5", "8"),
    "llama.cpp-lookup": ("2", "3", "5", "8"),
}
NODES: Mapping[str, tuple[int, ...]] = {"dynamic": (4, 6, 10, 14), "shared-noise": (0, 6, 10, 14)}


def settings_of(method: str) -> list[Setting]:
    """Four settings of every method that has shapes, ours and theirs, so that each side's best is chosen from as many."""
    if method in SHAPES:
        return [Setting(method=method, shape=shape, nodes=node_count(shape)) for shape in SHAPES[method]]
    return [Setting(method=method, nodes=nodes) for nodes in NODES.get(method, (0,))]


def plan(methods: Sequence[str], *, has_draft: bool) -> list[Setting]:
    """The settings of some methods.

    Raises:
        ConfigError: a draft model is needed.
    """
    needy = sorted(DRAFTING.intersection(methods))
    if needy and not has_draft:
        rest = ",".join(name for name in METHODS if name not in DRAFTING)
        raise ConfigError(f"a draft model is needed for {', '.join(needy)}: give --draft, or measure --methods {rest}")
    return [setting for method in METHODS if method in methods for setting in settings_of(method)]


def on_backends(settings: Iterable[Setting], backends: Sequence[str]) -> list[Setting]:
    """Ours once for every backend, each marked where there are several."""
    if len(backends) < 2:
        return list(settings)
    return [
        replace(setting, backend="" if setting.is_peer else backend)
        for backend in backends
        for setting in settings
        if not setting.is_peer or backend == backends[0]
    ]


def rank(kind: str) -> tuple[int, str]:
    """By which kinds are sorted: methods as they stand above, ``auto`` first; then what runs them.

    Methods that are gone, which stored results may name, come last.
    """
    method, _, backend = kind.partition(" ")
    known = ("auto", *METHODS)
    return known.index(method) if method in known else len(known), backend
