"""One text of a batch, and what each part keeps for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

from draftwood.core.history import History
from draftwood.grammar.constraint import Constraint
from draftwood.sampling.processors import for_request
from draftwood.sampling.settings import Sampling

T = TypeVar("T")


@final
@dataclass(eq=False, kw_only=True)
class Row:
    """A text while it is written. It owns its tokens, and what other parts keep for it ends with it.

    Attributes:
        tokens: prompt and committed text; the last one is the root of the next tree. At first they are the prompt.
        sampling: its settings.
        number: of its request.
        padding: tokens before the text that logits processors read, and no model.
        source: the encoder's input; empty without an encoder.
        draft_text: tokens that the text may repeat.
        history: earlier texts that the text may repeat, those of its ``owner``; None for none.
        stops: tokens that end the text. Nothing is drafted below them, and no processor runs there.
        constraint: the text under the grammar of its settings; None without one.
        nodes: the most nodes of its trees, the root not counted; None for no limit.
        prompt_length: number of prompt tokens.
    """

    tokens: list[int]
    sampling: Sampling = field(default_factory=Sampling)
    number: int = 0
    padding: Sequence[int] = ()
    source: Sequence[int] = ()
    draft_text: Sequence[int] = ()
    history: History | None = None
    owner: str = ""
    stops: frozenset[int] = frozenset()
    constraint: Constraint | None = None
    nodes: int | None = None
    prompt_length: int = field(init=False)
    _states: dict[int, tuple[object, Any]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def padded(self) -> list[int]:
        """The text as logits processors read it."""
        return [*self.padding, *self.tokens] if self.padding else self.tokens

    def followed(self) -> Constraint | None:
        """The constraint, which has read the text so far; None without one."""
        if self.constraint is not None:
            self.constraint.commit(self.tokens, self.prompt_length)
        return self.constraint

    def bound(self, processors: Sequence[Any] | None) -> list[Any]:
        """The logits processors for this row."""
        return [for_request(one, self.number, self.prompt_length) for one in processors or ()]

    def has_state(self, part: object) -> bool:
        """Whether a part keeps something for this row."""
        return id(part) in self._states

    def state(self, part: object, make: Callable[[], T]) -> T:
        """What a part keeps for this row, made at its first call."""
        if id(part) not in self._states:
            self._states[id(part)] = part, make()  # the part is kept, so that no other one gets its number
        found: T = self._states[id(part)][1]
        return found
