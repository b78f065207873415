"""Held-out sentence pairs, and the target's own translations of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from benchmarks.greedy import first_difference, top_two_gap
from benchmarks.translate.config import TranslateConfig
from benchmarks.translate.peers import Generate
from draftwood.core.errors import CacheError, ConfigError
from draftwood.train.corpus import read_sentence_pairs
from draftwood.translation import Translator


@final
@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A held-out pair.

    Attributes:
        source, reference: the texts.
        tokens: of the source, as the encoder reads them.
        greedy: tokens of the target's own greedy translation by ``transformers``, one sentence at a time.
    """

    source: str
    reference: str
    tokens: list[int]
    greedy: list[int]


def read_sentences(
    config: TranslateConfig, translator: Translator, max_new_tokens: int, on_step: Callable[[], object]
) -> list[Sentence]:
    """The sentences of a run, translated greedily; ``on_step`` is called after each.

    Raises:
        ConfigError: files that cannot be read as sentence pairs.
        CacheError: a sentence that is too long for the target, by its number.
    """
    pairs = chosen_pairs(config)
    encoded = [_encoded(translator, source, number) for number, (source, _) in enumerate(pairs)]
    generate = Generate(translator.model, translator.eos, max_new_tokens)
    found = []
    for (source, reference), tokens in zip(pairs, encoded, strict=True):
        greedy = generate([tokens]).tokens[0]
        found.append(Sentence(source=source, reference=reference, tokens=tokens, greedy=greedy))
        on_step()
    return found


def chosen_pairs(config: TranslateConfig) -> list[tuple[str, str]]:
    """Source and reference of every chosen sentence, evenly spaced over all of them."""
    sides = read_sentence_pairs(config.data, "val", (config.source_language, config.target_language))
    pairs = list(zip(*sides, strict=True))
    count = config.sentences(len(pairs))
    return [pairs[number * len(pairs) // count] for number in range(count)]


def _encoded(translator: Translator, source: str, number: int) -> list[int]:
    try:
        return translator.encode(source)
    except (CacheError, ConfigError) as error:
        raise type(error)(f"sentence {number} of those chosen cannot be measured: {error}") from error


def longest_translation(config: TranslateConfig, translator: Translator) -> int:
    """Tokens of a translation, at most.

    Raises:
        ConfigError: more than the target's decoder has positions for.
    """
    if config.max_new_tokens is None:
        return translator.limits.max_new_tokens
    room = translator.target.max_length
    if room is not None and config.max_new_tokens >= room:  # the start token has a position too
        raise ConfigError(
            f"max_new_tokens is {config.max_new_tokens}, but the target has {room} positions: give 1 to {room - 1}"
        )
    return config.max_new_tokens


def differences(
    translator: Translator, sentences: Sequence[Sentence], repeats: Sequence[Sequence[list[int]]]
) -> list[dict[str, Any]]:
    """One entry per sentence that is not the target's greedy translation in every repeat, from the first such repeat:
    its number, the token ``at`` which they part, and by how much the target's best score led there (``gap``)."""
    found = []
    for number, sentence in enumerate(sentences):
        other = next((rows[number] for rows in repeats if rows[number] != sentence.greedy), None)
        if other is not None:
            at = first_difference(sentence.greedy, other)
            before = [translator.prompt[0], *sentence.greedy[:at]]
            gap = top_two_gap(translator.model, before, sentence.tokens)
            found.append({"sentence": number, "source": sentence.source, "at": at, "gap": gap})
    return found
