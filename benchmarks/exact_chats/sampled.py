"""Sampled answers against the target's own distributions: tests of ``draftwood check``, and mean -log p."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import count
from typing import Any

from benchmarks.exact_chats.chats import Answer, Chat, Writer
from benchmarks.surprise import sums_of, surprise_of
from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.exactness.report import SampledTests
from draftwood.sampling.settings import Sampling

_SEEDS = 100  # seeds of a chat, one for each turn


def endless(writer: Writer, chats: Sequence[Chat], seed: int) -> Iterator[list[Answer]]:
    """The answers of chat after chat; after the last chat the first one with other seeds."""
    for number in count():
        chat = number % len(chats)
        yield list(writer.answers(chat, chats[chat], 10_000_000 * (1 + seed) + _SEEDS * number))


def tested(pair: Pair, method: Method, answers: Iterable[Answer], seed: int) -> dict[str, Any]:
    """What the target alone says about answers that claim to be sampled at temperature 1; a plain forward for each."""
    sampling = Sampling(temperature=1.0)
    tests, sums = SampledTests(pair, pair.decoder(method, temperature=1.0), sampling, seed), []
    for answer in answers:
        [text] = tests.add([Request(prompt=answer.prompt, seed=answer.seed)], [answer.tokens])
        sums.append(sums_of(text.probs.log(), answer.tokens))
    return {**asdict(surprise_of(sums)), "fit": asdict(tests.report())}
