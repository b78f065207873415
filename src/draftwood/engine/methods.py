"""Builds a drafter and its verifier from names and shapes, as written on the command line.

:data:`draftwood.core.methods.METHODS` says what each method takes; :data:`BUILDERS` makes its drafter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast, final

from draftwood.core.draws import Draw
from draftwood.core.errors import ConfigError, PairingError
from draftwood.core.fit import resolve, shape_of
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.core.shapes import MAX_NODES, Branching, WidthByLength
from draftwood.draft import Drafter
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.draft_round import TreeShape
from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.expand import GumbelExpander, SampledExpander
from draftwood.draft.adaptive.growers import LevelGrower
from draftwood.draft.block import BlockChain
from draftwood.draft.level import LevelDrafter, LevelPolicy
from draftwood.draft.ngram_index import NgramIndex
from draftwood.draft.none import NoDraft
from draftwood.draft.policies import ConstantBranching, IndependentChains, StochasticBeam
from draftwood.draft.proposed import ProposedChains
from draftwood.runners.protocols import Runner
from draftwood.verify import Verifier
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from draftwood.verify.tolerance import Tolerance
from draftwood.verify.traversal import Traversal

SAMPLED_CHILDREN = 3  # the most children of a node of a dynamic tree
BLOCK = cast(int, METHODS["block"].nodes)  # default tokens of a block: each costs the target


@final
@dataclass(frozen=True, kw_only=True)
class BuildArgs:
    """The arguments of a builder.

    Attributes:
        method: the method, without ``auto``.
        shape: the parsed shape; None without a given or default shape.
        draft: the draft model of a method that needs one, which :func:`draftwood.core.fit.resolve` has seen.
        greedy: temperature 0.
        controllers: decide how far a method without a fixed shape drafts; new ones by default.
    """

    method: Method
    shape: Any
    draft: Any
    greedy: bool
    controllers: Controllers = field(default_factory=Controllers)

    @property
    def deepest(self) -> int:
        """The depth that the draft model reaches."""
        return int(self.draft.block) if self.draft.kind.scores_block else MAX_NODES


Builder: TypeAlias = Callable[[BuildArgs], Drafter]


def levels(policy: Callable[[Any], LevelPolicy]) -> Builder:
    """The builder of a method that draws level by level; ``policy`` makes its policy from a shape."""

    def build_levels(args: BuildArgs) -> Drafter:
        made = policy(args.shape)
        _check_depth(args, len(made.widths))
        return LevelDrafter(args.draft, made)

    return build_levels


def build(
    method: Method, draft: Runner | None, *, greedy: bool, controllers: Controllers | None = None
) -> tuple[Drafter, Verifier]:
    """The drafter and the verifier of a method.

    Args:
        method: the caller's choice.
        draft: the draft model, or None.
        greedy: temperature 0.
        controllers: decide how far a method without a fixed shape drafts; new ones by default.

    Raises:
        ConfigError: a shape that does not fit the method or the draft model.
        PairingError: the method needs a draft model, or one of another kind.
    """
    chosen = resolve(method, None if draft is None else draft.kind, greedy=greedy)
    shape, controllers = shape_of(chosen), controllers or Controllers()
    args = BuildArgs(method=chosen, shape=shape, draft=draft, greedy=greedy, controllers=controllers)
    return BUILDERS[chosen.method](args), VERIFIER_BUILDERS[chosen.verifier](chosen)


def _shared_noise(args: BuildArgs) -> Drafter:
    if isinstance(args.shape, Branching):
        return levels(lambda shape: ConstantBranching(shape.counts, Draw.SHARED_NOISE))(args)
    if args.shape is None and args.method.nodes is None:
        return _adaptive(args)
    return BestFirstDrafter(_grower(args, GumbelExpander(constants.CHILDREN), _tree_shape(args)))


def _block(args: BuildArgs) -> BlockChain:
    if not (runner := args.draft).kind.scores_block:
        raise PairingError(
            f"method 'block' needs a draft that scores a whole block at once, which this one ({type(runner).__name__}) does "
            "not: use --method chain"
        )
    length = min(BLOCK, runner.block) if args.shape is None else args.shape.length
    if length != runner.block:  # its scores depend on the length of the block
        runner = runner.longer(length)
    _check_depth(replace(args, draft=runner), length)
    return BlockChain(runner)


def _dynamic(args: BuildArgs) -> BestFirstDrafter:
    """At temperature 0 nothing is drawn, and any tree is exact."""
    if args.greedy:
        expander = GumbelExpander(constants.CHILDREN, name="dynamic", draw=Draw.POINT_MASS)
        return BestFirstDrafter(_grower(args, expander, _tree_shape(args)))
    return BestFirstDrafter(LevelGrower(args.draft, SampledExpander(SAMPLED_CHILDREN), _tree_shape(args)))


def _adaptive(args: BuildArgs) -> BestFirstDrafter:
    """A tree that grows as far as it pays."""
    controllers, depth = args.controllers, min(constants.DEPTH, args.deepest)
    expander = GumbelExpander(constants.CHILDREN, controllers.acceptance)
    grower = _grower(args, expander, TreeShape(constants.NODES, constants.WIDTH, depth))
    lookup = controllers.lookup if args.method.method == "adaptive" else None
    return BestFirstDrafter(grower, budgets=controllers.budget, lookup=lookup)


def _grower(args: BuildArgs, expander: GumbelExpander, shape: TreeShape) -> LevelGrower:
    """A grower, which adds all levels in one call where one pass of the draft model is enough for them."""
    runner = args.draft
    if not runner.kind.scores_depths:
        return LevelGrower(runner, expander, shape)
    shape = shape._replace(depth=min(shape.depth, runner.block))
    from draftwood.draft.adaptive.block_grower import BlockGrower

    return LevelGrower(runner, expander, shape, BlockGrower(runner, expander, shape))


def _tree_shape(args: BuildArgs) -> TreeShape:
    """The shape of a best-first tree with a fixed budget."""
    dynamic = args.method.method == "dynamic"
    nodes = args.method.nodes or (METHODS["dynamic"].nodes if dynamic else None)
    if isinstance(args.shape, WidthByLength):
        _check_depth(args, args.shape.length)
        return TreeShape(nodes or args.shape.nodes, args.shape.width, args.shape.length)
    nodes = cast(int, nodes)  # without a shape
    most = min(nodes, args.deepest)
    depth = min(12, most) if dynamic else max(1, min(8, 2 + nodes // 4, most))
    return TreeShape(nodes, max(2, nodes // 4), depth)


def _check_depth(args: BuildArgs, depth: int) -> None:
    if depth > args.deepest:
        raise ConfigError(
            f"shape {args.method.shape!r} of method {args.method.method!r} is {depth} tokens deep, but the draft fills "
            f"blocks of {args.deepest}: give a shape that is no deeper"
        )


BUILDERS: Final[dict[str, Builder]] = {
    "ar": lambda args: NoDraft(),
    "chain": levels(lambda shape: ConstantBranching(shape.counts)),
    "iid": levels(lambda shape: IndependentChains(shape.width, shape.length)),
    "rsd-c": levels(lambda shape: ConstantBranching(shape.counts)),
    "rsd-s": levels(lambda shape: StochasticBeam(shape.width, shape.length)),
    "dynamic": _dynamic,
    "shared-noise": _shared_noise,
    "adaptive": _adaptive,
    "block": _block,
    "ngram": lambda args: ProposedChains("ngram", NgramIndex.of, args.shape.length),
    "lookup": lambda args: BestFirstDrafter(None, budgets=args.controllers.budget, lookup=args.controllers.lookup),
}
VERIFIER_BUILDERS: Final[dict[str, Callable[[Method], Verifier]]] = {
    "recursive": lambda method: Recursive(),
    "traversal": lambda method: Traversal(),
    "coupled": lambda method: Coupled(),
    "greedy": lambda method: Greedy(),
    "tolerance": lambda method: Tolerance(cast(int, method.beta), cast(float, method.tau)),
}
