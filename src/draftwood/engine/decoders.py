"""Decoders of one target and its draft."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, Final, final

from draftwood.core.errors import DraftwoodError
from draftwood.core.fit import resolve
from draftwood.core.limits import Limits
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controllers import TRIAL, Controllers, CostTrial
from draftwood.draft.adaptive.learnt import Knowledge
from draftwood.engine.decode import Decoder
from draftwood.engine.in_use import InUse
from draftwood.engine.methods import build
from draftwood.engine.prefixes import PrefixCache
from draftwood.engine.requests import Request
from draftwood.grammar.constraint import Grammars
from draftwood.runners.protocols import Runner
from draftwood.sampling.settings import Sampling

_TRIAL_PROMPT: Final = 32  # tokens
_TRIAL_LIMITS: Final = Limits(max_new_tokens=16 * len(TRIAL), ignore_eos=True)  # more than the rounds can write


@final
class Decoders:
    """Makes decoders for a target and its draft; decoders of the same method share its estimates.

    Args:
        target, draft: runners of both models.
        tokenizer, eos: as for :class:`Decoder`.
        known: what adaptive methods know from the start, as :attr:`learnt`.

    Attributes:
        in_use: the lock around the models of all decoders.
        prefixes: the prefix cache of all decoders.
    """

    def __init__(
        self,
        target: Runner,
        draft: Runner | None,
        *,
        tokenizer: Any,
        eos: Sequence[int],
        known: Mapping[str, Knowledge] | None = None,
    ) -> None:
        self._vocab, self._draft = target.vocab_size, draft
        self.in_use, self.prefixes = InUse(), PrefixCache()
        grammars = Grammars(tokenizer, target.vocab_size, frozenset(eos))
        self._decoder = partial(
            Decoder, target, tokenizer=tokenizer, eos=eos, in_use=self.in_use, grammars=grammars, prefixes=self.prefixes
        )
        self._controllers = {name: Controllers(known=one) for name, one in (known or {}).items()}
        self._trials: dict[str, CostTrial] = {}

    @property
    def learnt(self) -> dict[str, Knowledge]:
        """Method and temperature -> what it has learnt, or knew from the start."""
        now = {name: controllers.knowledge for name, controllers in self._controllers.items()}
        return {name: knowledge for name, knowledge in now.items() if knowledge.by_rows}

    def resolve(self, method: Method, *, greedy: bool) -> Method:
        """The method with every ``auto`` replaced; raises what :func:`draftwood.core.fit.resolve` raises."""
        return resolve(method, None if self._draft is None else self._draft.kind, greedy=greedy)

    def controllers(self, method: Method, *, greedy: bool) -> Controllers:
        """What a method knows and learns."""
        name = f"{method.method}, {'temperature 0' if greedy else 'sampling'}"
        if name not in self._controllers:  # of two threads that come here, one sets it
            self._controllers.setdefault(name, Controllers())
        return self._controllers[name]

    def of(self, method: Method, *, greedy: bool) -> Decoder:
        """A decoder for a method without ``auto``; raises what :func:`draftwood.engine.methods.build` raises."""
        controllers = self.controllers(method, greedy=greedy)
        return self._decoder(*build(method, self._draft, greedy=greedy, controllers=controllers))

    def measure_costs(self, method: Method, temperature: float) -> None:
        """Decode a text that only measures what drafting costs, unless a method grows no trees of a draft, or knows it.

        The method has no ``auto``. At other temperatures it begins with the same costs.
        """
        sampling, spec = Sampling(temperature=temperature), METHODS[method.method]
        if not (spec.grows and spec.needs == "draft") or method.shape or method.nodes:
            return
        controllers = self.controllers(method, greedy=sampling.greedy)
        if method.method in self._trials and not controllers.at(1).costs.timed:
            controllers.begin_with(self._trials[method.method])
        if controllers.at(1).costs.timed:
            return
        prompt = [token % self._vocab for token in range(_TRIAL_PROMPT)]
        rounds = self.of(method, greedy=sampling.greedy).stream([Request(prompt=prompt, limits=_TRIAL_LIMITS)], sampling)
        with suppress(DraftwoodError):  # an error, as of too short a context, is reported when a text meets it
            with controllers.trial() as trial, closing(rounds):
                deque(islice(rounds, len(TRIAL)), maxlen=0)  # kept, they would hold all scores
            self._trials[method.method] = trial
