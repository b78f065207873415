"""Results of rounds: the verdict, the round itself, what it adds to a text, and statistics over many rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.core.limits import FinishReason
from draftwood.core.log_probs import Pending
from draftwood.core.scores import Scores
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.core.tree import DraftTree


@final
@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A verifier's decision.

    Attributes:
        paths: per row, the accepted nodes in order, the root excluded.
        next_tokens: per row, the token that follows the last accepted node; it becomes the next root.
    """

    paths: Sequence[list[int]]
    next_tokens: Sequence[int]


@final
@dataclass(frozen=True, kw_only=True)
class Round:
    """One round; all that is fed back.

    Attributes:
        tree: what was drafted.
        scores: what the target's forward returned for it.
        target: the target's distributions at its nodes.
        verdict: what the verifier decided.
        seconds: wall time by stage; complete once the round's pieces are out.
        taken: per row, how many of :attr:`tokens` its text took, which may end before the others; empty if all. It is
            complete once the round's pieces are out, as :attr:`joined` and :attr:`hidden` are.
    """

    tree: DraftTree
    scores: Scores
    target: Pending
    verdict: Verdict
    seconds: dict[str, float] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)

    @cached_property
    def joined(self) -> list[list[int]]:
        """Per row, the nodes whose tokens the text has for good: the root and the accepted ones, as far as the text goes."""
        nodes = [[0, *path] for path in self.paths]
        return [row[:count] for row, count in zip(nodes, self.taken, strict=True)] if self.taken else nodes

    @property
    def paths(self) -> Sequence[list[int]]:
        """Accepted nodes per row, the root excluded."""
        return self.verdict.paths

    @cached_property
    def tokens(self) -> list[list[int]]:
        """Per row, the accepted tokens and the next one, of which its text takes all or the first (host sync if any was
        accepted)."""
        rows = enumerate(zip(self.paths, self.verdict.next_tokens, strict=True))
        return [[*(self.tree.host.tokens[row][node] for node in path), last] for row, (path, last) in rows]

    @cached_property
    def hidden(self) -> list[Float[Tensor, "_token width"]] | None:
        """Per row, the target's hidden states of what was pending and of the nodes that joined the text. Over all rounds
        they are those of the text without its last token. None without hidden layers.
        """
        nodes, read = self.scores.hidden, self.scores.read
        if nodes is None or read is None:
            return None
        kept = [_lines(nodes, row, own) for row, own in enumerate(self.joined)]
        return [torch.cat([before, own]) if len(before) else own for before, own in zip(read, kept, strict=True)]


def _lines(states: Float[Tensor, "row node width"], row: int, nodes: list[int]) -> Float[Tensor, "kept width"]:
    if nodes == list(range(len(nodes))):
        return states[row] if len(nodes) == states.shape[1] else states[row][: len(nodes)]
    return states[row, nodes]


@final
@dataclass(frozen=True, kw_only=True)
class Piece:
    """The output of one round for one row.

    Attributes:
        row: index of the request.
        tokens: new token ids.
        drafted: how many of them, from the first on, were drafted.
        text: text that is now certain; it may lag behind the tokens.
        finish_reason: set in the row's last piece.
        stop_text: set there where one of the limits' stop texts ended the text.
        round, round_row: the round, and the row's index in it.
        held: the text by which ``text`` lags behind; it is the end of a text whose row is dropped now.
        logprobs: one entry for each new token, if the request wants them.
    """

    row: int
    tokens: list[int]
    drafted: int
    text: str
    finish_reason: FinishReason | None
    round: Round = field(repr=False)
    round_row: int
    held: str
    stop_text: str | None = None
    logprobs: list[TokenLogprob] | None = None


STAGES = ("draft", "target", "verify", "other")


@final
@dataclass
class Stats:
    """Statistics of the rounds of one or more requests.

    Attributes:
        accepted: number of rounds that accepted 0, 1, 2, ... drafted tokens, counted per row.
        drafted: number of drafted nodes that the target scored, over all rows and rounds.
        undrafted: number of rounds without a draft, by the drafter's reason (:attr:`draftwood.core.tree.DraftTree.stop`).
        new_tokens: number of tokens that were output; a stop inside a round's tokens cuts the rest of them.
        cached_tokens: number of prompt tokens that were copied from another text, and not read.
        seconds: wall time of each stage. ``draft`` and ``target`` are the forwards of the two models, ``verify`` is the
            verifier, ``other`` everything else. On an accelerator the stages are launch times unless the clock is
            synchronised; the total is always right.
    """

    accepted: Counter[int] = field(default_factory=Counter)
    drafted: int = 0
    undrafted: Counter[str] = field(default_factory=Counter)
    new_tokens: int = 0
    cached_tokens: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))

    @property
    def rounds(self) -> int:
        """Target forwards, counted per row."""
        return self.accepted.total()

    @property
    def histogram(self) -> list[int]:
        """``accepted`` as a list."""
        return [self.accepted[k] for k in range(max(self.accepted, default=0) + 1)]

    @property
    def block_efficiency(self) -> float:
        """Tokens committed per target forward: 1 + the mean number of accepted drafted tokens."""
        return 1 + sum(k * n for k, n in self.accepted.items()) / max(1, self.rounds)

    @property
    def total_seconds(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.total_seconds if self.total_seconds else 0.0

    def add(self, other: Stats) -> None:
        """Add the rounds of another request."""
        self.accepted.update(other.accepted)
        self.drafted += other.drafted
        self.undrafted.update(other.undrafted)
        self.new_tokens += other.new_tokens
        self.cached_tokens += other.cached_tokens
        for stage in STAGES:
            self.seconds[stage] += other.seconds[stage]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "rounds": self.rounds,
            "block_efficiency": round(self.block_efficiency, 4),
            "accepted": self.histogram,
            "drafted": self.drafted,
            "new_tokens": self.new_tokens,
            "cached_tokens": self.cached_tokens,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "seconds": {stage: round(value, 6) for stage, value in self.seconds.items()},
        }
