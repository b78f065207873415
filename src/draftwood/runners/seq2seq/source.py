"""Which encoder-decoder models can be run, and the texts and sources that they accept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.runners.limits import TextLimits
from draftwood.runners.rows import padded_tokens
from draftwood.runners.support import model_kind

_DROPS = "its experts drop tokens when they are full, so a token's scores depend on tokens that it does not see"
_REFUSED = {
    "prophetnet": "it predicts several tokens at once from streams that see one another",
    "xlm-prophetnet": "it predicts several tokens at once from streams that see one another",
    "switch_transformers": _DROPS,
    "nllb-moe": _DROPS,
    "fsmt": "its attention takes no mask of a tree",
}


def check_encoder_decoder(model: Any) -> None:
    """Refuse models whose configuration shows that they cannot score a tree.

    Raises:
        ModelError: no encoder or no decoder, an encoder that does not read text, or a decoder whose scores of a token
            depend on more than the source and the tokens before it.
    """
    config = model.config
    reason = _REFUSED.get(model_kind(model))
    if not getattr(config, "is_encoder_decoder", False):
        reason = "it is not an encoder-decoder model"
    elif getattr(model, "main_input_name", "input_ids") != "input_ids":
        reason = f"its encoder reads {model.main_input_name}, not text"
    elif getattr(config, "attention_type", None) == "block_sparse":
        reason = "its sparse encoder encodes a source differently in a batch; set the attention type to original_full"
    elif getattr(model, "_is_stateful", False):
        reason = "it keeps a recurrent state that cannot be cut back to a tree's path"
    elif model.get_output_embeddings() is None:
        reason = "it has no language-model head"
    if reason is not None:
        raise refusal(model, reason)


def refusal(model: Any, reason: str) -> ModelError:
    """The error that a model cannot be run."""
    return ModelError(
        f"model type {model_kind(model)!r} cannot score a draft tree over a source: {reason}. Use a text-to-text model with "
        "a head, such as Marian, BART, M2M100 or T5"
    )


def longest_text(model: Any) -> int | None:
    """Number of positions of the decoder, None if unlimited."""
    return _positions(model.get_decoder(), "max_target_positions")


def _positions(stack: Any, name: str) -> int | None:
    if any(getattr(part, "has_relative_attention_bias", False) for part in stack.modules()):
        return None
    found = getattr(stack, name, None) or getattr(getattr(stack, "config", None), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def source_text_limits(model: Any, *, drafts: bool) -> TextLimits:
    """The limits of the decoder of an encoder-decoder model."""
    longest = longest_text(model)
    said = f"the decoder of {model.config.model_type} takes {longest}: lower max_new_tokens"
    return TextLimits(longest, said, known_tokens(model.get_decoder(), model), drafts=drafts)


def known_tokens(stack: Any, model: Any) -> int:
    """Number of token embeddings of an encoder or decoder."""
    table = getattr(stack, "embed_tokens", None)
    if table is None:
        table = (stack if hasattr(stack, "get_input_embeddings") else model).get_input_embeddings()
    return int(table.weight.shape[0])


@final
class SourceReader:
    """The sources that an encoder accepts.

    Args:
        model: an encoder-decoder model.
        drafts: the model is a draft model. It truncates long sources, and replaces unknown tokens by the last known one;
            its distribution only becomes worse.
    """

    def __init__(self, model: Any, *, drafts: bool = False) -> None:
        self._model, self._drafts = model, drafts
        self._known = known_tokens(model.get_encoder(), model)
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)
        self.longest = _positions(model.get_encoder(), "max_source_positions")  # None if unlimited

    def read(self, sources: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "row source"], Bool[Tensor, "row source"]]:
        """The sources of new rows, padded on the right, and their mask: True at tokens.

        Raises:
            CacheError: a source is longer than the encoder's positions.
            ConfigError: a source is empty, or holds tokens that the encoder does not know.
        """
        if self._drafts:
            sources = [[min(t, self._known - 1) for t in source[: self.longest]] for source in sources]
        self._check(sources)
        return padded_tokens(sources, self._padding, self._model.device)

    def _check(self, sources: Sequence[Sequence[int]]) -> None:
        for index, source in enumerate(sources):
            if not source:
                raise ConfigError(f"source {index} is empty: give at least one token (a tokenizer adds an end token)")
            if bad := [t for t in source if not 0 <= t < self._known]:
                raise ConfigError(f"source {index} holds token {bad[0]}, but the encoder knows 0 to {self._known - 1}")
            if self.longest is not None and len(source) > self.longest:
                raise CacheError(
                    f"source {index} has {len(source)} tokens, but the encoder of {self._model.config.model_type} takes "
                    f"{self.longest}: shorten the source, or split it into sentences"
                )
