"""A grammar at the end of a growing text: which tokens may come next, at any node of a draft tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from itertools import takewhile
from typing import Any, Final, TypeAlias, final

import numpy as np

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.grammar.grammar import LIMITS, Grammar, guidance

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
"""``[vocab]``, True for tokens that may come next."""
Path: TypeAlias = tuple[int, ...]
"""Tokens after the committed text."""
_COMPILED: Final = 128  # grammars that stay compiled, from before a text waits until it begins
_NO_TOKEN: Final = "NoExtension"  # the beginning of llguidance's error where no token is possible
_RENEWALS: Final = 8  # of a text; each may take as long as compiling
_LONGEST_RUN: Final = 5000  # bytes of forced text, which are found anew in every round


def _spoilt(matcher: Any) -> bool:
    """Whether a limit of llguidance ended a matcher, and with it all copies, which share its lexer."""
    return bool(matcher.is_error()) and not str(matcher.get_error()).startswith(_NO_TOKEN)


def _reason(matcher: Any) -> str:
    return str(matcher.get_error()).partition("\n")[0]


def _consumed(matcher: Any, tokens: Sequence[int]) -> bool:
    """Whether a matcher could read tokens. If not, it has an error only if it is spoilt."""
    if matcher.try_consume_tokens(list(tokens)) == len(tokens):
        return True
    matcher.compute_bitmask()  # a spoilt lexer refuses tokens without an error
    return False


@final
class Beginning:
    """A compiled grammar before any text."""

    def __init__(self, compiled: Callable[[], Any]) -> None:
        self._compiled = compiled
        self._matcher = compiled()

    def matcher(self) -> Any:
        """A matcher that has read nothing: a copy, or a new one if some other copy has spoilt their lexer."""
        trial = self._matcher.deep_copy()
        trial.compute_bitmask()
        if _spoilt(trial):
            self._matcher = self._compiled()
        return self._matcher.deep_copy()


@final
class Constraint:
    """One row's text under a grammar.

    Every node of a tree has a matcher of its own, a copy of its parent's that has read one more token. Matchers and masks
    are kept until the text grows, so a node that the draft has seen costs the target nothing.

    Args:
        guesses: the beginning with another lexer, since a look far ahead may spoil it.
        vocab: number of tokens.
        ends: tokens that end the text. They are possible where the grammar may end, and nothing else is possible after them.
    """

    def __init__(self, grammar: Grammar, beginning: Beginning, guesses: Beginning, vocab: int, ends: frozenset[int]) -> None:
        self.grammar = grammar
        self.vocab = vocab
        self.ends = ends
        self._beginning = beginning
        self._renewals = _RENEWALS
        self._committed = beginning.matcher()  # has read the text, and computes no mask: a dead end would spoil it
        self._guesser: Any = guesses.matcher()
        self._text: list[int] = []
        self._ended = False
        self._matchers: dict[Path, Any] = {}
        self._masks: dict[Path, Mask | None] = {}
        self._too_complex: dict[Path, str] = {}  # reasons of nodes that have no mask

    def commit(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Read what was committed since the last call.

        Args:
            tokens: of prompt and text.
            prompt_length: number of tokens before the text.

        Raises:
            NumericsError: it breaks the grammar, or exceeds a limit of llguidance.
        """
        new = tokens[prompt_length + len(self._text) :]
        if not new:
            return
        self._matchers.clear()
        self._masks.clear()
        self._too_complex.clear()
        self._text += new
        text = list(takewhile(lambda token: token not in self.ends, [] if self._ended else new))
        self._ended = self._ended or len(text) < len(new)
        if self._guesser is not None:
            self._guesser.try_consume_tokens(text)
        if not _consumed(self._committed, text) and not (_spoilt(self._committed) and self._renewed()):
            if _spoilt(self._committed):
                raise self._beyond(_reason(self._committed))
            raise NumericsError(f"the text does not follow {self.grammar.name}: something wrote a token that was masked")

    def mask(self, path: Sequence[int]) -> Mask | None:
        """The tokens that may follow the committed text and a path; None if the grammar forbids the path itself."""
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._mask(key)
        return self._masks[key]

    def permitted(self, tokens: Sequence[int]) -> int:
        """How many of some guessed tokens may follow the committed text."""
        for i, token in enumerate(tokens):
            mask = self.mask(tokens[:i])
            if mask is None or not mask[token]:
                return i
        return len(tokens)

    def forced(self) -> list[int]:
        """Tokens of the only text that may follow the committed one, as the tokenizer writes it; often none.

        A mask admits other tokens of the same text, so these are a good guess and no certainty.
        """
        if self._ended or self._guesser is None:
            return []
        own = self._guesser.deep_copy()
        if len(own.compute_ff_bytes()) > _LONGEST_RUN:
            self._guesser = None
            return []
        found: list[int] = own.compute_ff_tokens()  # of the bytes that were found above
        return found

    def dead_end(self, path: Sequence[int]) -> NumericsError:
        """The error of a node without a possible token."""
        if reason := self._too_complex.get(tuple(path)):
            return self._beyond(reason)
        return NumericsError(
            f"{self.grammar.name} leaves no token possible after this text: no token of the model continues it, or other "
            "settings of the sampling forbid all that do. Change them, or the grammar"
        )

    def _beyond(self, reason: str) -> NumericsError:
        return NumericsError(f"{self.grammar.name} is too complex to follow here: {reason}. Simplify it")

    def _renewed(self) -> bool:
        """Read the text with another lexer, which no other node or text has spoilt; False if that fails."""
        if self._renewals == 0:
            return False
        self._renewals -= 1
        self._matchers.clear()
        self._committed = self._beginning.matcher()
        text = list(takewhile(lambda token: token not in self.ends, self._text))
        return _consumed(self._committed, text)

    def _mask(self, path: Path, *, again: bool = True) -> Mask | None:
        if self._ended or not self.ends.isdisjoint(path):
            mask, may_end = np.zeros(self.vocab, np.bool_), True
        elif (matcher := self._matcher(path)) is None:
            return None
        else:
            bits, may_end = matcher.compute_bitmask(), matcher.is_accepting()
            if again and _spoilt(matcher) and self._renewed():
                return self._mask(path, again=False)
            mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self.vocab, bitorder="little").astype(np.bool_)
            if matcher.is_error():  # its mask then holds the end of the text
                mask[:], may_end = False, False
                if _spoilt(matcher):
                    self._too_complex[path] = _reason(matcher)
        mask[list(self.ends)] = may_end
        return mask

    def _matcher(self, path: Path) -> Any:
        """The matcher of a node, which has read its path; None if the grammar forbids it."""
        if path not in self._matchers:
            above = self._matcher(path[:-1]) if path else self._committed
            made = None if above is None else above.deep_copy()
            if made is not None and not _consumed(made, path[-1:]) and not _spoilt(made):
                made = None
            self._matchers[path] = made
        return self._matchers[path]


