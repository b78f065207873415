"""From names and shapes, as written on the command line, to a drafter and a verifier that fit together.

:data:`draftwood.core.methods.METHODS` says what each method takes; :data:`BUILDERS` makes its drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, cast, final

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.methods import METHODS, MethodName
from draftwood.core.settings import BETA, TAU, Method
from draftwood.core.shapes import MAX_NODES, Branching, Length, Shape, WidthByLength
from draftwood.draft import Drafter
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.expand import GumbelExpander, SampledExpander
from draftwood.draft.adaptive.growers import BlockGrower, BurstGrower, Grower, LevelGrower, TreeShape
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.adaptive.settings import AdaptiveSettings
from draftwood.draft.block import BlockChain
from draftwood.draft.hybrid import HybridBeam, HybridBranching
from draftwood.draft.iid import IndependentChains
from draftwood.draft.level import LevelDrafter, LevelPolicy
from draftwood.draft.ngram import ngram
from draftwood.draft.none import NoDraft
from draftwood.draft.rsd_c import ConstantBranching
from draftwood.draft.rsd_s import StochasticBeam
from draftwood.draft.shared_noise import SharedNoiseBranching
from draftwood.runners.protocols import BlockRunner, BurstRunner, LongBlockRunner, Runner
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.tolerance import Tolerance
from draftwood.verify.traversal import Traversal

SAMPLED_CHILDREN = 3  # of a node of a dynamic tree, at most
BLOCK = cast(int, METHODS["block"].nodes)  # tokens of a block without a shape: the target pays for every one


@final
@dataclass(frozen=True, kw_only=True)
class Order:
    """What a builder makes a drafter from.

    Attributes:
        method: without ``auto``.
        shape: its shape, parsed; None where none was given and the method has no default.
        draft: the draft model; None where there is none.
        greedy: for temperature 0.
    """

    method: Method
    shape: Shape | None
    draft: Runner | None
    greedy: bool

    @property
    def runner(self) -> Runner:
        """The draft model of a method that needs one.

        Raises:
            PairingError: there is none.
        """
        if self.draft is None:
            raise _no_draft(self.method.method)
        return self.draft


Builder: TypeAlias = Callable[[Order], Drafter]


def levels(policy: Callable[[Any], LevelPolicy]) -> Builder:
    """The builder of a method that draws level by level, from what makes its policy of a shape."""

    def build_levels(order: Order) -> Drafter:
        if order.method.nodes is not None:
            raise ConfigError(f"nodes and the fixed shape {order.method.shape!r} exclude each other: give one of them")
        made, gain = policy(order.shape), order.method.min_gain
        _check_depth(order, len(made.widths))
        return LevelDrafter(order.runner, made, None if gain is None else float(gain))

    return build_levels


def resolve(method: Method, *, has_draft: bool, greedy: bool, has_block: bool = False) -> Method:
    """The method with every ``auto`` replaced.

    Args:
        method: what the caller chose.
        has_draft: there is a draft model.
        greedy: for temperature 0.
        has_block: the draft model is a :class:`draftwood.runners.protocols.BlockRunner`.

    Raises:
        ConfigError: ``beta`` or ``tau`` above temperature 0.
        PairingError: a method that needs a draft model without one.
    """
    name: MethodName = method.method
    if name == "auto":
        # A budget of nodes means a tree, which a draft of blocks can grow too; so does a shape.
        drafted: MethodName = "block" if has_block else "adaptive"
        if method.nodes is not None or (method.shape is not None and not has_block):
            drafted = "shared-noise"
        name = drafted if has_draft else "ngram"
        if method.nodes is not None and not has_draft:
            raise PairingError(
                "nodes is a budget for a draft model's trees, but there is no draft: give --draft, or leave it out"
            )
    spec = METHODS[name]
    if spec.needs != "nothing" and not has_draft:
        raise _no_draft(name)
    beta, tau, verifier = method.beta, method.tau, method.verifier
    if (beta, tau) != (None, None):
        if not greedy and verifier != "tolerance":  # where that is named, the decoder refuses it by name
            raise ConfigError(
                "beta and tau are for temperature 0, where there is a best token: leave them out, or ask for it"
            )
        verifier = "tolerance"
    if verifier == "auto":
        # Plain decoding is coupled too: then the same seed gives the same text with and without a draft.
        verifier = "greedy" if greedy else spec.verifier
    if verifier == "tolerance":
        beta, tau = BETA if beta is None else beta, TAU if tau is None else tau
    shape = method.shape or spec.shape
    return replace(method, method=name, verifier=verifier, shape=shape, beta=beta, tau=tau)


def build(method: Method, draft: Runner | None, *, greedy: bool) -> tuple[Drafter, Verifier]:
    """The drafter and the verifier of a method.

    Raises:
        ConfigError: a shape that the method, or the draft model, cannot have.
        PairingError: a method that needs a draft model without one, or with one of another kind.
    """
    chosen = resolve(method, has_draft=draft is not None, greedy=greedy, has_block=isinstance(draft, BlockRunner))
    shape = None if chosen.shape is None else METHODS[chosen.method].parse(chosen.shape)
    order = Order(method=chosen, shape=shape, draft=draft, greedy=greedy)
    return BUILDERS[chosen.method](order), VERIFIER_BUILDERS[chosen.verifier](chosen)


def _no_draft(name: str) -> PairingError:
    others = " or ".join(sorted((spec.name for spec in METHODS.values() if spec.needs == "nothing"), reverse=True))
    return PairingError(f"method {name!r} needs a draft model: give --draft, or use --method {others}")


def _hybrid(shape: WidthByLength | Branching) -> LevelPolicy:
    if isinstance(shape, WidthByLength):
        return HybridBeam(shape.width, shape.length)
    return HybridBranching(shape.counts)


def _shared_noise(order: Order) -> Drafter:
    if isinstance(order.shape, Branching):
        return levels(lambda shape: SharedNoiseBranching(shape.counts))(order)
    return _best_first(order)


def _block(order: Order) -> BlockChain:
    runner = order.runner
    if not isinstance(runner, BlockRunner):
        raise PairingError(
            f"method 'block' needs a draft that scores a whole block at once, which this one ({type(runner).__name__}) does "
            "not: give one made by 'draftwood train draft --parallel' or 'train spec-drafter', or use --method chain"
        )
    length = min(BLOCK, runner.block) if order.shape is None else order.shape.length
    if length > runner.block and isinstance(runner, LongBlockRunner):
        runner = runner.longer(length)
    _check_depth(replace(order, draft=runner), length)
    return BlockChain(runner, length)


def _best_first(order: Order) -> BestFirstDrafter:
    if order.method.method == "dynamic":
        return BestFirstDrafter(_dynamic(order))
    if order.shape is None and order.method.nodes is None:
        return _adaptive(order)
    return BestFirstDrafter(_gumbel(order.runner, GumbelExpander(AdaptiveSettings().children), _tree_shape(order)))


def _dynamic(order: Order) -> Grower:
    """At temperature 0 nothing is drawn, and any tree is legal."""
    shape = _tree_shape(order)
    if order.greedy:
        expander = GumbelExpander(AdaptiveSettings().children, name="dynamic", draw=Draw.POINT_MASS)
        return _gumbel(order.runner, expander, shape)
    return LevelGrower(order.runner, SampledExpander(SAMPLED_CHILDREN), shape)


def _adaptive(order: Order) -> BestFirstDrafter:
    """A tree that grows as far as it pays."""
    controller, settings, runner = Controller(), AdaptiveSettings(), order.runner
    depth = min(settings.depth, runner.block) if isinstance(runner, BlockRunner) else settings.depth
    expander = GumbelExpander(settings.children, controller.acceptance)
    shape = TreeShape(settings.nodes, settings.width, depth)
    grower = _gumbel(runner, expander, shape)
    if isinstance(runner, BurstRunner):
        grower = BurstGrower(runner, expander, shape, grower)
    lookup = PromptLookup(settings) if order.method.method == "adaptive" else None
    return BestFirstDrafter(grower, budget=controller, lookup=lookup)


def _gumbel(runner: Runner, expander: GumbelExpander, shape: TreeShape) -> Grower:
    levels = LevelGrower(runner, expander, shape)
    return BlockGrower(runner, expander, shape, levels) if isinstance(runner, BlockRunner) else levels


def _tree_shape(order: Order) -> TreeShape:
    """Of a best-first tree with a fixed budget."""
    dynamic, runner = order.method.method == "dynamic", order.runner
    nodes = order.method.nodes or (METHODS["dynamic"].nodes if dynamic else None)
    if isinstance(order.shape, WidthByLength):
        _check_depth(order, order.shape.length)
        return TreeShape(nodes or order.shape.nodes, order.shape.width, order.shape.length)
    if nodes is None:
        raise ValueError(f"method {order.method.method!r} has neither shape nor nodes: an adaptive tree has no fixed shape")
    most = min(nodes, runner.block if isinstance(runner, BlockRunner) else MAX_NODES)
    depth = min(12, most) if dynamic else max(1, min(8, 2 + nodes // 4, most))
    return TreeShape(nodes, max(2, nodes // 4), depth)


def _check_depth(order: Order, depth: int) -> None:
    if isinstance(order.draft, BlockRunner) and depth > order.draft.block:
        raise ConfigError(
            f"shape {order.method.shape!r} of method {order.method.method!r} is {depth} tokens deep, but the draft fills "
            f"blocks of {order.draft.block}: give a shape that is no deeper"
        )


BUILDERS: Final[dict[str, Builder]] = {
    "ar": lambda order: NoDraft(),
    "chain": levels(lambda shape: ConstantBranching(shape.counts)),
    "iid": levels(lambda shape: IndependentChains(shape.width, shape.length)),
    "rsd-c": levels(lambda shape: ConstantBranching(shape.counts)),
    "rsd-s": levels(lambda shape: StochasticBeam(shape.width, shape.length)),
    "hybrid": levels(_hybrid),
    "dynamic": _best_first,
    "shared-noise": _shared_noise,
    "adaptive": _best_first,
    "block": _block,
    "ngram": lambda order: ngram(cast(Length, order.shape).length),
}
VERIFIER_BUILDERS: Final[dict[str, Callable[[Method], Verifier]]] = {
    "recursive": lambda method: Recursive(),
    "traversal": lambda method: Traversal(),
    "coupled": lambda method: Coupled(),
    "greedy": lambda method: Greedy(),
    "tolerance": lambda method: Tolerance(cast(int, method.beta), cast(float, method.tau)),
}
