"""Which architectures can score a tree: a look at the configuration, then a proof on five tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float

from draftwood.errors import CacheError, ModelError
from draftwood.models import ModelRunner

_ALIBI = "its ALiBi bias is computed from a 2-D mask"
_REFUSED = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "gpt_neo": "its local attention counts places in memory, not positions",
}
_TEXT = 48  # tokens that a conversion is compared on
_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
# Many models compute norms and attention in float32 whatever their weights.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


class Context(NamedTuple):
    """The longest text in tokens, and what sets it."""

    length: int
    reason: str


def context(config: Any) -> Context | None:
    """The longest text that a tree can be scored on exactly; None if unlimited.

    Inside its first window sliding attention *is* full attention, and up to its switching point long-range rotary embedding
    is the short-range one. Beyond them a tree would not be scored as a chain is, so they count as the end of the context.
    """
    config = config.get_text_config()
    found = [
        Context(value, f"its configuration says {name}={value}")
        for name in _CONTEXT_FIELDS
        if isinstance(value := getattr(config, name, None), int) and value > 0
    ]
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", True))
    if isinstance(window, int) and window > 0 and slides:
        found.append(Context(window, f"its sliding window is {window} tokens, and trees are exact in the first window only"))
    rope = getattr(config, "rope_parameters", None) or {}
    switch = rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "longrope" and switch:
        found.append(Context(int(switch), f"its rotary embedding changes after {switch} tokens"))
    return min(found, default=None)


def layer_count(config: Any) -> int:
    """Layers that keep keys and values."""
    return int(config.get_text_config().num_hidden_layers)


def check_architecture(model: Any) -> None:
    """Refuse by name what cannot work.

    Raises:
        ModelError: an encoder-decoder, a state-space or linear-attention model, or an attention without a free mask.
    """
    config = model.config
    kind = getattr(config, "model_type", type(model).__name__)
    reason = _ALIBI if getattr(config, "alibi", False) else _REFUSED.get(kind)
    if getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder model, not a causal language model"
    if getattr(model, "_is_stateful", False):
        reason = "it keeps a recurrent state that cannot be cut back to a tree's path"
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if strange := kinds - {"full_attention", "sliding_attention"}:
        reason = f"its layers of type {', '.join(sorted(strange))} keep a state that cannot be cut back to a tree's path"
    if reason is None and model.get_output_embeddings() is None:
        reason = "it has no language-model head"
    if reason is not None:
        raise ModelError(f"model type {kind!r} cannot score a draft tree: {reason}. Use a full-attention causal model")


def check_length(model: Any, context: Context | None, length: int) -> None:
    """Refuse a text that is longer than this model's context.

    Raises:
        CacheError: says how long both are, and what sets the context.
    """
    if context is not None and length > context.length:
        raise CacheError(
            f"the text has {length} tokens but {model.config.model_type} takes {context.length} ({context.reason}): "
            "shorten the prompt or lower max_new_tokens"
        )


def check_scores(runner: ModelRunner) -> None:
    """Score a text of tokens from all over the vocabulary, and ask the model itself by a plain forward.

    Raises:
        ModelError: they differ by more than rounding, so what runs is not the model.
    """
    model, length = runner.model, min(_TEXT, runner.max_length or _TEXT)
    known = int(model.get_input_embeddings().weight.shape[0])
    text = [known * i // length for i in range(length)]
    with torch.inference_mode():
        ids = torch.tensor([text], device=runner.device)
        wanted = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].double()
    found = score_tree(runner, text, [list(range(i + 1)) for i in range(length)], behind=[])
    runner.start([[]])
    runner.forward_seconds = 0.0
    worst = float((found - wanted).abs().max()) / max(1.0, float(wanted.abs().max()))
    if not worst <= TOLERANCE.get(model.dtype, 0.5):
        raise ModelError(
            f"model type {model.config.model_type!r} scores a text otherwise in {type(runner).__name__} than by itself, by "
            f"{worst:.2g}: the conversion is wrong. Use --backend torch"
        )


def check_tree_forward(runner: ModelRunner) -> None:
    """Score a small tree and each of its paths as a chain; they must agree at every node.

    Raises:
        ModelError: the model ignores the mask or the positions, or fails on them.
    """
    model, dtype = runner.model, runner.model.dtype
    tokens = [t % runner.vocab_size for t in (1, 2, 3, 4, 5)]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    kind = getattr(model.config, "model_type", type(model).__name__)
    try:
        tree = score_tree(runner, tokens, paths)
        chains = [score_tree(runner, [tokens[i] for i in p], [list(range(k + 1)) for k in range(len(p))]) for p in paths]
    except Exception as error:
        raise ModelError(f"model type {kind!r} cannot score a draft tree: {type(error).__name__}: {error}") from error
    finally:
        runner.start([[]])
        runner.forward_seconds = 0.0
    scale = max(1.0, float(tree.abs().max()))
    worst = max(float((tree[i] - chain[-1]).abs().max()) for i, chain in enumerate(chains)) / scale
    if not worst <= TOLERANCE.get(dtype, 0.5):
        if model.training:
            raise ModelError(f"model type {kind!r} is in training mode, where dropout changes its scores: call model.eval()")
        raise ModelError(
            f"model type {kind!r} cannot score a draft tree: its scores differ by {worst:.2g} from those of the same text "
            "as a chain, so it ignores the attention mask or the positions. Use another model, or --method ar"
        )


def score_tree(
    runner: ModelRunner, tokens: list[int], paths: list[list[int]], behind: Sequence[int] = (0, 1)
) -> Float[torch.Tensor, "node vocab"]:
    """Scores in float64 of the nodes of one tree behind a text; of each node the path to it, itself included."""
    n = len(tokens)
    ancestors = torch.zeros(1, n, n, dtype=torch.bool, device=runner.device)
    for i, path in enumerate(paths):
        ancestors[0, i, path] = True
    depths = torch.tensor([[len(p) - 1 for p in paths]], device=runner.device)
    runner.start([list(behind)])
    scores: torch.Tensor = runner.extend(torch.tensor([tokens], device=runner.device), depths, ancestors)
    return scores[0].double()