@final
class Grammars:
    """Grammars compiled for the tokens of one model.

    Args:
        tokenizer: of ``transformers``; None where a model is used with token ids only.
        vocab: number of scores of the model.
        eos: its end-of-text tokens.

    Attributes:
        compile: compiles a grammar ahead of :meth:`constraint`, in any thread, with the same errors.
    """

    def __init__(self, tokenizer: Any, vocab: int, eos: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos = eos
        self.compile = lru_cache(maxsize=_COMPILED)(self._compile)

    def constraint(self, grammar: Grammar, stops: frozenset[int]) -> Constraint:
        """A constraint for a new text.

        Args:
            stops: tokens that end the text. Special ones end the grammar, as end-of-text tokens do; others are its text.

        Raises:
            ConfigError: no tokenizer, or one that llguidance cannot read; no end-of-text token; a grammar that is too large,
                or that admits no text of this model.
        """
        beginning, guesses = self.compile(grammar)
        special = {token for token in stops if self._vocabulary.is_special_token(token)}
        return Constraint(grammar, beginning, guesses, self._vocab, self._eos | special)

    @cached_property
    def _vocabulary(self) -> Any:
        if not self._eos:
            raise ConfigError(
                "a grammar needs an end-of-text token, and neither the model's configurations nor its tokenizer name one: "
                "write eos_token_id into its generation_config.json, or leave the grammar out"
            )
        if self._tokenizer is None:
            raise ConfigError("a grammar needs the model's tokenizer, and there is none: give one, or leave the grammar out")
        guidance()
        from llguidance.hf import from_tokenizer

        try:
            return from_tokenizer(
                getattr(self._tokenizer, "whole", self._tokenizer), n_vocab=self._vocab, eos_token=sorted(self._eos)
            )
        except ValueError as error:
            kind = type(self._tokenizer).__name__
            raise ConfigError(
                f"a grammar needs a tokenizer of the tokenizers library, and {kind} is none that llguidance can read "
                f"({error}): leave the grammar out"
            ) from error

    def _compile(self, grammar: Grammar) -> tuple[Beginning, Beginning]:
        """The beginning of a text, for masks and for guesses."""
        limits = guidance().LLParserLimits(**LIMITS)
        read = partial(guidance().LLMatcher, self._vocabulary, grammar.source(), log_level=0, limits=limits)
        beginning = Beginning(read)
        if (made := beginning.matcher()).is_error():
            raise grammar.refused(made.get_error())
        guesses = Beginning(read)
        first = Constraint(grammar, beginning, guesses, self._vocab, self._eos)
        mask = first.mask(())
        if mask is None or not mask.any():
            raise grammar.refused(str(first.dead_end(())))
        begin = [int(token) for token in np.flatnonzero(mask) if token not in self._eos][:1]
        trials = beginning.matcher(), guesses.matcher()  # a lexer that is too large shows only now
        trials[1].compute_ff_bytes()
        trials[1].compute_bitmask()
        if not _consumed(trials[0], begin) or _spoilt(trials[1]):
            reason = " ".join(trial.get_error() for trial in trials) or "its lexer has too many states"
            raise grammar.refused(f"it is too large to follow: {reason}")
        return beginning, guesses
