"""Spec-Verification: drafted tokens are kept if they are nearly as likely as the target's best token.

Source: "Speculative Decoding: Exploiting Speculative Execution for Accelerating Seq2seq Generation", Xia et al. 2023, arXiv
2203.16487, section 3.2. Lossy by design. With ``beta`` 1 or ``tau`` 0 it is greedy decoding, token for token.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.rng import RoundRng
from draftwood.core.rounds import Verdict
from draftwood.core.settings import BETA, TAU, check_tolerance
from draftwood.core.tree import DraftTree
from draftwood.verify import Known
from draftwood.verify.coupled import follow_table


@final
class Tolerance(Known, name="tolerance"):
    """Keeps a drafted token that is among the target's ``beta`` best, with a log-probability within ``tau`` of the best one.

    Of several such children it keeps the likeliest. After the last one comes the target's best token.

    Args:
        beta: number of tokens, 1 or more.
        tau: in nats, 0 or more.

    Raises:
        ConfigError: a value out of range.
    """

    def __init__(self, beta: int = BETA, tau: float = TAU) -> None:
        check_tolerance(beta, tau)
        self.beta, self.tau = beta, float(tau)
        if self.beta == 1 or self.tau == 0:  # only the best token is kept
            self.lossless, self.reads = True, "argmax"

    def verify(self, tree: DraftTree, target_logp: Float[Tensor, "row node vocab"], rng: RoundRng) -> Verdict:
        """One pass over all nodes, one host sync; ``rng`` is not used.

        ``target_logp`` holds the distributions as they are at temperature 0, not point masses.
        """
        best = target_logp.argmax(dim=-1)
        if self.lossless:
            return follow_table(tree, best)
        top = target_logp.topk(min(self.beta, target_logp.shape[-1]), dim=-1).values
        least = torch.maximum(top[..., -1], top[..., 0] - self.tau)
        row = torch.arange(tree.rows, device=best.device).unsqueeze(1)
        parents, tokens = (torch.as_tensor(part, device=best.device) for part in (tree.parents, tree.tokens))
        drafted = target_logp[row, parents, tokens]
        tolerated = drafted.masked_fill(drafted < least.gather(1, parents), -torch.inf).tolist()
        paths = [_walk(children, logp) for children, logp in zip(tree.children, tolerated, strict=True)]
        last = [picks[path[-1] if path else 0] for path, picks in zip(paths, best.tolist(), strict=True)]
        return Verdict(paths=paths, next_tokens=last)


def _walk(children: list[list[int]], logp: list[float]) -> list[int]:
    """The path from the root along the likeliest tolerated child; ``logp`` is -inf for nodes that are not tolerated."""
    path, node = [], 0
    while tolerated := [child for child in children[node] if logp[child] > -math.inf]:
        node = max(tolerated, key=logp.__getitem__)
        path.append(node)
    return path
