"""Which architectures can score a tree: a look at the configuration, then a proof on five tokens.

Where the configuration names a size that nobody here knows (a window, a chunk, a number of keys that are kept), the proof is
given again behind a text that is longer than it. A size beyond ``FAR`` tokens would make loading slow: there the context
ends at that size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float

from draftwood.core.errors import CacheError, ModelError, NumericsError
from draftwood.runners.context import (
    FAR,
    Context,
    context,
    own_context,
    unknown_sizes,
)
from draftwood.runners.limits import TextLimits
from draftwood.runners.protocols import ModelRunner

_ALIBI = "its ALiBi bias is computed from a 2-D mask"
_REFUSED = {
    "bloom": _ALIBI,
    "mpt": _ALIBI,
    "gpt_neo": "its local attention counts places in memory, not positions",
    "reformer": "it attends by buckets of a hash of the text",
}
_BY_CONTENT: Mapping[str, str] = {
    "keep_window_size": "beyond so many tokens each attends to the most relevant ones only, chosen by their content",
    "index_topk": "an indexer chooses the tokens that are attended to by their content",
    "index_topk_blocks": "an indexer chooses the blocks that are attended to by their content",
}
_TEXT = 48  # tokens that a conversion is compared on
# Many models compute norms and attention in float32 whatever their weights.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


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
    reason = _chooses(config.get_text_config()) or reason
    if reason is None and model.get_output_embeddings() is None:
        reason = "it has no language-model head"
    if reason is not None:
        raise ModelError(f"model type {kind!r} cannot score a draft tree: {reason}. Use a full-attention causal model")


def _chooses(config: Any) -> str | None:
    """Why the attention of these layers depends on more than a mask and positions; None where it does not."""
    for name, what in _BY_CONTENT.items():
        if value := getattr(config, name, None):
            return f"its configuration says {name}={value}: {what}"
    if getattr(config, "attention_type", None) == "block_sparse":
        return "its block_sparse attention leaves out blocks that a mask cannot bring back"
    strange = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if choosing := sorted(kind for kind in strange if kind.endswith("_attention") and kind != "linear_attention"):
        return f"its layers of type {', '.join(choosing)} choose what they attend to by more than a mask and positions"
    if strange:
        return f"its layers of type {', '.join(sorted(strange))} keep a state that cannot be cut back to a tree's path"
    return None


def check_fits(model: Any, length: int, limit: Context | None) -> None:
    """Refuse a text that will outgrow a limit of the model.

    Args:
        length: tokens of the prompt and all that may follow.

    Raises:
        CacheError: says how long both are, and what to do.
    """
    if limit is not None and length > limit.length:
        raise CacheError(
            f"prompt and max_new_tokens make {length} tokens, but {model.config.model_type} takes {limit.length} "
            f"({limit.reason}): lower max_new_tokens, or shorten the prompt"
        )


def check_window(model: Any, length: int) -> None:
    """Refuse a text that will outgrow what trees are exact for, such as a sliding window, unless the model's own context
    ends it before; raises what :func:`check_fits` raises."""
    ours, own = context(model.config), own_context(model.config)
    check_fits(model, length, None if ours is None or (own is not None and own.length <= ours.length) else ours)


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


def text_limits(model: Any, *, drafts: bool) -> TextLimits:
    """What a causal model takes."""
    known = int(model.get_input_embeddings().weight.shape[0])
    return TextLimits(partial(check_length, model, context(model.config)), known, drafts=drafts)


def check_scores(runner: ModelRunner) -> None:
    """Compare the scores of a text, of tokens from all over the vocabulary, with a plain forward of the model itself.

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
    runner.clear()
    runner.forward_seconds = 0.0
    worst = apart(found, wanted)
    if not worst <= TOLERANCE.get(model.dtype, 0.5):
        _refuse_nan(model, found, wanted)
        raise ModelError(
            f"model type {model.config.model_type!r} scores a text otherwise in {type(runner).__name__} than by itself, by "
            f"{worst:.2g}: the conversion is wrong. Use --backend torch"
        )


