"""Records the rounds of a stream: an observer that reads every piece and changes nothing.

Random numbers are pure functions of the seed, the position and the node (``sampling/counter_rng.py``), so they are computed
again and nothing in the loop has to report them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from draftwood.core.detokenizer import Marks
from draftwood.core.rounds import Piece, Round
from draftwood.core.token_texts import TokenTexts
from draftwood.sampling.counter_rng import CounterRng
from draftwood.trace.arrays import RoundArrays
from draftwood.trace.records import Distribution, Part, Trace, TracedRound
from draftwood.trace.rows import RowRecord
from draftwood.trace.settings import TraceSettings


@final
@dataclass(kw_only=True)
class _Text:
    """A text that is being recorded.

    Attributes:
        trace: so far; its lists grow with every piece.
    """

    trace: Trace
    rng: CounterRng
    marks: Marks | None
    seconds: float = 0.0


@final
class Recorder:
    """Makes traces from the pieces of a stream.

    Args:
        heads: one trace per request, without tokens, texts and rounds.
        tokenizer: decodes tokens; None for token ids only.
        shown: special tokens whose names are part of the texts.
    """

    def __init__(
        self, heads: Sequence[Trace], kept: TraceSettings, *, tokenizer: Any = None, shown: frozenset[int] = frozenset()
    ) -> None:
        self._kept, self._tokenizer, self._shown, self._words = kept, tokenizer, shown, TokenTexts(tokenizer)
        self._arrays: RoundArrays | None = None
        self._texts = [self._begun(head) for head in heads]

    def take(self, piece: Piece) -> TracedRound | None:
        """Record a piece. Returns its round, or None if as many rounds are kept as wanted."""
        text = self._texts[piece.row]
        trace = text.trace
        position = len(trace.prompt) + len(trace.tokens) - 1
        trace.tokens.extend(piece.tokens)
        ended = piece.finish_reason or trace.finish_reason
        full = len(trace.rounds) >= self._kept.rounds
        trace = replace(trace, text=trace.text + piece.text, finish_reason=ended, dropped=trace.dropped + full)
        text.trace, text.seconds = trace, text.seconds + sum(piece.round.seconds.values())
        if full:
            self._learn(trace, piece.tokens)
            return None
        parts = _parts(text.marks, piece)
        with torch.inference_mode():
            arrays = self._of(piece.round)
            row = RowRecord(arrays, piece.round_row, trace, self._kept.tokens, text.rng.at([position]))
            made = row.make(piece, number=len(trace.rounds), position=position, parts=parts, end=text.seconds)
        trace.rounds.append(made)
        self._learn(trace, _tokens_of(made))
        return made

    def _of(self, made: Round) -> RoundArrays:
        """The arrays of a round, which all of its rows share."""
        if self._arrays is None or self._arrays.made is not made:
            self._arrays = RoundArrays(made)
        return self._arrays

    def traces(self) -> list[Trace]:
        """The traces so far, one per request; they do not change when further pieces come."""
        self._arrays = None
        found = (text.trace for text in self._texts)
        return [replace(one, tokens=list(one.tokens), texts=dict(one.texts), rounds=list(one.rounds)) for one in found]

    def _begun(self, head: Trace) -> _Text:
        """A text of which the prompt is known."""
        prompt, source = self._decoded(head.prompt), self._decoded(head.source)
        trace = replace(head, tokens=[], texts={}, rounds=[], prompt_text=prompt, source_text=source)
        self._learn(trace, [*head.prompt, *head.source, *([] if head.mask is None else [head.mask])])
        marks = None if self._tokenizer is None else Marks(self._tokenizer, head.prompt, self._shown)
        return _Text(trace=trace, rng=CounterRng([head.seed], greedy=head.temperature == 0), marks=marks)

    def _learn(self, trace: Trace, tokens: Iterable[int]) -> None:
        """Decode the token ids that are new in a text."""
        if self._tokenizer is not None:
            trace.texts.update({token: self._words.alone(token) for token in sorted(set(tokens) - trace.texts.keys())})

    def _decoded(self, tokens: Sequence[int]) -> str:
        if self._tokenizer is None or not tokens:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _parts(marks: Marks | None, piece: Piece) -> list[Part]:
    """The text of a piece, token by token."""
    if marks is None:
        return []
    found = marks.take(piece.tokens, piece.drafted, piece.text, last=piece.finish_reason is not None)
    return [Part(text=text, drafted=drafted) for text, drafted in found]


def _tokens_of(one: TracedRound) -> set[int]:
    """Every token id in a round."""
    shown: list[Distribution | None] = [one.next_from]
    shown += [found for node in one.nodes for found in (node.target, node.draft)]
    shown += [found for trial in one.trials for found in (trial.residual, trial.proposal)]
    ids = {one.next_token, *one.tokens, *(node.token for node in one.nodes)}
    ids.update(*(found.tokens for found in shown if found is not None), *(choice.kept for choice in one.choices))
    ids.update(choice.token for choice in one.choices)
    return ids
