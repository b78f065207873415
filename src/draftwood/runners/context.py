"""The longest text on which a model's trees can be scored exactly, read from its configuration."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

_SIZE = re.compile(r"window|chunk_size|block_size|chunk_length|keep_")


_NO_SIZE = {  # looked at below, or no number of tokens that are attended to
    *("sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "prefix_dense_sliding_window_pattern"),
    *("max_window_layers", "chunk_size_feed_forward", "num_logits_to_keep"),
}


FAR = 256  # tokens of the longest text behind which a proof is given


_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


class Context(NamedTuple):
    """The longest text in tokens, and what sets it."""

    length: int
    reason: str


def context(config: Any) -> Context | None:
    """The longest text that a tree can be scored on exactly; None if unlimited.

    Inside its first window sliding attention *is* full attention, and up to its switching point long-range rotary embedding
    is the short-range one. Beyond them a tree would not be scored as a chain is, so they count as the end of the context.
    """
    return min((one for one in (own_context(config), window(config), *_changes(config)) if one is not None), default=None)


def own_context(config: Any) -> Context | None:
    """The longest text that the model itself takes; None if unlimited."""
    config = config.get_text_config()
    found = [
        Context(value, f"its configuration says {name}={value}")
        for name in _CONTEXT_FIELDS
        if isinstance(value := getattr(config, name, None), int) and value > 0
    ]
    return min(found, default=None)


def window(config: Any) -> Context | None:
    """The first window of sliding attention; None if no layer slides."""
    config = config.get_text_config()
    size = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if isinstance(size, int) and size > 0 and slides:
        return Context(size, f"its sliding window is {size} tokens, and trees are exact in the first window only")
    return None


def _changes(config: Any) -> list[Context]:
    """Lengths from which on the model may score otherwise."""
    config = config.get_text_config()
    found = [
        Context(value, f"its configuration says {name}={value}, and behind so many tokens trees were not tried")
        for name, value in unknown_sizes(config).items()
        if value > FAR
    ]
    rope = getattr(config, "rope_parameters", None) or {}
    switch = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "longrope" and switch:
        found.append(Context(int(switch), f"its rotary embedding changes after {switch} tokens"))
    return found


def unknown_sizes(config: Any) -> dict[str, int]:
    """Numbers of tokens in the configuration from which on its attention might change; nobody here knows them."""
    return {
        name: value
        for name, value in vars(config.get_text_config()).items()
        if type(value) is int and value > 0 and _SIZE.search(name) and name not in _NO_SIZE
    }


def layer_count(config: Any) -> int:
    """Layers that keep keys and values."""
    return int(config.get_text_config().num_hidden_layers)
