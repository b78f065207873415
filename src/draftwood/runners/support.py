"""What runners of causal models have in common, and which can score a tree: checks of configuration and scores.

A tree is also scored beyond unknown sizes of the configuration (windows, chunks); texts end at sizes over ``MAX_CHECKED``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float

from draftwood.core.draft_kind import CAUSAL
from draftwood.core.errors import CacheError, ConfigError, ModelError, NumericsError
from draftwood.runners.context import (
    FULL,
    MAX_CHECKED,
    SLIDING,
    Context,
    TextLimits,
    context,
    layer_count,
    own_context,
    unknown_sizes,
    vocabulary,
)
from draftwood.runners.protocols import Hidden, ModelRunner, SharesBeginnings, TargetRunner
from draftwood.sampling.rows import Row

_ALIBI = "its ALiBi bias is computed from a 2-D mask"
_REFUSED = {
    **dict.fromkeys(("bloom", "mpt"), _ALIBI),
    **dict.fromkeys(("gemma4_assistant", "gemma4_unified_assistant"), "it reads keys and values of its target"),
    "gpt_neo": "its local attention depends on cache slots, not on positions",
    "reformer": "its attention depends on hash buckets of the text",
    "falcon_h1": "each of its layers attends and keeps a running state, and those of the native engine do one of them",
    "nemotron_h": "its layers mix tokens or are networks of squared ReLU, and those of the native engine do both",
}
_BY_CONTENT: Mapping[str, str] = {
    "keep_window_size": "beyond that many tokens each one attends only to others chosen by their content",
    "index_topk": "an indexer chooses the attended tokens by their content",
    "index_topk_blocks": "an indexer chooses the attended blocks by their content",
}
_TEXT = 48  # tokens of the text of :func:`check_scores`
# Many models compute norms and attention in float32 with any weights.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.5, torch.float16: 0.1}


class CausalRunner(SharesBeginnings):
    """What runners of causal models have in common. Their rows and kept texts are those of a table with the same methods.

    Args:
        model: the model.
        drafts: it is a draft model.
        hidden_layers: layers whose hidden states are returned; 0 is the embedding.

    Raises:
        ConfigError: the model has no such layer.
    """

    kind = CAUSAL
    _rows: Any

    def __init__(self, model: Any, *, drafts: bool, hidden_layers: tuple[int, ...]) -> None:
        layers = layer_count(model.config)
        if not all(0 <= layer <= layers for layer in hidden_layers):
            raise ConfigError(f"hidden_layers {hidden_layers}, but the model has {layers} layers: give 0 to {layers}")
        longest, reason = context(model.config) or (None, "")
        said = f"{model.config.model_type} takes {longest} ({reason}): shorten the prompt or lower max_new_tokens"
        self._limits = TextLimits(longest, said, vocabulary(model)[0], drafts=drafts)
        self.model, self.hidden_layers, self.device, self.max_length = model, hidden_layers, model.device, longest
        self.forward_seconds = 0.0

    @property
    def memory_bytes(self) -> int:
        return int(self._rows.memory_bytes)

    def keep(self, row: Row, text: Row) -> None:
        self._rows.keep(row, text)

    def held(self, row: Row) -> int:
        return int(self._rows.held(row))

    def cut(self, row: Row, length: int) -> None:
        self._rows.cut(row, length)

    def clear(self) -> None:
        self._rows.clear()

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._rows.set_rows(rows)

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._rows.commit(nodes)


def check_architecture(model: Any) -> None:
    """Refuse models whose configuration shows that they cannot score a tree.

    Raises:
        ModelError: an encoder-decoder, state-space or linear-attention model, or an attention that ignores masks.
    """
    config, kind = model.config, model_kind(model)
    reason, kinds = _ALIBI if getattr(config, "alibi", False) else None, set(getattr(config, "layer_types", None) or ())
    if getattr(config, "is_encoder_decoder", False):
        reason = "it is an encoder-decoder model, not a causal language model"
    if getattr(model, "_is_stateful", False) and (not kinds or kinds - {FULL, SLIDING}):
        reason = "it keeps a recurrent state that cannot be cut back to a tree's path"
    reason = _REFUSED.get(kind) or attention_problem(config.get_text_config()) or reason
    if reason is None and model.get_output_embeddings() is None:
        reason = "it has no language-model head"
    if reason is not None:
        other = ", or --backend native with --device cpu if it has code for this type"
        other *= kind not in _REFUSED and bool(kinds - {FULL, SLIDING})
        raise unfit(model, f"{reason}. Use a full-attention causal model{other}")


def unfit(model: Any, reason: str) -> ModelError:
    """The error that trees of a model cannot be scored."""
    return ModelError(f"model type {model_kind(model)!r} cannot score a draft tree: {reason}")


def model_kind(model: Any) -> str:
    return str(getattr(model.config, "model_type", type(model).__name__))


def attention_problem(config: Any, states: Collection[str] = ()) -> str | None:
    """Why the attention depends on more than a mask and positions, but for layers of types in ``states``; None if it does
    not."""
    for name, what in _BY_CONTENT.items():
        if value := getattr(config, name, None):
            return f"its configuration says {name}={value}: {what}"
    if getattr(config, "is_causal", None) is False:
        return "its configuration says is_causal=False: its tokens see later ones"
    if getattr(config, "attention_type", None) == "block_sparse":
        return "its block_sparse attention skips blocks that a mask cannot restore"
    strange = set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING, *states}
    if choosing := sorted(kind for kind in strange if kind.endswith("_attention") and kind != "linear_attention"):
        return f"its layers of type {', '.join(choosing)} choose what they attend to by more than a mask and positions"
    if strange:
        types = ", ".join(sorted(strange))
        return f"its layers of type {types} keep a running state, which only the native engine scores, of some models"
    return None


def check_fits(model: Any, length: int, limit: Context | None) -> None:
    """Raise a CacheError if ``length`` tokens, of the prompt and its continuation, exceed a limit of the model."""
    if limit is not None and length > limit.length:
        raise CacheError(
            f"prompt and max_new_tokens make {length} tokens, but {model.config.model_type} takes {limit.length} "
            f"({limit.reason}): lower max_new_tokens, or shorten the prompt"
        )


def check_exact(model: Any, length: int) -> None:
    """As :func:`check_fits`, for limits within the model's context beyond which trees are not exact."""
    ours, own = context(model.config), own_context(model.config)
    check_fits(model, length, None if ours is None or (own is not None and own.length <= ours.length) else ours)


