"""What a configuration says of attention: the longest text on which trees are scored exactly, and which layers slide."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jaxtyping import Shaped
from torch import Tensor

from draftwood.core.errors import CacheError

FULL, SLIDING = "full_attention", "sliding_attention"  # names in configurations and in dictionaries of masks
_SIZE = re.compile(r"window|chunk_size|block_size|chunk_length|keep_")
_NO_SIZE = {  # handled by the masks of sliding attention, or not a number of attended tokens
    *("sliding_window", "sliding_window_pattern", "_sliding_window_pattern", "prefix_dense_sliding_window_pattern"),
    *("max_window_layers", "chunk_size_feed_forward", "mamba_chunk_size", "num_logits_to_keep"),
}
MAX_CHECKED = 256  # longest text, in tokens, after which trees are checked
_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


class Context(NamedTuple):
    """The longest text in tokens, and the reason."""

    length: int
    reason: str


def context(config: Any) -> Context | None:
    """The longest text whose trees are scored exactly; None if unlimited.

    Long-range rotary embedding equals the short-range one up to its switching point. Beyond it a tree would be scored
    differently from a chain, so the context ends there.
    """
    return min((one for one in (own_context(config), *_changes(config)) if one is not None), default=None)


def own_context(config: Any) -> Context | None:
    """The longest text that the model accepts; None if unlimited."""
    config = config.get_text_config()
    found = [
        Context(value, f"its configuration says {name}={value}")
        for name in _CONTEXT_FIELDS
        if isinstance(value := getattr(config, name, None), int) and value > 0
    ]
    return min(found, default=None)


def _changes(config: Any) -> list[Context]:
    """Lengths beyond which the model may score differently."""
    config = config.get_text_config()
    found = [
        Context(value, f"its configuration says {name}={value}, and trees were not checked beyond that many tokens")
        for name, value in unknown_sizes(config).items()
        if value > MAX_CHECKED
    ]
    for rope in rotary_settings(config):
        switch = rope.get("original_max_position_embeddings")
        if rope.get("rope_type") == "longrope" and switch:
            found.append(Context(int(switch), f"its rotary embedding changes after {switch} tokens"))
    return found


def rotary_settings(config: Any) -> list[Mapping[str, Any]]:
    """The settings of the rotary embedding: of all layers, or of each type of layers."""
    found = getattr(config, "rope_parameters", None) or {}
    return [rope for rope in found.values() if isinstance(rope, Mapping)] or [found]


def unknown_sizes(config: Any) -> dict[str, int]:
    """Unknown settings of the configuration that may be numbers of tokens at which its attention changes."""
    return {
        name: value
        for name, value in vars(config.get_text_config()).items()
        if type(value) is int and value > 0 and _SIZE.search(name) and name not in _NO_SIZE
    }


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


def token_bytes(config: Any, number: int) -> int:
    """Bytes of a token's keys and values: layers, keys and values, heads, ``number`` bytes each; 0 if unknown."""
    layers, heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    if not layers or not heads:
        return 0
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return int(2 * layers * (getattr(config, "num_key_value_heads", None) or heads) * width * number)


def layer_count(config: Any) -> int:
    """Layers with keys and values."""
    return int(config.get_text_config().num_hidden_layers)


def vocabulary(model: Any) -> tuple[int, int]:
    """Numbers of tokens that a causal model reads and scores."""
    own: tuple[int, int] | None = getattr(model, "vocabulary", None)  # of one that is read from its files
    if own is not None:
        return own
    return tuple(len(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings()))  # type: ignore


class TextLimits(NamedTuple):
    """The texts and tokens that a target accepts; a draft model accepts every input.

    Nothing is drafted beyond the context of a draft model. Tokens that it does not know only make its distribution worse.

    Attributes:
        longest: the longest text in tokens, the root included; None if unlimited.
        said: what takes no longer text, and what to do.
        known: number of token embeddings.
        drafts: the model is a draft model.
    """

    longest: int | None
    said: str
    known: int
    drafts: bool

    def check(self, length: int) -> None:
        """Raise a CacheError for a target's text that does not fit."""
        if not self.drafts and self.longest is not None and length > self.longest:
            raise CacheError(f"the text has {length} tokens, but {self.said}")

    def clamp(self, tokens: Any) -> Any:
        """The tokens of a tensor or array that the model reads; a draft model reads its last known one for unknown ones."""
        return tokens.clip(max=self.known - 1) if self.drafts else tokens

    def clamp_texts(self, texts: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
        """The same for lists of tokens."""
        return [[min(token, self.known - 1) for token in text] for text in texts] if self.drafts else texts
