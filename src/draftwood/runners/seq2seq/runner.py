"""The runner of encoder-decoder models: it reads the source once, and the text like a causal model."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch

from draftwood.core.draft_kind import SEQ2SEQ
from draftwood.core.errors import ModelError
from draftwood.core.scores import Scores
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.protocols import Hidden, PerNode, ReadsAtOnce, Seen
from draftwood.runners.rows import Sources, sources_of
from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.patched_decoder import PatchedDecoder
from draftwood.runners.seq2seq.source import (
    check_encoder_decoder,
    check_source_trees,
    longest_source,
    read_sources,
    refusal,
    source_text_limits,
)
from draftwood.runners.slots import SlotTable
from draftwood.sampling.rows import Row


@final
class Seq2SeqRunner(ReadsAtOnce):
    """An encoder-decoder language model with a tree cache, on the model's device and dtype.

    Args:
        model: a ``transformers`` text-to-text model in evaluation mode.
        check: compare two small trees with plain forwards of their paths.
        drafts: the model is a draft model, as in :class:`draftwood.runners.context.TextLimits`. It truncates long sources.

    Raises:
        ModelError: the architecture cannot score a tree; the message has the reason.
    """

    engine = "torch"
    kind = SEQ2SEQ
    pads = True

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False) -> None:
        check_encoder_decoder(model)
        self.model = model
        self._limits = source_text_limits(model, drafts=drafts)
        self.max_length, self.max_source = self._limits.longest, longest_source(model)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.device = model.device
        self.forward_seconds = 0.0
        self._sources: Sources | None = None
        try:
            self._use(BartDecoder, check)
        except ModelError:
            self._use(PatchedDecoder, check)

    def _use(self, kind: type[BartDecoder | PatchedDecoder], check: bool) -> None:
        try:
            self._decoder = decoder = kind(self.model)
        except (AttributeError, LookupError) as error:
            raise refusal(self.model, f"its decoder has an unknown structure ({error})") from error
        self._rows = SlotTable(decoder.cache, decoder.dtype, self.device, self.max_length, bare=decoder.bare)
        if check:
            check_source_trees(self)

    def clear(self) -> None:
        self._sources = None
        self._rows.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        start, old = perf_counter(), self._rows.rows
        self._sources, kept = sources_of(self._sources, old, rows, self._encoded)
        if self._sources is not None and kept != list(range(len(old))):
            self._decoder.attach(self._sources, kept)
        self.forward_seconds += perf_counter() - start
        self._rows.set_rows(rows)

    def _encoded(self, rows: Sequence[Row]) -> Sources:
        sources = [row.source for row in rows]
        return self._decoder.encode(*read_sources(self.model, sources, self.max_source, drafts=self._limits.drafts))

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        self._limits.check(self._rows.longest_text)
        return self._rows.scores(tokens, depths, ancestors, self._forward)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._rows.commit(nodes)

    def _forward(self, batch: ForwardBatch) -> ForwardOutput:
        start = perf_counter()
        batch = batch._replace(tokens=self._limits.clamp(batch.tokens))
        with torch.inference_mode():
            output = self._decoder.cache.read(batch, lambda batch: self._decoder.read(batch, self._rows.slot_positions))
        self.forward_seconds += perf_counter() - start
        return output
