"""Compares the speed of plain decoding, ``auto``, fixed trees and ``transformers`` on the same prompts."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple, TypeAlias, final

import torch

from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling

PLAIN: Final = Method(method="ar")
TREES: Final = (
    Method(method="chain", shape="3"),
    *(Method(method="rsd-s", shape=shape, verifier="traversal") for shape in ("2x3", "3x4")),
    *(Method(method="shared-noise", nodes=nodes) for nodes in (6, 12)),
)
LOOKUPS: Final = tuple(Method(method="ngram", shape=shape) for shape in ("3", "5", "8"))
PAUSE: Final = 0.02
"""Seconds before a text: threads of the previous system wait actively for some 10 ms."""


class Written(NamedTuple):
    """New tokens of a text, forwards of the target, and seconds of the whole call."""

    tokens: int
    passes: int
    seconds: float


Write: TypeAlias = Callable[[Sequence[int], int], tuple[int, int]]
"""Continues a prompt of token ids with a seed; returns new tokens and forwards of the target."""


@final
@dataclass(frozen=True, kw_only=True)
class System:
    """One way to continue a prompt.

    Attributes:
        name: the name in the output.
        method: the method of Draftwood, every ``auto`` replaced; None for ``transformers``.
        write: continues a prompt.
    """

    name: str
    method: Method | None
    write: Write

    def timed(self, prompt: Sequence[int], seed: int) -> Written:
        """One text, timed from outside: from token ids to token ids."""
        sleep(PAUSE)
        start = perf_counter()
        tokens, passes = self.write(prompt, seed)  # returns lists on the host, so all work is finished
        return Written(tokens, passes, perf_counter() - start)


def ids_decoder(pair: Pair, method: Method, temperature: float) -> Decoder:
    """The pair's decoder of a method, for token ids without text.

    The drafter is that of the pair: its adaptive tree knows what loading has measured.
    """
    shared = pair.decoder(method, temperature=temperature).pipeline
    return Decoder(shared.target, shared.drafter, shared.verifier, eos=pair.eos)


def ours(pair: Pair, name: str, method: Method, temperature: float, max_new_tokens: int) -> System:
    """A method of Draftwood; ``auto`` uses the pair's profile, if there is one.

    Raises:
        ConfigError, PairingError: as :meth:`draftwood.api.Pair.decoder`.
    """
    chosen, sampling = pair.method(method, temperature=temperature), Sampling(temperature=temperature)
    decoder = ids_decoder(pair, chosen, temperature)  # transformers decodes no text either
    limits = Limits(max_new_tokens=max_new_tokens)

    def write(prompt: Sequence[int], seed: int) -> tuple[int, int]:
        [result] = decoder.generate([Request(prompt=prompt, seed=seed, limits=limits)], sampling)
        return len(result.token_ids), result.stats.rounds

    return System(name=name, method=chosen, write=write)


def transformers_system(pair: Pair, temperature: float, max_new_tokens: int) -> System:
    """``model.generate`` on the same weights, sampling the same distribution."""
    model, config = pair.model, generation_config(pair, temperature, max_new_tokens)

    def write(prompt: Sequence[int], seed: int) -> tuple[int, int]:
        torch.manual_seed(seed)
        ids = torch.tensor([list(prompt)], device=model.device)
        with configured(model, config):
            new = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0, ids.shape[1] :]
        return len(new.tolist()), len(new)

    return System(name="transformers", method=None, write=write)


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
    before = model.generation_config
    model.generation_config = config
    try:
        yield
    finally:
        model.generation_config = before


def fixed(pair: Pair) -> tuple[Method, ...]:
    """The candidates for the fixed tree; chains of prompt lookup without a draft model."""
    return LOOKUPS if pair.draft is None else TREES


def fastest(systems: Sequence[System], prompts: Sequence[Sequence[int]], seed: int) -> System:
    """The system with the most tokens per second, after one warm-up text each."""
    for system in systems:
        system.timed(prompts[0], seed)
    runs = repeats(systems, prompts, 1, seed)
    return max(systems, key=lambda system: speed(runs[system.name][0]))


def repeats(
    systems: Sequence[System],
    prompts: Sequence[Sequence[int]],
    count: int,
    seed: int,
    on_text: Callable[[], object] = lambda: None,
) -> dict[str, list[list[Written]]]:
    """Let every system continue every prompt ``count`` times; returns lists per repeat, by name.

    All systems continue a prompt, in shuffled order, before the next one, so a slower machine affects all of them. A text
    has the same seed for all systems and another one in every repeat.
    """
    found: dict[str, list[list[Written]]] = {system.name: [[] for _ in range(count)] for system in systems}
    for repeat in range(count):
        for number, prompt in enumerate(prompts):
            text_seed = seed + repeat * len(prompts) + number
            for system in random.Random(text_seed).sample(systems, len(systems)):
                found[system.name][repeat].append(system.timed(prompt, text_seed))
                on_text()
    return found


def speed(texts: Sequence[Written]) -> float:
    """Tokens per second over some texts."""
    return sum(text.tokens for text in texts) / sum(text.seconds for text in texts)


def spread(values: Sequence[float | int]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": float(median(values)), "min": float(min(values)), "max": float(max(values))}


def figures(runs: Sequence[Sequence[Written]], plain: Sequence[Sequence[Written]]) -> dict[str, Any]:
    """Tokens per second, tokens per pass, and the ratio to plain decoding inside each repeat."""
    tokens, passes = (sum(text[part] for run in runs for text in run) for part in (0, 1))
    return {
        "tokens_per_second": spread([speed(run) for run in runs]),
        "tokens_per_pass": tokens / passes,
        "over_plain": spread([speed(run) / speed(base) for run, base in zip(runs, plain, strict=True)]),
        "repeats": [[text._asdict() for text in run] for run in runs],
    }


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
