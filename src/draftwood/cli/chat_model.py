"""What answers in a chat: a model in this process, or one behind a server."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol, final

from draftwood.cli.chat_settings import ChatDisplay, limits_of
from draftwood.cli.settings import Settings
from draftwood.cli.show import Painter, Screen
from draftwood.core.rounds import Stats


class ChatModel(Protocol):
    """Answers chats, one after the other.

    Attributes:
        name: of the model.
        reason: why the last answer ended; None if it was stopped.
        remark: the figures of the last answer.
    """

    @property
    def name(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    @property
    def remark(self) -> str: ...

    def check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Refuse what has no answer; raises a DraftwoodError."""
        ...

    def answer(self, messages: Sequence[Mapping[str, Any]], screen: Screen) -> Generator[str]:
        """Write an answer, and yield its texts; closing the generator stops it. Raises a DraftwoodError."""
        ...


def remark_of(tokens: int, seconds: float, per_pass: float | None, reason: str | None, seed: int | None) -> str:
    """The figures of an answer: its speed, its end if it is not the model's own, and the seed if tokens were drawn."""
    parts = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
    if per_pass is not None:
        parts.append(f"{per_pass:.2f} tokens per pass")
    if reason != "stop":
        parts.append("stopped" if reason is None else "ended at the length limit")
    if seed is not None:
        parts.append(f"seed {seed}")
    return ", ".join(parts)


@final
class LocalModel:
    """A model in this process.

    Args:
        settings: models, method, sampling and limits.
        display: whether drafted tokens are marked, and values for the chat template.
    """

    def __init__(self, settings: Settings, display: ChatDisplay) -> None:
        self._pair, self._decoder, self._sampling = settings.open()
        self._pair.special_tokens_in_content = display.special_tokens_in_content
        self.name = str(settings.models.target)
        self._limits = limits_of(self._pair, settings)
        self._seed = settings.seed
        self._variables = display.variables
        self._show = display.show
        self._drawn: int | None = None
        self.reason: str | None = None

    def check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._pair.chat_request(messages, chat_template_kwargs=self._variables)

    def answer(self, messages: Sequence[Mapping[str, Any]], screen: Screen) -> Generator[str]:
        request = self._pair.chat_request(messages, self._limits, self._seed, chat_template_kwargs=self._variables)
        painter = Painter(screen, self._decoder.tokenizer, request.prompt) if self._show else None
        self.reason, self._drawn = None, None if self._sampling.greedy else request.seed
        for [piece] in self._decoder.stream([request], self._sampling, reuse=True):
            if painter is not None:
                painter.take(piece)
            else:
                screen.write(piece.text)
            self.reason = piece.finish_reason
            yield piece.text

    @property
    def remark(self) -> str:
        [stats] = self._decoder.stats or [Stats()]
        per_pass = stats.new_tokens / max(1, stats.rounds)
        return remark_of(stats.new_tokens, stats.total_seconds, per_pass, self.reason, self._drawn)
