"""From names and shapes, as written on the command line, to a drafter and a verifier that fit together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast, final, get_args

from draftwood.draft import Drafter
from draftwood.draft.best_first import BestFirst
from draftwood.draft.iid import IndependentChains
from draftwood.draft.level import Growth, LevelDrafter
from draftwood.draft.ngram import NGram
from draftwood.draft.none import NoDraft
from draftwood.draft.pace import Pace
from draftwood.draft.rsd_c import ConstantBranching
from draftwood.draft.rsd_s import StochasticBeam
from draftwood.draft.shared_noise import SharedNoiseBranching
from draftwood.errors import ConfigError, PairingError
from draftwood.models import Runner
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal

MethodName: TypeAlias = Literal["auto", "ar", "chain", "iid", "rsd-c", "rsd-s", "shared-noise", "ngram"]
VerifierName: TypeAlias = Literal["auto", "recursive", "traversal", "coupled", "greedy"]
NEEDS_DRAFT: frozenset[str] = frozenset({"chain", "iid", "rsd-c", "rsd-s", "shared-noise"})
VERIFIERS: dict[str, type[Verifier]] = {"recursive": Recursive, "traversal": Traversal, "coupled": Coupled, "greedy": Greedy}
DEFAULT_SHAPES = {"chain": "4", "iid": "3x4", "rsd-c": "2-2-2", "rsd-s": "3x4", "ngram": "5"}
PACED_NODES, PACED_WIDTH, PACED_LENGTH = 24, 6, 8  # the most that a tree may grow to which grows as it pays
MAX_NODES = 512

_WANTED = {
    "chain": "a length such as 4",
    "ngram": "a length such as 5",
    "iid": "width x length such as 3x4",
    "rsd-c": "branching such as 2-2-2",
    "rsd-s": "width x length such as 3x4",
    "shared-noise": "branching such as 2-2-2, or width x length such as 4x6 with --nodes",
}


@final
@dataclass(frozen=True, kw_only=True)
class Method:
    """What is drafted and how it is verified.

    Attributes:
        method, verifier: names; ``auto`` picks what fits the temperature and the models at hand.
        shape: ``2-2-2`` is branching, ``3x5`` is width x length, ``4`` is the length of a chain.
        nodes: the node budget of a shared-noise tree; without one (and without a shape) it grows as far as it pays.
    """

    method: MethodName = field(default="auto", metadata={"help": "how the draft is made"})
    verifier: VerifierName = field(default="auto", metadata={"help": "how it is verified"})
    shape: str | None = field(default=None, metadata={"help": "2-2-2 is branching, 3x5 width x length, 4 a chain"})
    nodes: int | None = field(default=None, metadata={"help": "node budget of a shared-noise tree"})

    def __post_init__(self) -> None:
        for name, value, kind in (("method", self.method, MethodName), ("verifier", self.verifier, VerifierName)):
            if value not in get_args(kind):
                raise ConfigError(f"{name} is {value!r}: choose one of {', '.join(get_args(kind))}")
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes is {self.nodes}: give a number from 1 to {MAX_NODES}")
        if self.nodes is not None and self.method not in ("auto", "shared-noise"):
            raise ConfigError(
                f"nodes is a budget for method 'shared-noise'; the tree of method {self.method!r} is given by its shape"
            )


def resolve(method: Method, *, has_draft: bool, greedy: bool) -> Method:
    """The method with every ``auto`` replaced.

    Raises:
        PairingError: a method that needs a draft model without one.
    """
    name: MethodName = method.method
    if name == "auto":
        name = "shared-noise" if has_draft else "ngram"
        if method.nodes is not None and not has_draft:
            raise PairingError(
                "nodes is a budget for a draft model's trees, but there is no draft: give --draft, or leave it out"
            )
    if name in NEEDS_DRAFT and not has_draft:
        raise PairingError(f"method {name!r} needs a draft model: give --draft, or use --method ngram or ar")
    verifier: VerifierName = method.verifier
    if verifier == "auto":
        # Plain decoding is coupled too: then the same seed gives the same text with and without a draft.
        verifier = "greedy" if greedy else "coupled" if name in ("ar", "shared-noise", "ngram") else "recursive"
    return Method(method=name, verifier=verifier, shape=method.shape or DEFAULT_SHAPES.get(name), nodes=method.nodes)


def build(method: Method, draft: Runner | None, *, greedy: bool) -> tuple[Drafter, Verifier]:
    """The drafter and the verifier of a method.

    Raises:
        ConfigError: a shape that the method cannot have.
        PairingError: a method that needs a draft model without one.
    """
    chosen = resolve(method, has_draft=draft is not None, greedy=greedy)
    return _drafter(chosen, draft), VERIFIERS[chosen.verifier]()


def _drafter(method: Method, draft: Runner | None) -> Drafter:
    name, shape = method.method, method.shape
    if name == "ar":
        if shape is not None:
            raise ConfigError(f"shape {shape!r} was given, but method 'ar' drafts nothing: leave one of them out")
        return NoDraft()
    if name == "ngram":
        return NGram(sum(_branching(name, shape)))
    runner = cast(Runner, draft)
    if name == "shared-noise" and (shape is None or "x" in shape):
        return _best_first(runner, method.nodes, _beam(name, shape) if shape else None)
    if method.nodes is not None:
        raise ConfigError(f"nodes and the fixed shape {shape!r} exclude each other: give one of them")
    return LevelDrafter(runner, _growth(name, shape))


def _best_first(runner: Runner, nodes: int | None, beam: tuple[int, int] | None) -> BestFirst:
    if nodes is None and beam is None:
        return BestFirst(runner, nodes=PACED_NODES, width=PACED_WIDTH, length=PACED_LENGTH, pace=Pace())
    if beam is not None:
        return BestFirst(runner, nodes=nodes or beam[0] * beam[1], width=beam[0], length=beam[1])
    count = cast(int, nodes)
    return BestFirst(runner, nodes=count, width=max(2, count // 4), length=max(1, min(8, 2 + count // 4, count)))


def _growth(name: str, shape: str | None) -> Growth:
    if name == "chain" or name == "rsd-c":
        return ConstantBranching(_branching(name, shape))
    if name == "shared-noise":
        return SharedNoiseBranching(_branching(name, shape))
    return StochasticBeam(*_beam(name, shape)) if name == "rsd-s" else IndependentChains(*_beam(name, shape))


def _branching(name: str, shape: str | None) -> tuple[int, ...]:
    if shape is not None and re.fullmatch(r"[1-9]\d*", shape) and name in ("chain", "ngram"):
        numbers = (1,) * min(int(shape), MAX_NODES + 1)
    elif shape is not None and re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", shape):
        numbers = tuple(int(part) for part in shape.split("-"))
    else:
        raise _bad_shape(name, shape)
    if name in ("chain", "ngram") and max(numbers) > 1:
        raise _bad_shape(name, shape)
    nodes, level = 0, 1
    for count in numbers:
        level *= count
        nodes += level
        _check_size(name, shape, nodes)
    return numbers


def _beam(name: str, shape: str | None) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", shape or "")
    if match is None:
        raise _bad_shape(name, shape)
    width, length = int(match[1]), int(match[2])
    _check_size(name, shape, width * length)
    return width, length


def _check_size(name: str, shape: str | None, nodes: int) -> None:
    if nodes > MAX_NODES:
        raise ConfigError(f"shape {shape!r} of method {name!r} has more than {MAX_NODES} nodes: give a smaller one")


def _bad_shape(name: str, shape: str | None) -> ConfigError:
    return ConfigError(f"shape {shape!r} does not fit method {name!r}: give {_WANTED[name]}")
