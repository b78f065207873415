"""Encoder-decoder models, driven by trees: the source is read once, the text as by a causal model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.core.settings import Backend
from draftwood.runners.seq2seq.bart_decoder import BartDecoder
from draftwood.runners.seq2seq.openvino_decoder import OpenVinoDecoder
from draftwood.runners.seq2seq.patched_decoder import PatchedDecoder, Scored, SourceDecoder
from draftwood.runners.seq2seq.proof import check_source_trees
from draftwood.runners.seq2seq.source import SourceReader, check_encoder_decoder, check_text, known_tokens, longest_text
from draftwood.runners.slots import ForwardBatch, SlotTable

_CHUNK = 512  # pending tokens per forward; bounds the memory of a long text's mask


@final
class Seq2SeqRunner:
    """An encoder-decoder language model with its own tree cache, on the model's own device and dtype.

    Args:
        model: a ``transformers`` text-to-text model in evaluation mode.
        engine: what runs it; ``openvino`` takes models of BART's kind (:class:`OpenVinoDecoder`).
        check: score two small trees and compare them with plain forwards of their paths.
        drafts: this is a draft model: of texts beyond its positions, and of tokens that it does not know, it may say
            anything, and of a source too long for it it reads the beginning.

    Attributes:
        engine: what runs it.
        max_source: the longest source in tokens, None if unlimited.
        keep_states: keep what the output embedding gets.
        state: with ``keep_states``, after ``commit``: the state of the last committed node of each row, which predicted the
            present root; None before the first one.

    Raises:
        ConfigError: OpenVINO is not installed, or does not compute in this number format or on this device.
        ModelError: the architecture cannot score a tree, or cannot be converted; it is named, with the reason.
    """

    reads_source = True

    def __init__(self, model: Any, *, engine: Backend = "torch", check: bool = True, drafts: bool = False) -> None:
        check_encoder_decoder(model)
        self.model = model
        self.engine = engine
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.max_length = longest_text(model)
        self.device = model.device
        self.forward_seconds = 0.0
        self.keep_states = False
        self.state: Float[Tensor, "row width"] | None = None
        self._drafts = drafts
        self._known_tokens = known_tokens(model.get_decoder(), model)
        self._states: list[Tensor] = []
        self._decoder: SourceDecoder
        if engine == "openvino":
            self._use_openvino(check)
            return
        self._reader = SourceReader(model, drafts=drafts)
        try:
            self._use(BartDecoder, check)
        except ModelError:
            self._use(PatchedDecoder, check)

    def _use_openvino(self, check: bool) -> None:
        if self.model.training:
            raise ModelError("the model is in training mode, where dropout changes its scores: call model.eval()")
        self._decoder = decoder = OpenVinoDecoder(self.model)
        self._reader = SourceReader(self.model, drafts=self._drafts, encode=decoder.encode)
        if not check:
            return
        try:
            check_source_trees(self)
        except ModelError as error:
            raise ModelError(
                f"model type {self.model.config.model_type!r} cannot be run by OpenVINO: converted, with layers as those of "
                "Marian, BART and M2M100, it does not score as the model does. Use --backend torch"
            ) from error

    def _use(self, kind: Callable[[Any], SourceDecoder], check: bool) -> None:
        try:
            self._decoder = kind(self.model)
        except (AttributeError, LookupError) as error:
            raise ModelError(
                f"the decoder of {self.model.config.model_type!r} is made in an unknown way: {error}"
            ) from error
        if check:
            check_source_trees(self)

    @property
    def max_source(self) -> int | None:
        return self._reader.longest

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        start = perf_counter()
        decoder = self._decoder
        decoder.start(self._reader.read(sources, len(texts)))
        self.forward_seconds += perf_counter() - start
        self._rows = SlotTable(texts, decoder.dtype, self.device, self.max_length, bare=decoder.bare, recent=decoder.recent)
        self.state, self._states = None, []

    def select(self, rows: Sequence[int]) -> None:
        self._decoder.select(rows)
        self._rows.select(rows)
        if self.state is not None:
            self.state = self.state[list(rows)]

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        if not self._drafts:
            check_text(self.model, self._rows.longest_text, self.max_length)
        n = tokens.shape[1]
        while self._rows.waiting > _CHUNK:
            self._forward(self._rows.chunk(_CHUNK), keep=1)
        scored = self._forward(self._rows.step(tokens, depths, ancestors), keep=n)
        if self.keep_states:
            self._states.append(scored.states)
        return scored.scores

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        self.state = None
        if self._states and all(nodes):
            last = torch.tensor([kept[-1] for kept in nodes], device=self.device)
            self.state = torch.cat(self._states, dim=1)[torch.arange(len(nodes), device=self.device), last]
        self._states = []
        self._rows.commit(nodes, pending, self._decoder.cache)

    def _forward(self, step: ForwardBatch, keep: int) -> Scored:
        start = perf_counter()
        if self._drafts:
            step = step._replace(tokens=step.tokens.clamp(max=self._known_tokens - 1))
        with torch.inference_mode():
            scored = self._decoder.read(step, self._rows.slot_positions, keep)
        self.forward_seconds += perf_counter() - start
        return scored