def check_scores(runner: TargetRunner) -> None:
    """Compare the scores of a text, of tokens from the whole vocabulary, with a plain forward of the model.

    Raises:
        ModelError: they differ by more than rounding errors.
    """
    model, length = runner.model, min(_TEXT, runner.max_length or _TEXT)
    known, _ = vocabulary(model)
    text = [known * i // length for i in range(length)]
    with checking(model, runner), torch.inference_mode():
        ids = torch.tensor([text], device=runner.device)
        wanted = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].double()
        found = score_tree(runner, text, [list(range(i + 1)) for i in range(length)], prefix=[])
    worst = score_difference(found, wanted)
    said = f"it scores a text differently in {type(runner).__name__}, by {worst:.2g}: one of the two is wrong"
    refuse_difference(model, worst, f"{said}. Use --backend torch", found, wanted)


def check_tree_forward(runner: TargetRunner) -> None:
    """Compare the scores of a small tree with those of each path as a chain.

    For unknown sizes in the configuration, compare the tree after a longer text with plain forwards of the model.

    Raises:
        ModelError: the model ignores the mask or the positions, or fails on them.
        NumericsError: its scores are NaN.
    """
    model = runner.model
    tokens = [t % runner.vocab_size for t in (1, 2, 3, 4, 5)]
    paths = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    with checking(model, runner):
        tree = score_tree(runner, tokens, paths)
        chains = [score_tree(runner, [tokens[i] for i in p], [list(range(k + 1)) for k in range(len(p))])[-1] for p in paths]
    worst = score_difference(tree, torch.stack(chains))
    said = f"its scores differ by {worst:.2g} from those of the same text as a chain, so it ignores the attention mask"
    refuse_difference(model, worst, f"{said} or the positions. Use another model, or --method ar", tree, *chains)
    for name, size in unknown_sizes(model.config).items():
        if size <= MAX_CHECKED and (runner.max_length is None or size + len(tokens) < runner.max_length):
            _check_beyond(runner, tokens, paths, name, size)


