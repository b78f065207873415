"""Which encoder-decoder models can be run, the texts and sources that they accept, and the check of their trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.errors import CacheError, ConfigError, ModelError
from draftwood.runners.context import TextLimits
from draftwood.runners.protocols import SourceRunner
from draftwood.runners.rows import padded_tokens
from draftwood.runners.support import checking, model_kind, refuse_difference, score_difference
from draftwood.sampling.rows import Row

_DROPS = "its experts drop tokens when they are full, so a token's scores depend on tokens that it does not see"
_REFUSED = {
    "prophetnet": "it predicts several tokens at once from streams that see one another",
    "xlm-prophetnet": "it predicts several tokens at once from streams that see one another",
    "switch_transformers": _DROPS,
    "nllb-moe": _DROPS,
    "fsmt": "its attention takes no mask of a tree",
}
_PATHS = ([0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4])
_LEAVES = (_PATHS[3], _PATHS[4])
_ACCEPTED = ([0, 1, 3], [0])


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


def _positions(stack: Any, name: str) -> int | None:
    if any(getattr(part, "has_relative_attention_bias", False) for part in stack.modules()):
        return None
    found = getattr(stack, name, None) or getattr(getattr(stack, "config", None), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def source_text_limits(model: Any, *, drafts: bool) -> TextLimits:
    """The limits of the decoder of an encoder-decoder model."""
    longest = _positions(model.get_decoder(), "max_target_positions")
    said = f"the decoder of {model.config.model_type} takes {longest}: lower max_new_tokens"
    return TextLimits(longest, said, known_tokens(model.get_decoder(), model), drafts=drafts)


def known_tokens(stack: Any, model: Any) -> int:
    """Number of token embeddings of an encoder or decoder."""
    table = getattr(stack, "embed_tokens", None)
    if table is None:
        table = (stack if hasattr(stack, "get_input_embeddings") else model).get_input_embeddings()
    return int(table.weight.shape[0])


def longest_source(model: Any) -> int | None:
    """Number of positions of the encoder, None if unlimited."""
    return _positions(model.get_encoder(), "max_source_positions")


def read_sources(
    model: Any, sources: Sequence[Sequence[int]], longest: int | None, *, drafts: bool
) -> tuple[Int[Tensor, "row source"], Bool[Tensor, "row source"]]:
    """The sources of new rows, padded on the right, and their mask: True at tokens.

    Args:
        model: an encoder-decoder model.
        sources: their tokens.
        longest: as :func:`longest_source`.
        drafts: the model is a draft model. It truncates long sources, and replaces unknown tokens by the last known one;
            its distribution only becomes worse.

    Raises:
        CacheError: a source is longer than the encoder's positions.
        ConfigError: a source is empty, or holds tokens that the encoder does not know.
    """
    known = known_tokens(model.get_encoder(), model)
    if drafts:
        sources = [[min(t, known - 1) for t in source[:longest]] for source in sources]
    for index, source in enumerate(sources):
        if not source:
            raise ConfigError(f"source {index} is empty: give at least one token (a tokenizer adds an end token)")
        if bad := [t for t in source if not 0 <= t < known]:
            raise ConfigError(f"source {index} holds token {bad[0]}, but the encoder knows 0 to {known - 1}")
        if longest is not None and len(source) > longest:
            raise CacheError(
                f"source {index} has {len(source)} tokens, but the encoder of {model.config.model_type} takes {longest}: "
                "shorten the source, or split it into sentences"
            )
    return padded_tokens(sources, int(getattr(model.config, "pad_token_id", None) or 0), model.device)


def check_source_trees(runner: SourceRunner) -> None:
    """Score a small tree on two rows of different length, accept a path of each, and score another tree.

    All nodes are compared with plain forwards of the whole paths, through the original model and without a cache.

    Raises:
        ModelError: the scores differ, or the model fails.
    """
    with checking(runner.model, runner):
        worst = max(_differences(runner))
    said = f"its scores differ by {worst:.2g} from those of the same text alone, so they depend on more than the source and"
    said += " the tokens before them, or on positions that cannot be set"
    refuse_difference(runner.model, worst, f"{said}. Use another model")


def _differences(runner: SourceRunner) -> list[float]:
    texts, sources, tokens = _inputs(runner)
    roots = [line[:1] for line in tokens]
    rows = [Row(tokens=text + root, source=source) for text, root, source in zip(texts, roots, sources, strict=True)]
    runner.clear()
    runner.set_rows(rows)
    ancestors = torch.zeros(2, 5, 5, dtype=torch.bool, device=runner.device)
    for node, path in enumerate(_PATHS):
        ancestors[:, node, path] = True
    depths = ancestors.sum(-1) - 1
    out = []
    for _ in range(2):
        scores = runner.extend(torch.tensor(tokens, device=runner.device), depths, ancestors).logits
        for row, source in enumerate(sources):
            for path in _LEAVES:
                wanted = _plain(runner.model, source, texts[row] + [tokens[row][node] for node in path])[-len(path) :]
                out.append(score_difference(scores[row, path].double(), wanted))
        if runner.max_length is not None and runner.max_length < 8:
            break  # no room for another tree
        texts = [text + [tokens[row][node] for node in _ACCEPTED[row]] for row, text in enumerate(texts)]
        tokens = [line[::-1] for line in tokens]
        for own, text, line in zip(rows, texts, tokens, strict=True):
            own.tokens = text + line[:1]
        runner.commit(_ACCEPTED)
    return out


def _inputs(runner: SourceRunner) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Texts, sources and tokens of the trees, without padding tokens, which some models ignore."""
    model = runner.model
    padding = getattr(model.config, "pad_token_id", None)
    first = getattr(model.config, "decoder_start_token_id", None)
    ours, theirs = (
        [t for t in range(min(40, known_tokens(part, model))) if t != padding]
        for part in (model.get_decoder(), model.get_encoder())
    )

    def some(known: list[int], start: int, count: int) -> list[int]:
        return [known[-1 - (start + i) % len(known)] for i in range(count)]

    start = ours[0] if first is None else int(first)
    sources = [some(theirs, 0, 5), some(theirs, 3, 3)]
    return (
        [[start, *some(ours, 9, 1)], [start]],
        [s[: runner.max_source] for s in sources],
        [some(ours, 0, 5), some(ours, 4, 5)],
    )


@torch.inference_mode()
def _plain(model: Any, source: list[int], text: list[int]) -> Float[Tensor, "token vocab"]:
    """Float64 scores after every token of one text."""
    tokens, written = (torch.tensor([line], device=model.device) for line in (source, text))
    scores: Tensor = model(input_ids=tokens, decoder_input_ids=written, use_cache=False).logits[0]
    return scores.double()
