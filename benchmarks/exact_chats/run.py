"""The run: greedy answers of many chats, sampled answers, and their controls.

The document is written after every chat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

from benchmarks.exact_chats import greedy
from benchmarks.exact_chats.chats import Answer, Chat, Writer, read_chats
from benchmarks.exact_chats.checks import checks
from benchmarks.exact_chats.config import ExactChatsConfig
from benchmarks.exact_chats.sampled import endless, tested
from benchmarks.opening import open_pair
from benchmarks.record import facts_of, plain, surroundings
from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.exactness.goodness import rounding
from draftwood.hardware.machine import load_average

NAME: Final = "exact-chats"
Document = dict[str, Any]


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """A run whose document grows.

    Attributes:
        save: takes the document after each step.
        note: takes a line about what is done.
    """

    config: ExactChatsConfig
    pair: Pair
    save: Callable[[Document], object]
    note: Callable[[str], object]

    def __call__(self) -> Document:
        """The whole document."""
        config, pair, before = self.config, self.pair, load_average()
        chats, parts = read_chats(config.prompts, config.chats), config.part_names()
        models = {"target": facts_of(pair.model, pair.target.engine)}
        if pair.draft is not None:
            models["draft"] = facts_of(pair.draft_model, getattr(pair.draft, "engine", ""))
        found: Document = {"format": 1, "kind": NAME, "partial": True, "config": plain(asdict(config))}
        found |= {"models": models, "allowed": rounding(pair.model.dtype), "chats": len(chats)}
        found |= surroundings(pair.target.device, before)
        if "greedy" in parts:
            self._greedy(found, chats)
        if "sampled" in parts:
            self._sampled(found, chats, "sampled", 1.0, config.tokens)
            self._sampled(found, chats, "control", config.control, config.control_tokens)
        found |= surroundings(pair.target.device, before)
        found |= {"partial": False, "checks": [asdict(check) for check in checks(found)]}
        self.save(found)
        return found

    def _part(self, found: Document, name: str, temperature: float) -> tuple[Document, Writer]:
        """A new part of the document, and the writer of its answers."""
        method = Method(method=self.config.method)
        decoder = self.pair.decoder(method, temperature=temperature)
        used = f"{decoder.pipeline.drafter.name} + {decoder.pipeline.verifier.name}"
        part = found[name] = {"method": used, "temperature": temperature, "answers": []}
        limit = self.config.max_new_tokens
        return part, Writer(pair=self.pair, method=method, temperature=temperature, max_new_tokens=limit)

    def _greedy(self, found: Document, chats: Sequence[Chat]) -> None:
        """Greedy answers of all chats, each with its check; then the controls."""
        model, limit = self.pair.model, self.config.max_new_tokens
        part, writer = self._part(found, "greedy", 0.0)
        step = max(1, len(chats) // max(1, self.config.generated))
        also = range(0, len(chats), step)[: self.config.generated]
        for number, chat in enumerate(chats):
            answers = list(writer.answers(number, chat, self.config.seed))
            part["answers"] += [asdict(answer) | asdict(greedy.check(model, answer, limit)) for answer in answers]
            if number in also:
                entry = {"chat": number, "turn": answers[-1].turn}
                part.setdefault("generate", []).append(entry | {"at": greedy.generated(self.pair, answers[-1], limit)})
            self.note(f"greedy: {number + 1} of {len(chats)} chats")
            self.save(found)
        part["controls"] = greedy.controls(model, answers[-1], limit)

    def _sampled(self, found: Document, chats: Sequence[Chat], name: str, temperature: float, tokens: int) -> None:
        """Answers with at least this number of tokens at a temperature, tested as if it were 1."""
        part, writer = self._part(found, name, temperature)
        answers, written = list[Answer](), 0
        for some in endless(writer, chats, self.config.seed):
            answers += some
            part["answers"] += map(asdict, some)
            written += sum(len(answer.tokens) for answer in some)
            self.note(f"{name}: {written} of {tokens} tokens")
            self.save(found)
            if written >= tokens:
                break
        part |= tested(self.pair, writer.method, answers, self.config.seed)
        self.save(found)


def run(config: ExactChatsConfig, save: Callable[[Document], object], note: Callable[[str], object]) -> Document:
    """Load the pair and run; raises what :func:`draftwood.api.load` and :func:`read_chats` raise."""
    return Run(config=config, pair=open_pair(config, config.backend), save=save, note=note)()
