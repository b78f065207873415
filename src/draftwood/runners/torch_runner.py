"""The PyTorch runner of Hugging Face causal language models that accept a 4-D attention mask and position ids."""

from __future__ import annotations

import inspect
import math
from time import perf_counter
from typing import Any, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import nn

from draftwood.core.scores import Scores
from draftwood.runners.cache import TreeCache, cache_argument
from draftwood.runners.context import Window, layer_count, mask_argument, sliding_window, token_bytes
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.native.families import family_named
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.slots import SlotTable
from draftwood.runners.support import (
    TOLERANCE,
    CausalRunner,
    check_architecture,
    check_tree_forward,
    checking,
    model_kind,
    refuse_difference,
    score_difference,
    unfit,
)
from draftwood.sampling.rows import Row

_WINDOW, _TEXT = 3, 8  # tokens
_CHECKED: WeakKeyDictionary[Any, tuple[object, Window | None]] = WeakKeyDictionary()  # by model: its state, and the result


def used_window(model: Any) -> Window | None:
    """The sliding attention of a model; None if it has none, or ignores the window in its configuration.

    Masks with a window of three tokens are compared with those that the model makes for such a configuration. The result is
    remembered for each model.

    Raises:
        ModelError: the model makes others, or fails on them.
        NumericsError: its scores are NaN.
    """
    window = sliding_window(model.config)
    if window is None:
        return None
    state = (window, model.dtype, getattr(model.config, "_attn_implementation", None))
    if model not in _CHECKED or _CHECKED[model][0] != state:
        _CHECKED[model] = state, _checked(model, window)
    return _CHECKED[model][1]


def _checked(model: Any, window: Window) -> Window | None:
    with checking(model):
        short, masked, full = _window_scores(model, window)
    slides, ignores = (score_difference(found, short) for found in (masked, full))
    if window.everywhere and ignores < min(slides, TOLERANCE.get(model.dtype, 0.5)):
        return None
    said = f"its configuration says sliding_window={window.size}, but its scores differ by {slides:.2g} from those of such a"
    refuse_difference(model, slides, f"{said} window. Use another model", short, masked, full)
    return window


def _window_scores(model: Any, window: Window) -> list[Float[torch.Tensor, "token vocab"]]:
    """Scores of a text with a short window: as the model masks it, as we do, and with full attention."""
    config, known = model.config.get_text_config(), int(model.get_input_embeddings().weight.shape[0])
    positions = torch.arange(_TEXT, device=model.device)
    distance = positions.unsqueeze(1) - positions
    full, near = (
        torch.zeros(1, 1, *distance.shape, dtype=model.dtype, device=model.device).masked_fill(hidden, -math.inf)
        for hidden in (distance < 0, (distance < 0) | (distance >= _WINDOW))
    )
    inputs = {"input_ids": (known * positions // len(positions)).unsqueeze(0), "use_cache": False}
    mask = mask_argument(near) if window.everywhere else mask_argument(full, near)
    placed = {**inputs, "position_ids": positions.unsqueeze(0)}
    with torch.inference_mode():
        try:
            config.sliding_window = _WINDOW
            outputs = [model(**inputs)]
        finally:
            config.sliding_window = window.size
        outputs += [model(**placed, attention_mask=one) for one in (mask, full)]
    return [out.logits[0].double() for out in outputs]


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
