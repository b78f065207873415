"""Compares the speed of methods and of ``transformers`` on the same prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple, TypeAlias

import torch

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.runners.native.stored import whole
from draftwood.sampling.settings import Sampling

PLAIN: Final = Method(method="ar")
PAUSE: Final = 0.02
"""Seconds before a text: threads of the previous system wait actively for some 10 ms."""


class Written(NamedTuple):
    """New tokens of a text, forwards of the target, and seconds of the whole call."""

    tokens: int
    passes: int
    seconds: float


Write: TypeAlias = Callable[[Sequence[int], int], tuple[int, int]]
"""Continues a prompt of token ids with a seed; returns new tokens and forwards of the target."""


def timed(write: Write, prompt: Sequence[int], seed: int) -> Written:
    """One text, timed from outside: from token ids to token ids."""
    sleep(PAUSE)
    start = perf_counter()
    tokens, passes = write(prompt, seed)  # returns lists on the host, so all work is finished
    return Written(tokens, passes, perf_counter() - start)


def in_turn(writers: Mapping[Method, Write], prompt: Sequence[int], seed: int) -> dict[Method, Written]:
    """The text that every writer makes of a prompt with the same seed, in shuffled order."""
    order = random.Random(seed).sample(list(writers), len(writers))
    return {method: timed(writers[method], prompt, seed) for method in order}


def ids_decoder(pair: Pair, method: Method, temperature: float) -> Decoder:
    """The pair's decoder of a method, for token ids without text: ``transformers`` decodes none either.

    The drafter is that of the pair: its adaptive tree knows what loading has measured.
    """
    shared = pair.decoder(method, temperature=temperature).pipeline
    return Decoder(shared.target, shared.drafter, shared.verifier, eos=pair.eos)


def writer(pair: Pair, method: Method, temperature: float, max_new_tokens: int) -> Write:
    """How a method of Draftwood writes.

    Raises:
        ConfigError, PairingError: as :meth:`draftwood.api.Pair.decoder`.
    """
    sampling, limits = Sampling(temperature=temperature), Limits(max_new_tokens=max_new_tokens)
    decoder = ids_decoder(pair, pair.method(method, temperature=temperature), temperature)

    def write(prompt: Sequence[int], seed: int) -> tuple[int, int]:
        [result] = decoder.generate([Request(prompt=prompt, seed=seed, limits=limits)], sampling)
        return len(result.token_ids), result.stats.rounds

    return write


def transformers_writer(pair: Pair, temperature: float, max_new_tokens: int) -> Write:
    """How ``model.generate`` writes on the same weights, sampling the same distribution."""
    model, config = pair.model, generation_config(pair, temperature, max_new_tokens)

    def write(prompt: Sequence[int], seed: int) -> tuple[int, int]:
        torch.manual_seed(seed)
        ids = torch.tensor([list(prompt)], device=model.device)
        with configured(model, config):
            new = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0, ids.shape[1] :]
        return len(new.tolist()), len(new)

    return write


def generation_config(pair: Pair, temperature: float, max_new_tokens: int) -> Any:
    """A ``transformers.GenerationConfig`` for the target's own distribution at a temperature.

    Neutral values are set only where the defaults of ``transformers`` are not neutral: each further one may cost time.
    """
    from transformers import GenerationConfig

    settings: dict[str, Any] = {"do_sample": False, "use_cache": True, "max_new_tokens": max_new_tokens}
    if temperature:
        settings |= {"do_sample": True, "temperature": temperature, "top_k": 0}
    if pair.eos:
        settings |= {"eos_token_id": pair.eos, "pad_token_id": pair.eos[0]}
    return GenerationConfig(**settings)


@contextmanager
def configured(model: Any, config: Any) -> Iterator[None]:
    """Replace a model's own config, whose sampling settings would fill every gap; no effect without a model."""
    if model is None:
        yield
        return
    model = whole(model)
    before, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = before


def speed(texts: Sequence[Written]) -> float:
    """Tokens per second over some texts."""
    return sum(text.tokens for text in texts) / sum(text.seconds for text in texts)


def check_room(pair: Pair, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse prompts that leave no room for the text.

    Raises:
        ConfigError: names the longest prompt and the context.
    """
    longest = max(map(len, prompts))
    room = [runner.max_length for runner in (pair.target, pair.draft) if runner and runner.max_length]
    if room and longest + max_new_tokens > min(room):
        raise ConfigError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones do not fit the models' context of "
            f"{min(room)}: lower max_new_tokens, or give shorter prompts"
        )
