"""The check at load time that trees over sources are scored like plain forwards of their paths."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.runners.protocols import SourceRunner
from draftwood.runners.seq2seq.source import known_tokens
from draftwood.runners.support import TOLERANCE, check_evaluates, checking, model_kind, score_difference
from draftwood.sampling.rows import Row

_PATHS = ([0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4])
_LEAVES = (_PATHS[3], _PATHS[4])
_ACCEPTED = ([0, 1, 3], [0])


def check_source_trees(runner: SourceRunner) -> None:
    """Score a small tree on two rows of different length, accept a path of each, and score another tree.

    All nodes are compared with plain forwards of the whole paths, through the original model and without a cache.

    Raises:
        ModelError: the scores differ, or the model fails.
    """
    with checking(runner):
        worst = max(_differences(runner))
    if worst <= TOLERANCE.get(runner.model.dtype, 0.5):
        return
    check_evaluates(runner.model)
    raise ModelError(
        f"model type {model_kind(runner.model)!r} cannot score a draft tree: its scores differ by {worst:.2g} from those of "
        "the same text alone, so they depend on more than the source and the tokens before them, or on positions that "
        "cannot be set. Use another model"
    )


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
