"""Logits processors asked about the nodes of a tree, and about tokens that are guessed to follow a text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

Nodes: TypeAlias = list[tuple[int, list[int]]]
"""Nodes, each with the tokens after the root up to it."""
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
) -> Float[Tensor, "node vocab"]:
    """What one row's processors make of the scores at its nodes, level by level.

    Below a token that they, the model or the bias forbid nothing is asked, and the scores stay as they are: no text gets
    there, and a constraint may have no answer.
    """
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
            ids: Int[Tensor, "n length"] = torch.tensor([[*text, *path] for _, path in group], device=scores.device)
            out[nodes] = answer(processors, ids, scores[nodes]).to(out.dtype)
    return out


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
    return float(answer(processors, torch.tensor([list(text)], device=device), scores)[0, token]) != -math.inf
