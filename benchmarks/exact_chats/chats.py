"""Chats: reading them, and writing their answers turn by turn with the memory of the turns before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, final

from benchmarks.greedy import first_difference
from benchmarks.measure import Meter
from benchmarks.prompts import conversations
from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.sampling.settings import Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Chat:
    """What a user says, turn by turn."""

    source: str
    turns: Sequence[str]


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """An answer and how it was written.

    Attributes:
        chat, turn, source: which one it is.
        prompt: token ids of the template's text before the answer.
        tokens: token ids of the answer, its end-of-turn token included.
        ends: tokens that end an answer.
        reason: why it ended, ``stop`` or ``length``.
        seed: of its noise.
        rounds: forwards of the target that wrote it.
        drafted, accepted: drafted tokens that the target scored, and those of the answer.
        shared: tokens at the beginning of the prompt that the chat's text before has too.
        read: tokens that the target read up to the first new token, without drafted ones.
    """

    chat: int
    turn: int
    source: str
    prompt: list[int]
    tokens: list[int]
    ends: tuple[int, ...]
    reason: str
    seed: int
    rounds: int
    drafted: int
    accepted: int
    shared: int
    read: int


def read_chats(path: Path, count: int) -> list[Chat]:
    """The first ``count`` chats of a file, the sources in turn; raises what :func:`conversations` raises."""
    by_source = [[Chat(source=name, turns=turns) for turns in some] for name, some in conversations(path).items()]
    return [found for found in chain.from_iterable(zip_longest(*by_source)) if found is not None][:count]


@final
@dataclass(frozen=True, kw_only=True)
class Writer:
    """Writes answers with one pair and one method."""

    pair: Pair
    method: Method
    temperature: float
    max_new_tokens: int

    def answers(self, number: int, chat: Chat, seed: int) -> Iterator[Answer]:
        """The answers of a chat in turn; each message follows the model's own answer to the one before."""
        messages: list[dict[str, str]] = []
        before: list[int] = []
        for turn, content in enumerate(chat.turns):
            messages.append({"role": "user", "content": content})
            answer, text = self._answer(number, turn, chat.source, messages, seed + turn, before)
            messages.append({"role": "assistant", "content": text})
            before = [*answer.prompt, *answer.tokens[:-1]]
            yield answer

    def _answer(
        self, number: int, turn: int, source: str, messages: Sequence[dict[str, Any]], seed: int, before: Sequence[int]
    ) -> tuple[Answer, str]:
        pair, limits = self.pair, Limits(max_new_tokens=self.max_new_tokens)
        request = pair.chat_request(messages, limits, seed)
        tokens, text, drafted, accepted, rounds, read, reason = list[int](), "", 0, 0, 0, 0, ""
        target: Any = pair.target
        with Meter().on(target.network) as meter:
            sampling = Sampling(temperature=self.temperature)
            for piece in pair.chat(messages, stream=True, method=self.method, sampling=sampling, limits=limits, seed=seed):
                rounds += 1
                if rounds == 1:
                    read = meter.tokens - piece.round.tree.drafted[0]
                drafted += piece.round.tree.drafted[0]
                accepted += piece.drafted
                tokens += piece.tokens
                text += piece.text
                reason = piece.finish_reason or ""
        ends = tuple(sorted({*request.limits.stop_token_ids, *pair.eos}))
        return Answer(
            chat=number, turn=turn, source=source, prompt=list(request.prompt), tokens=tokens, ends=ends, reason=reason,
            seed=seed, rounds=rounds, drafted=drafted, accepted=accepted, read=read,
            shared=first_difference(before, request.prompt),
        ), text  # fmt: skip
