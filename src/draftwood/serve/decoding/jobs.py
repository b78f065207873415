"""Texts on their way through the server: from a handler to the decoding thread, and back piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias, final

from draftwood.core.limits import FinishReason
from draftwood.core.rounds import Piece, Stats
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from draftwood.serve.http.errors import ApiError
from draftwood.trace.record import Recorder
from draftwood.trace.records import Trace


@final
@dataclass(frozen=True, kw_only=True)
class Draft:
    """One text's draft of one round.

    Attributes:
        nodes: drafted tokens.
        depth: the deepest level.
        ranks: of every accepted token, without the one that the target adds, its place among its siblings, from 0.
    """

    nodes: int
    depth: int
    ranks: tuple[int, ...]

    @staticmethod
    def of(piece: Piece) -> Draft | None:
        """The draft of a piece; None if nothing was drafted."""
        tree, row = piece.round.tree, piece.round_row
        if not (nodes := tree.drafted[row]):
            return None
        path, depths = piece.round.paths[row], zip(tree.depths[row].tolist(), tree.host.valid[row], strict=True)
        ranks = tuple(tree.children[row][parent].index(node) for parent, node in zip([0, *path], path, strict=False))
        return Draft(nodes=nodes, depth=max(depth for depth, valid in depths if valid), ranks=ranks)


def drafting_figures(drafts: Sequence[Draft]) -> dict[str, Any]:
    """What the drafts of a response brought, in the words of other servers."""
    accepted = Counter(len(draft.ranks) for draft in drafts)
    nodes, kept = sum(draft.nodes for draft in drafts), sum(accepted.elements())
    return {
        "mean_acceptance_length": round(1 + kept / len(drafts), 4),
        "draft_acceptance_rate": round(kept / nodes, 4),
        "acceptance_histogram": [accepted[length] for length in range(max(accepted) + 1)],
        "num_spec_steps": len(drafts),
        "num_draft_tokens": nodes,
        "num_accepted_draft_tokens": kept,
        "num_spec_tokens": max(draft.depth for draft in drafts),
    }


@final
@dataclass(frozen=True, kw_only=True)
class TextDelta:
    """What one round wrote of a text.

    Attributes:
        tokens: new token ids.
        text: text that is now certain.
        finish_reason: set in the last one.
        stop_text: set there where one of the request's stop texts ended the text.
        draft: what was drafted for it; None if nothing was.
        logprobs: one for every token, where the request wants them.
        trace: the text's trace so far; None where none is wanted, or where it ended.
    """

    tokens: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    stop_text: str | None = None
    draft: Draft | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    trace: Trace | None = None

    @staticmethod
    def from_piece(piece: Piece, trace: Trace | None = None) -> TextDelta:
        """What a piece says, without the tensors of its round."""
        return TextDelta(
            tokens=tuple(piece.tokens),
            text=piece.text,
            finish_reason=piece.finish_reason,
            stop_text=piece.stop_text,
            draft=Draft.of(piece),
            logprobs=None if piece.logprobs is None else tuple(piece.logprobs),
            trace=trace,
        )

    @staticmethod
    def joined(parts: Sequence[TextDelta]) -> TextDelta:
        """The whole text of its parts, without drafts and traces."""
        logprobs = [part.logprobs for part in parts if part.logprobs is not None]
        return TextDelta(
            tokens=tuple(token for part in parts for token in part.tokens),
            text="".join(part.text for part in parts),
            finish_reason=parts[-1].finish_reason,
            stop_text=parts[-1].stop_text,
            logprobs=tuple(chain.from_iterable(logprobs)) if logprobs else None,
        )


Event: TypeAlias = TextDelta | ApiError
"""An error is a text's last event, and so is what has a finish reason."""


@final
@dataclass(kw_only=True, eq=False)
class Job:
    """One text to write. Once it is submitted, only the decoding thread changes it.

    Attributes:
        request, sampling, method: as for :meth:`draftwood.engine.batch.Batch.add`.
        echo: the prompt as it was sent, where it comes back before the text: with log-probabilities of all tokens after the
            first, if they are wanted.
        only_scored: nothing is written after the prompt.
        recorder: records its rounds in the decoding thread; None for no trace, or after a fault of it.
        deliver: takes the text's events; the decoding thread calls it.
        name: in the log: the id of its request.
        arrived: when it was submitted, on the clock of ``perf_counter``.
        row: in the batch; None while it waits for memory.
        paused: whether it was written, and waits for memory again.
        last: when its last piece came; None before the first one.
        held: text that was written and held back.
        stats: of its row.
    """

    request: Request
    sampling: Sampling
    method: str | None
    echo: TextDelta | None = None
    only_scored: bool = False
    recorder: Recorder | None = field(default=None, init=False)
    deliver: Callable[[Event], None] = field(init=False)
    name: str = field(default="a request", init=False)
    arrived: float = field(default=0.0, init=False)
    row: int | None = field(default=None, init=False)
    paused: bool = field(default=False, init=False)
    last: float | None = field(default=None, init=False)
    held: str = field(default="", init=False)
    stats: Stats = field(default_factory=Stats, init=False)

    @property
    def length(self) -> int:
        """Tokens of its prompt and of its text so far."""
        return len(self.request.prompt) + self.stats.new_tokens

    @property
    def longest(self) -> int:
        """Tokens of both at most."""
        return len(self.request.prompt) + self.request.limits.max_new_tokens
