"""Every random choice of a round, as a protocol: the drafters' draws, the acceptance tests, the next token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.core.log_probs import Pending


class Beam(NamedTuple):
    """The best candidates of one level of a stochastic beam search, best first, ``[row, width]`` each.

    A stochastic beam is a race: a path of probability ``exp(phi)`` arrives after an exponential time of that rate. The time
    is ``exp(-G)`` of the path's perturbed log-probability ``G``.

    Attributes:
        parents: indices among the nodes of the call.
        tokens: the candidates' tokens.
        phi: log-probability of the path; -inf marks padding, where there are too few candidates.
        times: arrival time of the path, float64.
    """

    parents: Int[Tensor, "row width"]
    tokens: Int[Tensor, "row width"]
    phi: Float[Tensor, "row width"]
    times: Float[Tensor, "row width"]


@runtime_checkable
class RoundRng(Protocol):
    """Every random choice of one round.

    ``first`` is the number of the call's first node among all nodes of the round that draw children.
    """

    def ordered(self, log_q: Float[Tensor, "row node vocab"], count: int, first: int) -> Int[Tensor, "row node count"]:
        """An ordered sample without replacement at each node (Gumbel-top-k); -1 where the support is exhausted."""
        ...

    def independent(self, log_q: Float[Tensor, "row node vocab"], count: int, first: int) -> Int[Tensor, "row node count"]:
        """``count`` independent draws at each node; -1 without support. Here ``first`` counts children."""
        ...

    def beam(
        self,
        log_q: Float[Tensor, "row node vocab"],
        phi: Float[Tensor, "row node"],
        times: Float[Tensor, "row node"],
        width: int,
        first: int,
    ) -> Beam:
        """One level of stochastic beam search below nodes with these ``phi`` and ``times``."""
        ...

    def accept(self, target: Sequence[float], draft: Sequence[float], node: Sequence[int]) -> list[bool]:
        """Per row, True with probability ``min(1, target / draft)`` for its ``node``; node 0 is padding."""
        ...

    def token(self, probs: Float[Tensor, "row vocab"]) -> Int[Tensor, "row"]:
        """One token per row, never of probability zero. ``probs`` need not be normalised."""
        ...

    def path(self, weights: Float[Tensor, "row end"]) -> Int[Tensor, "row"]:
        """One index per row with probability in proportion to its weight; never of weight zero."""
        ...

    def shared(
        self, offset: int, count: int, vocab: int, tokens: Int[Tensor, "n"] | None = None
    ) -> Float[Tensor, "row count _"] | None:
        """Gumbel noise of ``count`` positions from ``1 + offset`` after the root, for all or some tokens; None is zero."""
        ...


@final
class SubsetRng:
    """A :class:`RoundRng` for distributions over some tokens of the vocabulary: column ``i`` is of token ``tokens[i]``.

    Noise that is shared by position and token is that of the tokens; all other choices go by column.
    """

    def __init__(self, rng: RoundRng, tokens: Int[Tensor, "n"], vocab: int) -> None:
        self._rng, self._tokens, self._vocab = rng, tokens, vocab
        self.ordered, self.independent, self.beam = rng.ordered, rng.independent, rng.beam
        self.accept, self.token, self.path = rng.accept, rng.token, rng.path

    def shared(
        self, offset: int, count: int, vocab: int, tokens: Int[Tensor, "m"] | None = None
    ) -> Float[Tensor, "row count _"] | None:
        """As :meth:`RoundRng.shared`, for all or some columns."""
        own = self._tokens if tokens is None else self._tokens[tokens]
        return self._rng.shared(offset, count, self._vocab, own)


def drawing_space(
    scores: Pending, rng: RoundRng
) -> tuple[Float[Tensor, "row node n"], RoundRng, Callable[[Int[Tensor, "*drawn"]], Int[Tensor, "*drawn"]]]:
    """What children are drawn from: log-probabilities, the choices over their columns, and the tokens of drawn columns, of
    which -1 is none.

    Other rows' cuts change no row's columns, so they change no choice of it.
    """
    if (tokens := scores.tokens) is None:
        return scores.settled.dense(), rng, lambda drawn: drawn
    columns = replace(scores, tokens=None, vocab=len(tokens)) if any(scores.cuts) else scores
    logp = columns.settled.dense() if columns.tokens is None else columns.settled.logp
    return logp, SubsetRng(rng, tokens, scores.vocab), lambda drawn: torch.where(drawn < 0, drawn, tokens[drawn])


@runtime_checkable
class Rng(Protocol):
    """The source of a batch's random choices: :class:`CounterRng`, or an exhaustive enumeration."""

    def at(self, positions: Sequence[int]) -> RoundRng:
        """The choices of the round whose roots have these text positions (0-based), one per row."""
        ...

    def select(self, rows: Sequence[int]) -> Rng:
        """The source for some of the rows."""
        ...
