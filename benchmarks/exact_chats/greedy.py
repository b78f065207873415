"""Greedy answers against ``transformers``, by one plain forward over each finished text.

If every token has the best score after its own prefix, and the text ends where it should, then by induction it is the text
of greedy ``generate``. Two tokens with nearly equal scores are the exception: there the kernels' rounding decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.exact_chats.chats import Answer
from benchmarks.greedy import first_difference
from draftwood.api import Pair
from draftwood.exactness.goodness import rounding, scores_of
from draftwood.tune.compare import configured, generation_config


@final
@dataclass(frozen=True, kw_only=True)
class GreedyCheck:
    """What the target's plain forward says about an answer.

    Attributes:
        differing: positions whose token has not the best score, each with the gap between the best score and its own.
        near_ties: positions where the two best scores differ by less than rounding may.
        end: what is wrong with the end of the answer; None if nothing is.
    """

    differing: list[tuple[int, float]] = field(default_factory=list)
    near_ties: int = 0
    end: str | None = None

    @property
    def equal(self) -> bool:
        """The answer is that of ``generate``, token by token."""
        return not self.differing and self.end is None

    def holds(self, allowed: float) -> bool:
        """The answer is that of ``generate``, except where the gap is below ``allowed``."""
        return self.end is None and all(gap < allowed for _, gap in self.differing)


def gaps(model: Any, prompt: list[int], tokens: list[int]) -> tuple[Float[Tensor, "token"], Float[Tensor, "token"]]:
    """How far each token's score is below the best one at its prefix, and the second best score below the best one."""
    scores = scores_of(model, prompt + tokens, len(tokens))[0].float()
    best = scores.topk(2).values
    return best[:, 0] - scores.gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1), best[:, 0] - best[:, 1]


def end_fault(answer: Answer, limit: int) -> str | None:
    """What is wrong with the end of an answer: it ends with the first end-of-turn token, or with the limit."""
    *inner, last = answer.tokens
    if early := [token for token in inner if token in answer.ends]:
        return f"it goes on after token {early[0]}, which ends a turn"
    if last not in answer.ends and len(inner) + 1 < limit:
        return f"it ends after {len(inner) + 1} tokens with token {last}, which ends no turn"
    return None


def check(model: Any, answer: Answer, limit: int) -> GreedyCheck:
    """Test an answer of at most ``limit`` tokens."""
    below, second = gaps(model, answer.prompt, answer.tokens)
    found = [(int(i), float(below[i])) for i in below.nonzero().flatten()]
    ties = int((second < rounding(model.dtype)).sum())
    return GreedyCheck(differing=found, near_ties=ties, end=end_fault(answer, limit))


def controls(model: Any, answer: Answer, limit: int) -> dict[str, bool]:
    """Whether an answer still passes after each of two changes; both must fail.

    The first change replaces the token in the middle. The second one takes the end-of-turn token away, or in an answer that
    the limit ended, makes it end too early.
    """
    allowed, middle = rounding(model.dtype), len(answer.tokens) // 2
    other = next(t for t in range(answer.tokens[middle] + 1, 1 << 30) if t not in answer.ends)
    vocab = int(model.get_input_embeddings().weight.shape[0])
    replaced = [*answer.tokens[:middle], other % vocab, *answer.tokens[middle + 1 :]]
    short = answer.tokens[:-1] or [other % vocab]
    return {
        "one token replaced": check(model, replace(answer, tokens=replaced), limit).holds(allowed),
        "the last token taken away": check(model, replace(answer, tokens=short), limit).holds(allowed),
    }


def generated(pair: Pair, answer: Answer, limit: int) -> int | None:
    """Where greedy ``generate`` of the target writes another answer to the same prompt; None if it writes the same."""
    model, config = pair.model, generation_config(pair, 0.0, limit)
    config.eos_token_id = list(answer.ends)
    ids = torch.tensor([answer.prompt], device=model.device)
    with configured(model, config):
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    wanted = out[0, ids.shape[1] :].tolist()
    return None if wanted == answer.tokens else first_difference(wanted, answer.tokens)
