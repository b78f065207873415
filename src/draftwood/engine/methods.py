"""From names and shapes, as written on the command line, to a drafter and a verifier that fit together."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast, get_args

from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.settings import BETA, MAX_NODES, TAU, Method, MethodName, VerifierName
from draftwood.core.tree import Draw
from draftwood.draft import Drafter
from draftwood.draft.best_first import BestFirst
from draftwood.draft.block import BlockChain
from draftwood.draft.fans import DrawnFan, Fan, SharedFan
from draftwood.draft.hybrid import HybridBeam, HybridBranching
from draftwood.draft.iid import IndependentChains
from draftwood.draft.level import LevelDrafter, LevelPolicy
from draftwood.draft.lookup import Lookup
from draftwood.draft.ngram import NGram
from draftwood.draft.none import NoDraft
from draftwood.draft.pace import Pace
from draftwood.draft.rsd_c import ConstantBranching
from draftwood.draft.rsd_s import StochasticBeam
from draftwood.draft.shared_noise import SharedNoiseBranching
from draftwood.runners.protocols import BlockRunner, LongBlockRunner, Runner
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.tolerance import Tolerance
from draftwood.verify.traversal import Traversal

NEEDS_DRAFT: frozenset[str] = frozenset(get_args(MethodName)) - {"auto", "ar", "ngram"}
NEEDS_BLOCK = frozenset({"block"})  # a draft that scores a whole block in one forward
VERIFIERS: dict[str, type[Verifier]] = {
    "recursive": Recursive, "traversal": Traversal, "coupled": Coupled, "greedy": Greedy, "tolerance": Tolerance
}  # fmt: skip
DEFAULT_SHAPES = {"chain": "4", "iid": "3x4", "rsd-c": "2-2-2", "rsd-s": "3x4", "hybrid": "3x4", "ngram": "5"}
PACED_NODES, PACED_WIDTH, PACED_LENGTH = 24, 4, 8  # the most that a tree may grow to which grows as it pays
NODES = 14  # of a dynamic tree
SHARED_FAN, DRAWN_FAN = 6, 3  # children of a node of a best-first tree, at most
BLOCK = 8  # places of a block where nobody says otherwise: the target pays for every one
SHAPELESS = {"ar": "drafts nothing", "adaptive": "grows its trees as far as it pays"}
_CHAINS = ("chain", "ngram", "block")  # whose shape is a length

_VERIFIED_BY: dict[str, VerifierName] = {
    "ar": "coupled", "shared-noise": "coupled", "adaptive": "coupled", "ngram": "coupled", "dynamic": "traversal"
}  # fmt: skip
_WANTED = {
    "chain": "a length such as 4",
    "ngram": "a length such as 5",
    "block": "a length such as 10",
    "iid": "width x length such as 3x4",
    "rsd-c": "branching such as 2-2-2",
    "rsd-s": "width x length such as 3x4",
    "hybrid": "width x length such as 3x4, or branching such as 2-2-1",
    "dynamic": "width x length of the part that is drafted, such as 4x8",
    "shared-noise": "branching such as 2-2-2, or width x length such as 4x6 with --nodes",
}


def resolve(method: Method, *, has_draft: bool, greedy: bool, has_block: bool = False) -> Method:
    """The method with every ``auto`` replaced.

    Args:
        method: what was asked for.
        has_draft: there is a draft model.
        greedy: for temperature 0.
        has_block: the draft model is a :class:`draftwood.runners.protocols.BlockRunner`.

    Raises:
        ConfigError: ``beta`` or ``tau`` above temperature 0.
        PairingError: a method that needs a draft model without one.
    """
    name: MethodName = method.method
    if name == "auto":
        # A budget of nodes asks for a tree, which a draft of blocks can grow too; so does a shape.
        drafted: MethodName = "block" if has_block else "adaptive"
        if method.nodes is not None or (method.shape is not None and not has_block):
            drafted = "shared-noise"
        name = drafted if has_draft else "ngram"
        if method.nodes is not None and not has_draft:
            raise PairingError(
                "nodes is a budget for a draft model's trees, but there is no draft: give --draft, or leave it out"
            )
    if name in NEEDS_DRAFT and not has_draft:
        raise PairingError(f"method {name!r} needs a draft model: give --draft, or use --method ngram or ar")
    beta, tau, verifier = method.beta, method.tau, method.verifier
    if (beta, tau) != (None, None):
        if not greedy and verifier != "tolerance":  # where that is named, the decoder refuses it by name
            raise ConfigError(
                "beta and tau are for temperature 0, where there is a best token: leave them out, or ask for it"
            )
        verifier = "tolerance"
    if verifier == "auto":
        # Plain decoding is coupled too: then the same seed gives the same text with and without a draft.
        verifier = "greedy" if greedy else _VERIFIED_BY.get(name, "recursive")
    if verifier == "tolerance":
        beta, tau = _tolerance(method).beta, _tolerance(method).tau
    shape = method.shape or DEFAULT_SHAPES.get(name)
    return replace(method, method=name, verifier=verifier, shape=shape, beta=beta, tau=tau)


def build(method: Method, draft: Runner | None, *, greedy: bool) -> tuple[Drafter, Verifier]:
    """The drafter and the verifier of a method.

    Raises:
        ConfigError: a shape that the method, or the draft model, cannot have.
        PairingError: a method that needs a draft model without one, or one of another kind.
    """
    chosen = resolve(method, has_draft=draft is not None, greedy=greedy, has_block=isinstance(draft, BlockRunner))
    verifier = _tolerance(chosen) if chosen.verifier == "tolerance" else VERIFIERS[chosen.verifier]()
    return _drafter(chosen, draft, greedy), verifier


def _tolerance(method: Method) -> Tolerance:
    return Tolerance(BETA if method.beta is None else method.beta, TAU if method.tau is None else method.tau)


def _drafter(method: Method, draft: Runner | None, greedy: bool) -> Drafter:
    name, shape = method.method, method.shape
    if name in SHAPELESS and shape is not None:
        raise ConfigError(f"shape {shape!r} was given, but method {name!r} {SHAPELESS[name]}: leave one of them out")
    if name == "ar":
        return NoDraft()
    if name == "ngram":
        return NGram(sum(_branching(name, shape)))
    runner = cast(Runner, draft)
    if name == "block":
        return _block(runner, shape)
    if name in ("dynamic", "adaptive") or (name == "shared-noise" and (shape is None or "x" in shape)):
        return _best_first(method, runner, greedy)
    if method.nodes is not None:
        raise ConfigError(f"nodes and the fixed shape {shape!r} exclude each other: give one of them")
    policy = _policy(name, shape)
    _check_depth(name, shape, len(policy.widths), runner)
    return LevelDrafter(runner, policy, None if method.min_gain is None else float(method.min_gain))


def _block(runner: Runner, shape: str | None) -> BlockChain:
    if not isinstance(runner, BlockRunner):
        raise PairingError(
            f"method 'block' needs a draft that scores a whole block at once, which this one ({type(runner).__name__}) does "
            "not: give one made by 'draftwood train draft --parallel' or 'train spec-drafter', or use --method chain"
        )
    length = min(BLOCK, runner.block) if shape is None else len(_branching("block", shape))
    if length > runner.block and isinstance(runner, LongBlockRunner):
        runner = runner.longer(length)
    _check_depth("block", shape, length, runner)
    return BlockChain(runner, length)


def _best_first(method: Method, runner: Runner, greedy: bool) -> BestFirst:
    drawn, nodes = method.method == "dynamic", method.nodes
    fan: Fan = SharedFan(SHARED_FAN)
    if drawn:  # at temperature 0 nothing is drawn, and any tree is legal
        fan = SharedFan(SHARED_FAN, "dynamic", Draw.POINT_MASS) if greedy else DrawnFan(DRAWN_FAN)
    if drawn:
        nodes = nodes or NODES
    if method.shape is not None:
        width, length = _beam(method.method, method.shape)
        _check_depth(method.method, method.shape, length, runner)
        return BestFirst(runner, fan, nodes=nodes or width * length, width=width, length=length)
    deepest = runner.block if isinstance(runner, BlockRunner) else MAX_NODES
    if nodes is None:
        return BestFirst(
            runner,
            fan,
            nodes=PACED_NODES,
            width=PACED_WIDTH,
            length=min(PACED_LENGTH, deepest),
            pace=Pace(),
            lookup=Lookup(PACED_NODES) if method.method == "adaptive" else None,
        )
    length = min(12, nodes, deepest) if drawn else max(1, min(8, 2 + nodes // 4, nodes, deepest))
    return BestFirst(runner, fan, nodes=nodes, width=max(2, nodes // 4), length=length)


def _policy(name: str, shape: str | None) -> LevelPolicy:
    if name == "chain" or name == "rsd-c":
        return ConstantBranching(_branching(name, shape))
    if name == "shared-noise":
        return SharedNoiseBranching(_branching(name, shape))
    if name == "hybrid":
        return HybridBeam(*_beam(name, shape)) if shape and "x" in shape else HybridBranching(_branching(name, shape))
    return StochasticBeam(*_beam(name, shape)) if name == "rsd-s" else IndependentChains(*_beam(name, shape))


def _branching(name: str, shape: str | None) -> tuple[int, ...]:
    if shape is not None and re.fullmatch(r"[1-9]\d*", shape) and name in _CHAINS:
        numbers = (1,) * min(int(shape), MAX_NODES + 1)
    elif shape is not None and re.fullmatch(r"[1-9]\d*(-[1-9]\d*)*", shape):
        numbers = tuple(int(part) for part in shape.split("-"))
    else:
        raise _bad_shape(name, shape)
    if name in _CHAINS and max(numbers) > 1:
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


def _check_depth(name: str, shape: str | None, depth: int, runner: Runner) -> None:
    if isinstance(runner, BlockRunner) and depth > runner.block:
        raise ConfigError(
            f"shape {shape!r} of method {name!r} is {depth} tokens deep, but the draft fills blocks of {runner.block}: give "
            "a shape that is no deeper"
        )


def _bad_shape(name: str, shape: str | None) -> ConfigError:
    return ConfigError(f"shape {shape!r} does not fit method {name!r}: give {_WANTED[name]}")