def _check_beyond(runner: TargetRunner, tokens: list[int], paths: list[list[int]], name: str, size: int) -> None:
    """Check the tree after a text longer than a size of the configuration."""
    model, (known, _) = runner.model, vocabulary(runner.model)
    text = [known * i // (size + 1) for i in range(size + 1)]
    with checking(model, runner), torch.inference_mode():
        tree = score_tree(runner, tokens, paths, prefix=text)
        plain = [
            model(input_ids=torch.tensor([text + [tokens[i] for i in path]], device=runner.device), use_cache=False)
            .logits[0, -1]
            .double()
            for path in paths[-2:]
        ]
    worst = score_difference(tree[-2:], torch.stack(plain).to(tree.device))
    said = f"its configuration says {name}={size}, and beyond that its scores differ by {worst:.2g} from those of the same"
    refuse_difference(model, worst, f"{said} text without a tree. Use another model")


@contextmanager
def checking(model: Any, runner: ModelRunner | None = None) -> Iterator[None]:
    """Report any failure of a check as a ModelError, and clear the runner at the end."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise unfit(model, f"{type(error).__name__}: {error}") from error
    finally:
        if runner is not None:
            runner.clear()
            runner.forward_seconds = 0.0


def refuse_difference(model: Any, difference: float, reason: str, *scores: torch.Tensor) -> None:
    """Raise an error if scores differ by more than rounding errors, relatively: NaN and dropout come before ``reason``."""
    if not difference <= TOLERANCE.get(model.dtype, 0.5):
        refuse_nan(model, *scores)
        check_evaluates(model)
        raise unfit(model, reason)


def check_evaluates(model: Any) -> None:
    """Raise a ModelError if the model is in training mode."""
    if model.training:
        kind = model_kind(model)
        raise ModelError(f"model type {kind!r} is in training mode, where dropout changes its scores: call model.eval()")


def score_difference(found: Float[torch.Tensor, "node vocab"], wanted: Float[torch.Tensor, "node vocab"]) -> float:
    """The largest difference of two tables of scores, relative to the largest finite score, at least 1.

    Tokens that both forbid are equal. NaN, or a token that only one forbids, gives an infinite difference.
    """
    equal = found == wanted
    sizes = wanted.abs().masked_fill(~wanted.isfinite(), 0.0)
    gap = (found - wanted).abs().masked_fill(equal, 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    return float(gap.max()) / max(1.0, float(sizes.max()))


def refuse_nan(model: Any, *scores: torch.Tensor) -> None:
    """Raise a NumericsError if scores are NaN, with the weights that cause it."""
    if not any(bool(part.isnan().any()) for part in scores):
        return
    bad = next((name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())), None)
    cause = f"its weights {bad} hold NaN or infinity: load another checkpoint" if bad else "try --dtype float32"
    raise NumericsError(f"model type {model_kind(model)!r} gives NaN scores: {cause}")


def score_tree(
    runner: TargetRunner, tokens: list[int], paths: list[list[int]], prefix: Sequence[int] = (0, 1)
) -> Float[torch.Tensor, "node vocab"]:
    """Float64 scores of the nodes of a tree after ``prefix``; each path ends with its node."""
    n = len(tokens)
    ancestors = torch.zeros(1, n, n, dtype=torch.bool, device=runner.device)
    for i, path in enumerate(paths):
        ancestors[0, i, path] = True
    depths = torch.tensor([[len(p) - 1 for p in paths]], device=runner.device)
    runner.clear()
    runner.set_rows([Row(tokens=[*prefix, tokens[0]])])
    return runner.extend(torch.tensor([tokens], device=runner.device), depths, ancestors).logits[0].double()
