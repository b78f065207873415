"""The runner of causal language models in the native engine."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

from draftwood.core.scores import Scores
from draftwood.core.tree import NOTHING
from draftwood.hardware.machine import release_free_memory
from draftwood.native.library import instruction_set
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.memory import RowMemory
from draftwood.runners.native.network import MemoryTable, causal_network
from draftwood.runners.native.refusals import refuse, why_not
from draftwood.runners.native.stored import is_stored, source_of
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.support import CausalRunner, check_architecture, check_evaluates, check_scores, check_tree_forward
from draftwood.sampling.rows import Row


@final
class NativeRunner(CausalRunner):
    """A causal language model in the native engine: a node's scores are the same bits in any tree, block or company.

    Args:
        model: a ``transformers`` causal language model in evaluation mode, on the CPU, in float32 or bfloat16; or one that
            is read from its files, whose facts are those of its family.
        check: compare a short text with the model, and a tree of five tokens with one forward per path.
        drafts: the model is a draft model, as for :class:`draftwood.runners.torch_runner.TorchRunner`.
        hidden_layers: layers whose hidden states are returned, as there.

    Raises:
        ConfigError: the native library is missing; a layer is missing.
        ModelError: the engine does not run the model, or computes other scores.
    """

    pads = False
    same_bits = True
    shift = 0
    _rows: MemoryTable

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False, hidden_layers: tuple[int, ...] = ()) -> None:
        stored = is_stored(model)
        if not stored:
            if model.config.model_type not in FAMILIES:
                check_architecture(model)  # which may say why no library runs it
            check_evaluates(model)
            refuse(why_not(model))
        super().__init__(model, drafts=drafts, hidden_layers=hidden_layers)
        formats = (model.rounded, "8-bit activations" if model.integers else "") if stored else ()
        self.engine = " ".join(filter(None, ("native", *formats, instruction_set())))
        self.network = causal_network(source_of(model), hidden_layers, self.max_length)
        self.vocab_size = self.network.facts.vocab
        self.token_bytes, self.row_bytes = self.network.token_bytes, self.network.row_bytes
        self._begin()
        if check and not stored:
            check_scores(self)
        if check:
            check_tree_forward(self)
        release_free_memory()  # of the check, and of what was read of the tokenizer

    def reach(self, row: Row, length: int) -> int:
        memory = self._rows.of(row)
        return 0 if memory is None else memory.reach(min(length, len(memory)))

    def mark(self, row: Row, *, regular: bool) -> None:
        if (memory := self._rows.of(row)) is not None:
            memory.mark(regular=regular)

    def thin_marks(self) -> bool:
        return self._rows.thin_marks()

    def memory_of(self, text: Row) -> RowMemory | None:
        return self._rows.of(text)

    def restore(self, text: Row, length: int) -> RowMemory:
        return self._rows.restore(text, length)

    def _begin(self) -> None:
        self.forward_seconds = 0.0
        self._rows = MemoryTable(self.network)

    def another(self) -> NativeRunner:
        found = copy.copy(self)
        found._begin()
        return found

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> Hidden | None:
        memory = self._rows.begin(row, prefix)
        pending = row.tokens[len(memory) : end]
        if not pending:
            return None
        read = self._forward(*NOTHING, [memory], [pending]).read
        return None if read is None else read[0]

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        self._limits.check(max(len(row.tokens) for row in self._rows.rows))
        return self._forward(tokens, depths, ancestors, self._rows.parts, self._rows.pending())

    def _forward(
        self, tokens: PerNode, depths: PerNode, seen: Seen, memories: Sequence[RowMemory], pending: Sequence[Sequence[int]]
    ) -> Scores:
        start = perf_counter()
        tokens, pending = self._limits.clamp(tokens), self._limits.clamp_texts(pending)
        found: Scores = self.network(input_ids=tokens, depths=depths, seen=seen, memories=memories, pending=pending)
        self.forward_seconds += perf_counter() - start
        return found
