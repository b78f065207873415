"""Sliding attention: which layers see only the last tokens of a text, and the masks that they take."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Shaped
from torch import Tensor

from draftwood.runners.context import own_context

FULL, SLIDING = "full_attention", "sliding_attention"  # names in configurations and in dictionaries of masks


class Window(NamedTuple):
    """Sliding attention: a token sees itself and the ``size - 1`` tokens of the text before it.

    Attributes:
        size: tokens that a token sees at most.
        everywhere: all layers have sliding attention. Otherwise the others have full attention.
    """

    size: int
    everywhere: bool


def sliding_window(config: Any) -> Window | None:
    """The sliding attention of a model; None if no layer has any, or the model's context ends within the window."""
    config, longest = config.get_text_config(), own_context(config)
    size, kinds = getattr(config, "sliding_window", None), set(getattr(config, "layer_types", None) or ())
    slides = SLIDING in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if not slides or not isinstance(size, int) or size <= 0 or (longest is not None and longest.length <= size):
        return None
    return Window(size, FULL not in kinds)


def mask_argument(
    mask: Shaped[Tensor, "row 1 new slot"] | None, sliding: Shaped[Tensor, "row 1 new slot"] | None = None
) -> Shaped[Tensor, "row 1 new slot"] | dict[str, Tensor | None] | None:
    """The attention mask as ``transformers`` models take it: a tensor for all layers, or one for each kind of layer.

    Args:
        mask: for layers of full attention, or for all layers; additive, or true for what is seen.
        sliding: for layers of sliding attention; None if all layers are alike.
    """
    return mask if sliding is None else {FULL: mask, SLIDING: sliding}
