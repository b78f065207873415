"""The runner of a block drafter of hidden states: one pass per round, whatever the depth of the tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from jaxtyping import Float
from torch import Tensor

from draftwood.core.settings import Backend
from draftwood.runners.hidden.base import HiddenRunner
from draftwood.runners.hidden.native_passes import NativeBlockPasses
from draftwood.runners.hidden.network import BlockDrafter
from draftwood.runners.protocols import Hidden, PerNode, Seen

if TYPE_CHECKING:
    from draftwood.runners.hidden.torch_passes import TorchBlockPasses  # imports transformers
BlockPasses: TypeAlias = "TorchBlockPasses | NativeBlockPasses"


@final
class HiddenBlockRunner(HiddenRunner["BlockPasses"]):
    """The runner of a :class:`BlockDrafter`.

    The root's scores cost the pass. Scores of other nodes cost one small product each: those of their depth, plus what the
    Markov head says after their token. They are -inf beyond the block.

    Args:
        drafter: a drafter in evaluation mode.
        target: its target, a causal language model; the target's runner must return the hidden states of
            ``drafter.config.target_layers``.
        engine: the backend, ``native`` or ``torch``.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the native engine does not run the drafter.
    """

    def __init__(self, drafter: BlockDrafter, target: Any, *, engine: Backend = "torch") -> None:
        super().__init__(drafter, _passes(drafter, target, engine))

    def _end_round(self) -> None:
        self._block: Float[Tensor, "row depth draft_vocab"] | None = None

    def _scores(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Float[Tensor, "row node draft_vocab"]:
        if self._block is None:
            self._block = self._passes.score(self._texts, tokens[:, :1])
        return self._passes.below(self._block, tokens, depths)

    def _root_kept(self, hidden: Sequence[Hidden]) -> list[bool]:
        return [False] * len(hidden)


def _passes(drafter: BlockDrafter, target: Any, engine: Backend) -> BlockPasses:
    if engine == "native":
        return NativeBlockPasses(drafter, target)
    from draftwood.runners.hidden.torch_passes import TorchBlockPasses  # imports transformers

    return TorchBlockPasses(drafter, target)
