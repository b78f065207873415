"""The model that answers in a chat."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, final

from draftwood.api import Pair
from draftwood.cli.chat_settings import ChatDisplay
from draftwood.cli.settings import Opened, Settings
from draftwood.cli.show import Painter, Screen
from draftwood.core.rounds import Stats


@final
class ChatModel:
    """Answers chats, one after the other.

    Args:
        settings: models, method, sampling and limits.
        display: whether drafted tokens are marked, and values for the chat template.

    Attributes:
        name: of the model.
        reason: why the last answer ended; None if it was stopped.
    """

    def __init__(self, settings: Settings, display: ChatDisplay) -> None:
        opened: Opened[Pair] = settings.open()
        self._pair, self._decoder, self._sampling, _ = opened
        self._pair.special_tokens_in_content = display.special_tokens_in_content
        self.name = str(settings.models.target)
        self._limits = settings.limits_from(self._pair.chat_limits)
        self._seed = settings.seed
        self._variables = display.variables
        self._show = display.show
        self._drawn: int | None = None
        self.reason: str | None = None

    def check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Refuse what has no answer; raises a DraftwoodError."""
        self._pair.chat_request(messages, chat_template_kwargs=self._variables)

    def answer(self, messages: Sequence[Mapping[str, Any]], screen: Screen) -> Generator[str]:
        """Write an answer, and yield its texts; closing the generator stops it. Raises a DraftwoodError."""
        request = self._pair.chat_request(messages, self._limits, self._seed, chat_template_kwargs=self._variables)
        painter = Painter(screen, self._decoder.pipeline.tokenizer, request.prompt) if self._show else None
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
        """The figures of the last answer: its speed, its end if it is not the model's own, and the seed of drawn tokens."""
        [stats] = self._decoder.stats or [Stats()]
        seconds, tokens = stats.total_seconds, stats.new_tokens
        parts = [f"{tokens} tokens", f"{tokens / seconds if seconds else 0.0:.1f} tokens/s"]
        parts.append(f"{tokens / max(1, stats.rounds):.2f} tokens per pass")
        if self.reason != "stop":
            parts.append("stopped" if self.reason is None else "ended at the length limit")
        if self._drawn is not None:
            parts.append(f"seed {self._drawn}")
        return ", ".join(parts)
