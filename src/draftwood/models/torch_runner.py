"""Any Hugging Face causal language model that takes a 4-D attention mask and position ids, driven by trees."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.errors import CacheError
from draftwood.models.cache import TreeCache
from draftwood.models.support import check_architecture, check_tree_forward, context, layer_count

_CHUNK = 512  # pending tokens per forward; bounds the memory of a long prompt's mask


@final
class TorchRunner:
    """A causal language model with its own tree cache; eager, on the model's own device and dtype.

    Args:
        model: a ``transformers`` causal language model in evaluation mode.
        check: run a tree of five tokens and compare it with one forward per path.
        drafts: this is a draft model. Of texts beyond its context, and of tokens that it does not know, it may say anything:
            there it is not asked, or its law is only worse.

    Raises:
        ModelError: the architecture cannot score a tree; it is named, with the reason.
    """

    reads_source = False

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
        self._seen_bias, self._hidden_bias = torch.tensor([0.0, -torch.inf], dtype=model.dtype, device=model.device).unbind()
        self._layers = layer_count(model.config)
        self._can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.start([[]])
        if check:
            check_tree_forward(self)

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._cache = TreeCache(self._layers)
        self._cached = [0] * len(texts)  # slots [0, cached) of a row hold committed tokens
        self._pending = [list(text) for text in texts]
        self._begin_round()

    def _begin_round(self) -> None:
        # Slots of a round: [base, base + pad) pending tokens, aligned right, then the nodes in order.
        self._base = max(self._cached, default=0)
        self._pad = max((len(p) for p in self._pending), default=0)
        self._seen = 0  # nodes
        self._loaded = 0  # pending columns already in the cache
        self._ends = [c + len(p) for c, p in zip(self._cached, self._pending, strict=True)]  # the roots' positions
        self._end = torch.tensor(self._ends, device=self.device).unsqueeze(1)
        # Every row owns all slots in use, and nothing is padded: the common case, and the only one with a single row.
        self._even = len(set(self._cached)) < 2 and len({len(p) for p in self._pending}) < 2

    def select(self, rows: Sequence[int]) -> None:
        self._cache.select(rows)
        self._cached = [self._cached[r] for r in rows]
        self._pending = [self._pending[r] for r in rows]
        self._begin_round()

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        n = tokens.shape[1]
        if not self._drafts:
            self._check_length()
        self._cache.reserve(self._base + self._pad + self._seen + n)
        while self._pad - self._loaded > _CHUNK:
            self._forward_pending(_CHUNK)
        left = self._pad - self._loaded
        positions = self._end + depths
        if left:
            columns = slice(self._loaded, self._pad)
            tokens = torch.cat([self._pending_tokens(columns), tokens], dim=1)
            positions = torch.cat([self._pending_positions(columns), positions], dim=1)
        if self.max_length is not None and max(self._ends) + self._seen + n > self.max_length:
            # Nodes that would stand beyond the context are not valid in that row; their scores are never used.
            positions = positions.clamp(max=self.max_length - 1)
        mask = self._mask(left, ancestors)
        logits = self._forward(tokens, positions, mask, keep=n)
        self._loaded = self._pad
        self._seen += n
        return logits

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        if self._seen == 0:  # nothing was scored in this round
            for waiting, tokens in zip(self._pending, pending, strict=True):
                waiting.extend(tokens)
            self._begin_round()
            return
        first = self._base + self._pad
        source = [
            [*range(first - len(waiting), first), *(first + n for n in kept)]
            for waiting, kept in zip(self._pending, nodes, strict=True)
        ]
        self._cache.move(source, self._cached)
        self._cached = [c + len(s) for c, s in zip(self._cached, source, strict=True)]
        self._pending = [list(tokens) for tokens in pending]
        self._begin_round()

    def _check_length(self) -> None:
        longest = max(self._ends) + 1
        if self._context is not None and longest > self._context.length:
            raise CacheError(
                f"the text has {longest} tokens but {self.model.config.model_type} takes {self._context.length} "
                f"({self._context.reason}): shorten the prompt or lower max_new_tokens"
            )

    def _pending_tokens(self, columns: slice) -> Int[Tensor, "row column"]:
        padded = [[0] * (self._pad - len(p)) + p for p in self._pending]
        return torch.tensor([row[columns] for row in padded], device=self.device)

    def _pending_positions(self, columns: slice) -> Int[Tensor, "row column"]:
        column = torch.arange(columns.start, columns.stop, device=self.device)
        first = torch.tensor(
            [c + len(p) - self._pad for c, p in zip(self._cached, self._pending, strict=True)], device=self.device
        )
        last = None if self.max_length is None else self.max_length - 1
        return (first.unsqueeze(1) + column).clamp_(min=0, max=last)

    def _forward_pending(self, count: int) -> None:
        columns = slice(self._loaded, self._loaded + count)
        mask = self._mask(count, None)
        self._forward(self._pending_tokens(columns), self._pending_positions(columns), mask, keep=1)
        self._loaded += count

    def _mask(self, pending: int, ancestors: Bool[Tensor, "row node seen"] | None) -> Float[Tensor, "row 1 new slot"]:
        """Additive mask of ``pending`` new pending tokens and then the new nodes over all slots in use."""
        rows, old = len(self._cached), self._base + self._loaded
        n = 0 if ancestors is None else ancestors.shape[1]
        seen = 0 if ancestors is None else ancestors.shape[2]
        if ancestors is not None and not pending and self._even:
            among = torch.where(ancestors, self._seen_bias, self._hidden_bias)
            return torch.nn.functional.pad(among, (old, 0)).unsqueeze(1)
        visible = torch.ones(rows, pending + n, old + pending + seen, dtype=torch.bool, device=self.device)
        if min(self._cached, default=0) < self._base:
            cached = torch.tensor(self._cached, device=self.device)
            visible[:, :, : self._base] = (torch.arange(self._base, device=self.device) < cached[:, None])[:, None]
        if any(len(p) < self._pad for p in self._pending):
            padding = torch.tensor([self._pad - len(p) for p in self._pending], device=self.device)
            column = torch.arange(self._loaded + pending, device=self.device)
            visible[:, :, self._base : old + pending] = (column >= padding[:, None])[:, None]
        if pending:
            visible[:, :pending, old + pending :] = False
            square = visible[:, :pending, old : old + pending]
            square &= torch.ones(pending, pending, dtype=torch.bool, device=self.device).tril()
            square.diagonal(dim1=1, dim2=2).fill_(True)  # padding sees itself, so that no softmax is empty
        if ancestors is not None:
            visible[:, pending:, old + pending :] = ancestors
        bias = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
        return bias.masked_fill_(~visible, -torch.inf).unsqueeze(1)

    def _forward(
        self, tokens: Int[Tensor, "row new"], positions: Int[Tensor, "row new"], mask: Tensor, keep: int
    ) -> Float[Tensor, "row keep vocab"]:
        self._cache.start = mask.shape[3] - tokens.shape[1]
        only = {"logits_to_keep": keep} if self._can_keep else {}
        start = perf_counter()
        with torch.inference_mode():
            out = self.model(
                input_ids=tokens.clamp(max=self._known_tokens - 1) if self._drafts else tokens,
                position_ids=positions,
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
                **only,
            )
        self.forward_seconds += perf_counter() - start
        logits: Tensor = out.logits
        return logits[:, -keep:]