def check_tree_forward(runner: ModelRunner) -> None:
    """Score a small tree and each of its paths as a chain; they must agree at every node. Where the configuration names
    sizes that nobody here knows, the same behind longer texts, and by plain forwards of the model.

    Raises:
        ModelError: the model ignores the mask or the positions, or fails on them.
        NumericsError: its scores are NaN.
    """
    model = runner.model
    tokens = [t % runner.vocab_size for t in (1, 2, 3, 4, 5)]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    kind = getattr(model.config, "model_type", type(model).__name__)
    try:
        tree = score_tree(runner, tokens, paths)
        chains = [score_tree(runner, [tokens[i] for i in p], [list(range(k + 1)) for k in range(len(p))])[-1] for p in paths]
    except Exception as error:
        raise ModelError(f"model type {kind!r} cannot score a draft tree: {type(error).__name__}: {error}") from error
    finally:
        runner.clear()
        runner.forward_seconds = 0.0
    worst = apart(tree, torch.stack(chains))
    if not worst <= TOLERANCE.get(model.dtype, 0.5):
        _refuse_nan(model, tree, *chains)
        if model.training:
            raise ModelError(f"model type {kind!r} is in training mode, where dropout changes its scores: call model.eval()")
        raise ModelError(
            f"model type {kind!r} cannot score a draft tree: its scores differ by {worst:.2g} from those of the same text "
            "as a chain, so it ignores the attention mask or the positions. Use another model, or --method ar"
        )
    for name, size in unknown_sizes(model.config).items():
        if size <= FAR and (runner.max_length is None or size + len(tokens) < runner.max_length):
            _check_behind(runner, tokens, paths, name, size)


def _check_behind(runner: ModelRunner, tokens: list[int], paths: list[list[int]], name: str, size: int) -> None:
    """The same proof behind more tokens than a size that the configuration names."""
    model, known = runner.model, int(runner.model.get_input_embeddings().weight.shape[0])
    text = [known * i // (size + 1) for i in range(size + 1)]
    kind = getattr(model.config, "model_type", type(model).__name__)
    try:
        tree = score_tree(runner, tokens, paths, behind=text)
        with torch.inference_mode():
            plain = [
                model(input_ids=torch.tensor([text + [tokens[i] for i in path]], device=runner.device), use_cache=False)
                .logits[0, -1]
                .double()
                for path in paths[-2:]
            ]
    except Exception as error:
        raise ModelError(f"model type {kind!r} cannot score a draft tree: {type(error).__name__}: {error}") from error
    finally:
        runner.clear()
        runner.forward_seconds = 0.0
    worst = apart(tree[-2:], torch.stack(plain).to(tree.device))
    if not worst <= TOLERANCE.get(model.dtype, 0.5):
        raise ModelError(
            f"model type {kind!r} cannot score a draft tree: its configuration says {name}={size}, and behind more "
            f"tokens than that its scores differ by {worst:.2g} from those of the same text without a tree. Use another "
            "model"
        )


def apart(found: Float[torch.Tensor, "node vocab"], wanted: Float[torch.Tensor, "node vocab"]) -> float:
    """The largest difference of two tables of scores, in units of their largest score or 1; tokens that both forbid are
    equal, and NaN or a token that only one of them forbids are infinitely apart."""
    equal = found == wanted
    sizes = wanted.abs().masked_fill(~wanted.isfinite(), 0.0)
    gap = (found - wanted).abs().masked_fill(equal, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    return float(gap.max()) / max(1.0, float(sizes.max()))


def _refuse_nan(model: Any, *scores: torch.Tensor) -> None:
    """Say that scores are NaN, and which weights are."""
    if not any(bool(part.isnan().any()) for part in scores):
        return
    kind = getattr(model.config, "model_type", type(model).__name__)
    bad = next((name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())), None)
    cause = f"its weights {bad} hold NaN or infinity: load another checkpoint" if bad else "try --dtype float32"
    raise NumericsError(f"model type {kind!r} gives NaN scores: {cause}")


def score_tree(
    runner: ModelRunner, tokens: list[int], paths: list[list[int]], behind: Sequence[int] = (0, 1)
) -> Float[torch.Tensor, "node vocab"]:
    """Scores in float64 of the nodes of one tree behind a text; of each node the path to it, itself included."""
    n = len(tokens)
    ancestors = torch.zeros(1, n, n, dtype=torch.bool, device=runner.device)
    for i, path in enumerate(paths):
        ancestors[0, i, path] = True
    depths = torch.tensor([[len(p) - 1 for p in paths]], device=runner.device)
    runner.clear()
    runner.add([list(behind)])
    return runner.extend(torch.tensor([tokens], device=runner.device), depths, ancestors).logits[0].double()
