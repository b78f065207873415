"""Which settings are measured, of ours and of the peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    **dict.fromkeys(("genai", "genai-draft", "genai-lookup"), "openvino-genai"),
    **dict.fromkeys(("llama.cpp", "llama.cpp-lookup"), "llama-cpp-python"),
    "llama.cpp-file": "xllamacpp",
}
ENGINES = tuple(PACKAGES)  # other programs
METHODS = OURS + PEERS + ENGINES
TOKEN_BY_TOKEN = ("assisted", "genai-draft")  # of others, with a draft model
DRAFTING = frozenset(name for name, spec in _SPECS.items() if spec.needs != "nothing") | {*TOKEN_BY_TOKEN}


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
    def group(self) -> str:
        """The method, and the batch size where it is not 1."""
        return self.method if self.batch == 1 else f"{self.method} at batch {self.batch}"

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


def _shaped(method: str, shape: str) -> Setting:
    return Setting(method=method, shape=shape, nodes=node_count(shape))


def _references() -> Iterator[Setting]:
    yield Setting(method="ar")
    yield Setting(method="generate")


PEER_SHAPES = {
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
}
ENGINE_SHAPES = {
    "genai": ("",),
    "genai-draft": ("2", "3", "4", "5"),
    "genai-lookup": ("2", "3", "5", "8"),
    "llama.cpp": ("",),
    "llama.cpp-lookup": ("2", "3", "5", "8"),
    "llama.cpp-file": ("",),
}
PEER_NODES = {"dynamic": (4, 6, 10, 14), "shared-noise": (0, 6, 10, 14)}


def peers() -> Iterator[Setting]:
    """Equally many settings of every method, ours and theirs, so that each side's best is chosen from as many."""
    yield from _references()
    for method, shapes in PEER_SHAPES.items():
        yield from (_shaped(method, shape) for shape in shapes)
    yield from (Setting(method=method, nodes=nodes) for method, counts in PEER_NODES.items() for nodes in counts)
    yield Setting(method="adaptive")
    yield Setting(method="lookup")


def all_peers() -> Iterator[Setting]:
    """Other programs too."""
    yield from peers()
    for method, shapes in ENGINE_SHAPES.items():
        yield from (_shaped(method, shape) if shape else Setting(method=method) for shape in shapes)


PLANS: dict[str, Callable[[], Iterable[Setting]]] = {
    "peers": peers,
    "all-peers": all_peers,
}


def plan(preset: str, methods: Sequence[str] | None, *, has_draft: bool) -> list[Setting]:
    """The settings of a preset.

    Args:
        preset: one of ``PLANS``.
        methods: keep only these.
        has_draft: there is a draft model.

    Raises:
        ConfigError: a method that the preset does not measure, or another draft model is needed.
    """
    planned = list(PLANS[preset]())
    known = {setting.method for setting in planned}
    if missing := [name for name in methods or () if name not in known]:
        raise ConfigError(
            f"preset {preset!r} does not measure {', '.join(missing)}: leave it out, or take --preset all-peers, "
            "which measures everything"
        )
    found = [setting for setting in planned if methods is None or setting.method in methods]
    needy = sorted({setting.method for setting in found if setting.method in DRAFTING})
    if needy and not has_draft:
        rest = ",".join(name for name in METHODS if name not in DRAFTING)
        raise ConfigError(f"a draft model is needed for {', '.join(needy)}: give --draft, or measure --methods {rest}")
    return found


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
