"""Logits processors applied at the nodes of a tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import NumericsError

Nodes: TypeAlias = list[tuple[int, list[int]]]
"""Nodes, each with its path: the tokens after the root up to it."""
_NOTHING_LEFT: Final = "the logits processors leave no token possible after this text: check them"


def apply(
    processors: Sequence[Any], ids: Int[Tensor, "n length"], scores: Float[Tensor, "n vocab"]
) -> Float[Tensor, "n vocab"]:
    """The scores after all processors of one row, in order."""
    for processor in processors:
        scores = processor(ids, scores)
    return scores


def processed(
    processors: Sequence[Any],
    text: Sequence[int],
    paths: Sequence[list[int] | None],
    scores: Float[Tensor, "node vocab"],
    bias: Mapping[int, float],
) -> tuple[Float[Tensor, "node vocab"], dict[int, Exception]]:
    """Apply one row's processors to the scores at its nodes, level by level.

    Processors are not called below a token that they, the model or the bias forbid, since no text gets there. A processor
    may raise, or below the root leave no token possible. That is an error only if the text gets there, which it may never
    do. In both cases the scores stay as they are.

    Returns:
        The processed scores, and the errors of nodes.
    """
    dead: dict[int, Exception] = {}
    out, above = scores.clone(), dict[tuple[int, ...], int]()  # above: the nodes one level up, by path
    by_length: dict[int, Nodes] = {}
    for node, path in enumerate(paths):
        if path is not None:
            by_length.setdefault(len(path), []).append((node, path))
    for i, length in enumerate(sorted(by_length)):
        level = by_length[length]
        group = _reached(out, level, above, bias) if i else level
        above = {tuple(path): node for node, path in group}
        if group:
            nodes = [node for node, _ in group]
            new_scores, errors = _apply_to_level(processors, text, group, scores[nodes])
            out[nodes] = new_scores.to(out.dtype)
            dead |= errors
            above = {path: node for path, node in above.items() if node not in errors}
    return out, dead


def _apply_to_level(
    processors: Sequence[Any], text: Sequence[int], group: Nodes, scores: Float[Tensor, "n vocab"]
) -> tuple[Float[Tensor, "n vocab"], dict[int, Exception]]:
    """The processed scores at nodes of one level, and the errors of nodes that have none."""
    ids: Int[Tensor, "n length"] = torch.tensor([[*text, *path] for _, path in group], device=scores.device)
    errors: dict[int, Exception] = {}
    try:
        new_scores = apply(processors, ids, scores)
    except Exception:
        parts = []
        for i, (node, _) in enumerate(group):
            try:
                parts.append(apply(processors, ids[i : i + 1], scores[i : i + 1]))
            except Exception as error:
                errors[node] = error
                parts.append(scores[i : i + 1])
        new_scores = torch.cat(parts)
    if not group[0][1]:  # at the root, where the text is
        return new_scores, errors
    impossible = (new_scores == -torch.inf).all(dim=-1)
    for i in impossible.nonzero().flatten().tolist():
        errors[group[i][0]] = NumericsError(_NOTHING_LEFT)
    return torch.where(impossible.unsqueeze(1), scores, new_scores), errors


def _reached(
    scores: Float[Tensor, "node vocab"], level: Nodes, above: Mapping[tuple[int, ...], int], bias: Mapping[int, float]
) -> Nodes:
    """The nodes of a level whose token is possible at the node above (one host sync)."""
    held = [(node, path) for node, path in level if tuple(path[:-1]) in above and bias.get(path[-1]) != -math.inf]
    parents, tokens = [above[tuple(path[:-1])] for _, path in held], [path[-1] for _, path in held]
    impossible = (scores[parents, tokens] == -torch.inf).tolist()
    return [one for one, never in zip(held, impossible, strict=True) if not never]
