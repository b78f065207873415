"""A grammar at the end of a growing text: which tokens may come next, at any node of a draft tree."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, Final, TypeAlias, final

import numpy as np

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.core.grammar import Grammar, guidance, parser_limits

Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
"""``[vocab]``, True for tokens that may come next."""
Path: TypeAlias = tuple[int, ...]
"""Tokens after the committed text."""
_COMPILED: Final = 128  # grammars that stay compiled, from before a text waits until it begins
_NO_TOKEN: Final = "NoExtension"  # the beginning of llguidance's error where no token is possible


@final
class Constraint:
    """One row's text under a grammar.

    Every node of a tree has a matcher of its own, a copy of its parent's that has read one more token. Matchers and masks
    are kept until the text grows, so a node that the draft has seen costs the target nothing.

    Args:
        grammar: for errors.
        matcher: of llguidance, at the beginning of the text.
        vocab: number of tokens.
        ends: tokens that end the text. They are possible where the grammar may end, and nothing else is possible after them.
    """

    def __init__(self, grammar: Grammar, matcher: Any, vocab: int, ends: frozenset[int]) -> None:
        self.grammar = grammar
        self.vocab = vocab
        self.ends = ends
        self._committed = matcher  # has read the text, and computes no mask: a dead end would spoil it
        self._written = 0  # tokens of the text
        self._ended = False
        self._matchers: dict[Path, Any] = {}
        self._masks: dict[Path, Mask | None] = {}

    def commit(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Read what was committed since the last call.

        Args:
            tokens: of prompt and text.
            prompt_length: number of tokens before the text.

        Raises:
            NumericsError: it breaks the grammar.
        """
        new = tokens[prompt_length + self._written :]
        if not new:
            return
        self._matchers.clear()
        self._masks.clear()
        self._written += len(new)
        text = list(takewhile(lambda token: token not in self.ends, [] if self._ended else new))
        if self._committed.try_consume_tokens(text) < len(text):
            raise NumericsError(f"the text does not follow {self.grammar.name}: something wrote a token that was masked")
        self._ended = self._ended or len(text) < len(new)

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

        A mask may admit other tokens of the same text, so these are a good guess and no certainty.
        """
        if self._ended or (matcher := self._matcher(())) is None:
            return []
        found: list[int] = matcher.deep_copy().compute_ff_tokens()
        return found

    def dead_end(self, path: Sequence[int]) -> NumericsError:
        """The error of a node without a possible token."""
        matcher = None if self._after_end(tuple(path)) else self._matcher(tuple(path))
        reason = "" if matcher is None else str(matcher.get_error()).partition("\n")[0]
        if reason and not reason.startswith(_NO_TOKEN):
            return NumericsError(f"{self.grammar.name} is too complex to follow here: {reason}. Simplify it")
        return NumericsError(
            f"{self.grammar.name} leaves no token possible after this text: no token of the model continues it, or other "
            "settings of the sampling forbid all that do. Change them, or the grammar"
        )

    def _after_end(self, path: Path) -> bool:
        return self._ended or not self.ends.isdisjoint(path)

    def _mask(self, path: Path) -> Mask | None:
        if self._after_end(path):
            mask, may_end = np.zeros(self.vocab, np.bool_), True
        elif (matcher := self._matcher(path)) is None:
            return None
        else:
            bits, may_end = matcher.compute_bitmask(), matcher.is_accepting()
            mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=self.vocab, bitorder="little").astype(np.bool_)
            if matcher.is_error():  # its mask then holds the end of the text
                mask[:], may_end = False, False
        mask[list(self.ends)] = may_end
        return mask

    def _matcher(self, path: Path) -> Any:
        """The matcher of a node, which has read its path; None if the grammar forbids it."""
        if path not in self._matchers:
            above = self._matcher(path[:-1]) if path else self._committed
            made = None if above is None else above.deep_copy()
            if made is not None and path and not made.try_consume_tokens([path[-1]]):
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
    """

    def __init__(self, tokenizer: Any, vocab: int, eos: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos = eos
        self._compiled = lru_cache(maxsize=_COMPILED)(self._compile)

    def compile(self, grammar: Grammar) -> None:
        """Compile a grammar ahead of :meth:`constraint`, in any thread.

        Raises:
            ConfigError: as :meth:`constraint`.
        """
        self._compiled(grammar)

    def constraint(self, grammar: Grammar, stops: frozenset[int]) -> Constraint:
        """A constraint for a new text.

        Args:
            grammar: the grammar.
            stops: tokens that end the text. Special ones end the grammar, as end-of-text tokens do; others are its text.

        Raises:
            ConfigError: no tokenizer, or one that llguidance cannot read; no end-of-text token; a grammar that is too large,
                or that admits no text of this model.
        """
        matcher = self._compiled(grammar).deep_copy()
        special = {token for token in stops if self._vocabulary.is_special_token(token)}
        return Constraint(grammar, matcher, self._vocab, self._eos | special)

    @cached_property
    def _vocabulary(self) -> Any:
        if not self._eos:
            raise ConfigError("a grammar needs an end-of-text token, and the model has none: leave the grammar out")
        if self._tokenizer is None:
            raise ConfigError("a grammar needs the model's tokenizer, and there is none: give one, or leave the grammar out")
        guidance()
        from llguidance.hf import from_tokenizer

        try:
            return from_tokenizer(self._tokenizer, n_vocab=self._vocab, eos_token=sorted(self._eos))
        except ValueError as error:
            kind = type(self._tokenizer).__name__
            raise ConfigError(
                f"a grammar needs a tokenizer of the tokenizers library, and {kind} is none that llguidance can read "
                f"({error}): leave the grammar out"
            ) from error

    def _compile(self, grammar: Grammar) -> Any:
        """The matcher at the beginning of a text."""
        matcher = guidance().LLMatcher(self._vocabulary, grammar.source(), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise grammar.refused(matcher.get_error())
        first = Constraint(grammar, matcher, self._vocab, self._eos)
        mask = first.mask(())
        if mask is None or not mask.any():
            raise grammar.refused(str(first.dead_end(())))
        trial = matcher.deep_copy()  # a lexer that is too large shows only now
        begin = [int(token) for token in np.flatnonzero(mask) if token not in self._eos][:1]
        if trial.try_consume_tokens(begin) < len(begin):
            raise grammar.refused(f"it is too large to follow: {trial.get_error() or 'its lexer has too many states'}")
        return matcher
