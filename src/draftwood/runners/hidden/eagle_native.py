"""The passes of an EAGLE-3 drafter in the native engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.native.library import DrafterSource, instruction_set
from draftwood.runners.hidden.eagle import Eagle3Drafter
from draftwood.runners.hidden.eagle_text import EagleText
from draftwood.runners.hidden.native import drafter_engine
from draftwood.runners.native.families import Held, refuse
from draftwood.runners.native.network import NativeNetwork, Output
from draftwood.runners.native.table import MemoryTable
from draftwood.runners.protocols import PerNode, Seen
from draftwood.sampling.rows import Row


@final
class NativePasses:
    """Passes in the native engine, with the methods of :class:`draftwood.runners.hidden.eagle_torch.TorchPasses`.

    Args:
        drafter: the drafter.
        target: its target, whose weights it may share.

    Raises:
        ConfigError: the native library is missing.
        ModelError: the engine does not run the drafter, or memory does not suffice.
    """

    pads = False
    dtype: torch.dtype = torch.float32

    def __init__(self, drafter: Eagle3Drafter, target: Any) -> None:
        config, own = drafter.config, Held(drafter.dtype)
        if config.norm_before_fc and config.fc_norm:
            refuse("it has no code for two norms of the hidden states, norm_before_fc and fc_norm")
        norms: Any = [drafter.input_norm] if config.norm_before_fc else drafter.fc_norm if config.fc_norm else []
        weight = torch.cat([norm.weight for norm in norms]) if norms else None
        taps, size = len(config.target_layers), config.target_size
        source = DrafterSource(
            sources=1 if config.norm_before_fc else taps,
            source_width=taps * size if config.norm_before_fc else size,
            norm_sources=weight is not None,
            source_epsilon=config.rms_norm_eps,
            source_norm=own.numbers(weight),
            norm_residual=config.norm_before_residual,
            features=own.weights(drafter.fc.weight),
        )
        layers = config.num_hidden_layers
        engine = drafter_engine(drafter, target, own, source, [layers if config.norm_output else layers + 1])
        self.engine = f"native {instruction_set()}"
        self.network: Any = NativeNetwork(engine)
        self.table: Any = MemoryTable(engine)
        self._no_hidden = drafter.no_hidden().float()

    def another(self) -> NativePasses:
        found = copy.copy(self)
        found.table = MemoryTable(self.network.engine)
        return found

    @property
    def memory_bytes(self) -> int:
        return int(self.network.engine.memory_bytes)

    def keep(self, entries: Row, kept: Row) -> None:
        self.table.keep(entries, kept)

    def read(self, text: EagleText) -> None:
        end, waiting = text.known - text.first, torch.cat(text.waiting).float()
        for memory in self.table.memories:
            memory.cut(end - len(waiting))  # an interrupted pass may have read more
        nothing = torch.zeros(1, 0, dtype=torch.long)
        self._pass(nothing, nothing, torch.zeros(1, 0, 0, dtype=torch.bool), self.table.pending(end), sources=[waiting])
        text.waiting = []

    def score(
        self, texts: Sequence[EagleText], tokens: PerNode, depths: PerNode, ancestors: Seen, features: Tensor | None
    ) -> tuple[Float[Tensor, "row node width"], Float[Tensor, "row node draft_vocab"]]:
        sources = [text.unread(self._no_hidden) for text in texts] if features is None else None
        given = {"sources": sources, "features": None if features is None else features.contiguous()}
        out = self._pass(tokens, depths, ancestors, self.table.pending(), **given)
        assert out.hidden is not None
        return out.hidden[0], out.logits

    def _pass(self, tokens: PerNode, depths: PerNode, seen: Seen, pending: Sequence[Sequence[int]], **given: Any) -> Output:
        for waiting, hidden in zip(pending, given.get("sources") or [], strict=False):
            assert hidden.shape == (len(waiting) + tokens.shape[1], self._no_hidden.shape[1])
        out: Output = self.network(
            input_ids=tokens, depths=depths, seen=seen, memories=self.table.memories, pending=pending, **given
        )
        return out
