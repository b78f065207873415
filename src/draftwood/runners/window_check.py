"""A check that models take masks of sliding attention as we make them: by a short text, with a short window."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float

from draftwood.runners.context import Window, mask_argument, sliding_window
from draftwood.runners.support import TOLERANCE, checking, refuse_difference, score_difference

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
