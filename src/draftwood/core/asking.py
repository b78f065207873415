"""Logits processors asked about the nodes of a tree, and about tokens that are guessed to follow a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.errors import NumericsError

Nodes: TypeAlias = list[tuple[int, list[int]]]
"""Nodes, each with the tokens after the root up to it."""
_NOTHING_LEFT: Final = "the logits processors leave no token possible behind this text: check them"
_CERTAIN: Final = 50.0  # the score of a guessed token among scores of 0


def answer(
    processors: Sequence[Any], ids: Int[Tensor, "n length"], scores: Float[Tensor, "n vocab"]
) -> Float[Tensor, "n vocab"]:
    """What one row's processors make of scores, one behind the other."""
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
    """What one row's processors make of the scores at its nodes, level by level, and the nodes where they have no answer.

    Below a token that they, the model or the bias forbid nothing is asked: no text gets there. Below the root a processor
    may also raise, or leave no token possible: an error only if the text gets there, which it may never do. In both cases
    the scores stay as they are.
    """
    dead: dict[int, Exception] = {}
    out, above = scores.clone(), dict[tuple[int, ...], int]()  # the nodes one level up, by their paths
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
            found, errors = _answers(processors, text, group, scores[nodes])
            out[nodes] = found.to(out.dtype)
            dead |= errors
            above = {path: node for path, node in above.items() if node not in errors}
    return out, dead


def _answers(
    processors: Sequence[Any], text: Sequence[int], group: Nodes, scores: Float[Tensor, "n vocab"]
) -> tuple[Float[Tensor, "n vocab"], dict[int, Exception]]:
    """The answers at nodes of one level, and the errors of those where there is none; that of the root is raised."""
    ids: Int[Tensor, "n length"] = torch.tensor([[*text, *path] for _, path in group], device=scores.device)
    if not group[0][1]:
        return answer(processors, ids, scores), {}
    errors: dict[int, Exception] = {}
    try:
        found = answer(processors, ids, scores)
    except Exception:
        parts = []
        for i, (node, _) in enumerate(group):
            try:
                parts.append(answer(processors, ids[i : i + 1], scores[i : i + 1]))
            except Exception as error:
                errors[node] = error
                parts.append(scores[i : i + 1])
        found = torch.cat(parts)
    impossible = (found == -torch.inf).all(dim=-1)
    for i in impossible.nonzero().flatten().tolist():
        errors[group[i][0]] = NumericsError(_NOTHING_LEFT)
    return torch.where(impossible.unsqueeze(1), scores, found), errors


def _reached(
    scores: Float[Tensor, "node vocab"], level: Nodes, above: Mapping[tuple[int, ...], int], bias: Mapping[int, float]
) -> Nodes:
    """The nodes of a level whose own token the node above it does not forbid (one host sync)."""
    held = [(node, path) for node, path in level if tuple(path[:-1]) in above and bias.get(path[-1]) != -math.inf]
    parents, tokens = [above[tuple(path[:-1])] for _, path in held], [path[-1] for _, path in held]
    impossible = (scores[parents, tokens] == -torch.inf).tolist()
    return [one for one, never in zip(held, impossible, strict=True) if not never]


def permits(processors: Sequence[Any], text: Sequence[int], token: int, vocab: int, device: torch.device) -> bool:
    """Whether a token is possible behind a text where the model is all but certain of it."""
    scores = torch.zeros(1, vocab, device=device)
    scores[0, token] = _CERTAIN
    try:
        found = answer(processors, torch.tensor([list(text)], device=device), scores)
    except Exception:  # a text that is only guessed; where it is the true one, the target asks again
        return False
    return float(found[0, token]) != -math.inf
