"""The PyTorch runner of Hugging Face causal language models that accept a 4-D attention mask and position ids."""

from __future__ import annotations

import inspect
from time import perf_counter
from typing import Any, final

import torch
from torch import nn

from draftwood.core.scores import Scores
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.context import layer_count, mask_argument, token_bytes
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.native.families import family_named
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.slots import SlotTable
from draftwood.runners.support import CausalRunner, check_architecture, check_tree_forward, model_kind, unfit
from draftwood.runners.window_check import used_window
from draftwood.sampling.rows import Row


@final
class TorchRunner(CausalRunner):
    """A causal language model with a tree cache; eager, on the model's device, or on those of its ``device_map``.

    Args:
        model: a ``transformers`` causal language model in evaluation mode.
        check: compare a tree of five tokens with one forward per path.
        drafts: the model is a draft model, as in :class:`draftwood.runners.context.TextLimits`.
        hidden_layers: layers whose hidden states :class:`draftwood.core.scores.Scores` holds. They are numbered as in
            ``output_hidden_states``: 0 is the embedding, ``i`` the output of layer ``i``; the last is after the final norm.

    Raises:
        ConfigError: the model has no such layer.
        ModelError: the architecture cannot score a tree; the message has the reason.
    """

    pads = True
    same_bits = False
    _rows: SlotTable

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False, hidden_layers: tuple[int, ...] = ()) -> None:
        check_architecture(model)
        if (own := family_named(model_kind(model))) is not None and own.varied:
            reason = "its layers have heads of several sizes, and some read keys and values of others, which only the native"
            raise unfit(model, f"{reason} engine runs. Use --backend native")
        super().__init__(model, drafts=drafts, hidden_layers=hidden_layers)
        self.network: nn.Module = model
        self.token_bytes = token_bytes(model.config, model.dtype.itemsize)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        devices = list(dict.fromkeys(map(str, getattr(model, "hf_device_map", {}).values())))
        self.engine = f"torch ({', '.join(devices)})" if devices else "torch"
        self._cache = TreeCache(layer_count(model.config), split=len(devices) > 1)
        self._rows = SlotTable(self._cache, model.dtype, self.device, self.max_length, window=used_window(model))
        if check:
            check_tree_forward(self)

    def another(self) -> TorchRunner:
        return TorchRunner(self.model, check=False, hidden_layers=self.hidden_layers)

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> Hidden | None:
        self._rows.begin(row, prefix)
        read = [states for _, states in map(self._forward, self._rows.batches_to(end)) if states is not None]
        return torch.cat(read, dim=1)[0] if read else None

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        self._limits.check(self._rows.longest_text)
        return self._rows.scores(tokens, depths, ancestors, self._forward)

    def _forward(self, batch: ForwardBatch) -> ForwardOutput:
        start = perf_counter()
        with torch.inference_mode():
            found = self._cache.read(batch, self._read)
        self.forward_seconds += perf_counter() - start
        return found

    def _read(self, batch: ForwardBatch) -> ForwardOutput:
        only = {"logits_to_keep": batch.keep} if self._can_keep else {}
        states = {"output_hidden_states": True} if self.hidden_layers else {}
        out = self.model(
            input_ids=self._limits.clamp(batch.tokens),
            position_ids=batch.positions,
            attention_mask=mask_argument(batch.mask, batch.sliding),
            use_cache=True,
            **cache_argument(self.model, self._cache),
            **only,
            **states,
        )
        hidden = None
        if self.hidden_layers:
            hidden = torch.cat([out.hidden_states[layer] for layer in self.hidden_layers], dim=-1)
        return ForwardOutput(out.logits[:, -batch.keep :], hidden)
