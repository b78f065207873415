"""Any Hugging Face causal language model that takes a 4-D attention mask and position ids, driven by trees."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.runners.cache import TreeCache
from draftwood.runners.slots import ForwardBatch, SlotTable
from draftwood.runners.support import check_architecture, check_length, check_tree_forward, context, layer_count

_CHUNK = 512  # pending tokens per forward; bounds the memory of a long prompt's mask


@final
class TorchRunner:
    """A causal language model with its own tree cache; eager, on the model's own device and dtype.

    Args:
        model: a ``transformers`` causal language model in evaluation mode.
        check: run a tree of five tokens and compare it with one forward per path.
        drafts: this is a draft model. Of texts beyond its context, and of tokens that it does not know, it may say anything:
            there it is not asked, or its distribution is only worse.

    Raises:
        ModelError: the architecture cannot score a tree; it is named, with the reason.
    """

    reads_source = False
    engine = "torch"

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False) -> None:
        check_architecture(model)
        self.model = model
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._context = context(model.config)
        self.max_length = self._context.length if self._context is not None else None
        self.device = model.device
        self._drafts = drafts
        self._known_tokens = int(model.get_input_embeddings().weight.shape[0])
        self.forward_seconds = 0.0
        self._layers = layer_count(model.config)
        self._can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.start([[]])
        if check:
            check_tree_forward(self)

    @property
    def network(self) -> nn.Module:
        model: nn.Module = self.model
        return model

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._cache = TreeCache(self._layers)
        self._rows = SlotTable(texts, self.model.dtype, self.device, self.max_length)

    def select(self, rows: Sequence[int]) -> None:
        self._cache.select(rows)
        self._rows.select(rows)

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        if not self._drafts:
            check_length(self.model, self._context, self._rows.longest_text)
        n = tokens.shape[1]
        self._cache.reserve(self._rows.slots(n))
        while self._rows.waiting > _CHUNK:
            self._forward(self._rows.chunk(_CHUNK), keep=1)
        return self._forward(self._rows.step(tokens, depths, ancestors), keep=n)

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        self._rows.commit(nodes, pending, self._cache)

    def _forward(self, step: ForwardBatch, keep: int) -> Float[Tensor, "row keep vocab"]:
        self._cache.start = step.start
        only = {"logits_to_keep": keep} if self._can_keep else {}
        start = perf_counter()
        with torch.inference_mode():
            out = self.model(
                input_ids=step.tokens.clamp(max=self._known_tokens - 1) if self._drafts else step.tokens,
                position_ids=step.positions,
                attention_mask=step.mask,
                past_key_values=self._cache,
                use_cache=True,
                **only,
            )
        self.forward_seconds += perf_counter() - start
        logits: Tensor = out.logits
        return logits[:, -keep:]
