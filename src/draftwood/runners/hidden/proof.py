"""The proof of a drafter of hidden states when it is loaded: its scores are those of its modules in PyTorch."""

from __future__ import annotations

from typing import Any, Final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from draftwood.core.draft_kind import DFLASH, HIDDEN_BLOCK
from draftwood.core.errors import ModelError
from draftwood.runners.hidden.layers import block_input
from draftwood.runners.support import TOLERANCE, checking, model_kind, refuse_nan, score_difference
from draftwood.sampling.rows import Row

_PATHS: Final = [0], [0, 1], [0, 1, 2], [0, 3]
_TEXT = 5  # tokens, the root included
_OUTPUTS = 64  # that are compared


def check_drafter(runner: Any, target: Any) -> None:
    """Compare the scores of a tree of four tokens with those of PyTorch, path by path and without a memory.

    Args:
        runner: of a drafter of hidden states.
        target: the drafter's target.

    Raises:
        ModelError: they differ by more than rounding errors, or the drafter cannot be run.
        NumericsError: they are NaN.
    """
    drafter = runner.model
    count = _TEXT + len(_PATHS) - 1
    tokens = [(runner.vocab_size - 1) * (i + 1) // count for i in range(count)]
    text, nodes = tokens[:_TEXT], torch.tensor([tokens[_TEXT - 1 :]], device=runner.device)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(_TEXT - 1, drafter.hidden_width, generator=generator, dtype=torch.float32).to(
        runner.device, drafter.dtype
    )
    seen = torch.tensor([[[i in path for i in range(len(_PATHS))] for path in _PATHS]], device=runner.device)
    last = len(drafter.draft_tokens) - 1
    outputs = torch.tensor([last * i // _OUTPUTS for i in range(_OUTPUTS + 1)], device=runner.device)
    with checking(runner), torch.inference_mode():
        runner.set_rows([Row(tokens=text)])
        runner.commit([[]], [hidden])
        found = runner.extend(nodes, seen.sum(-1) - 1, seen).logits[0][:, outputs].double()
        plain = _block_scores if runner.kind in (HIDDEN_BLOCK, DFLASH) else _level_scores
        chains = [torch.tensor([*text, *(tokens[_TEXT - 1 + i] for i in path[1:])], device=runner.device) for path in _PATHS]
        wanted = torch.stack([plain(drafter, target, hidden, chain, outputs) for chain in chains]).double()
    worst = score_difference(found, wanted)
    if not worst <= TOLERANCE.get(drafter.dtype, 0.5):
        refuse_nan(drafter, found, wanted)
        raise ModelError(
            f"drafter type {model_kind(drafter)!r} scores a tree differently in {runner.engine}, by {worst:.2g}: one of "
            "the two is wrong. Use --backend torch, or no draft model"
        )


def _block_scores(drafter: Any, target: Any, hidden: Tensor, chain: Tensor, outputs: Tensor) -> Float[Tensor, "output"]:
    """Scores after the last token of a chain, whose first tokens are the text of these hidden states and the root."""
    read, slots, depth = len(hidden), drafter.config.slots, len(chain) - len(hidden) - 1
    at = torch.arange(read + slots, device=hidden.device).unsqueeze(0)
    x = block_input(drafter.embedded(target, chain[read : read + 1]), drafter.mask_embedding(target), slots)
    mask = _later(slots, read + slots, hidden) if drafter.causal else None
    states = drafter.states(x.to(hidden.dtype), at[:, read:], drafter.memory(hidden.unsqueeze(0), at[:, :read]), mask)
    states = states[0, -drafter.config.block :]
    if depth >= len(states):
        return hidden.new_full((len(outputs),), -torch.inf)
    return linear(states[depth], drafter.head(target, outputs).to(hidden.dtype)) + drafter.markov(chain[-1])[outputs]


def _level_scores(drafter: Any, target: Any, hidden: Tensor, chain: Tensor, outputs: Tensor) -> Float[Tensor, "output"]:
    """The same."""
    features, embedded = drafter.features(hidden.unsqueeze(0)), drafter.embedded(target, chain[1:]).to(hidden.dtype)
    for count in range(len(hidden), len(chain)):
        at, mask = torch.arange(count, device=hidden.device), _later(count, count, hidden)
        states = drafter.states(embedded[None, :count], features, at.unsqueeze(0), _NoMemory, mask)
        features = torch.cat([features, states[:, -1:]], dim=1)
    return linear(drafter.normed(states)[0, -1], drafter.head(target, outputs).to(hidden.dtype))


def _later(new: int, seen: int, like: Tensor) -> Float[Tensor, "1 1 new seen"]:
    """A mask that hides later tokens."""
    return like.new_full((1, 1, new, seen), -torch.inf).triu(seen - new + 1)


class _NoMemory:
    """A cache of nothing, as an argument of the modules."""

    @staticmethod
    def update(keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        return keys, values
