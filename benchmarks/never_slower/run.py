"""Plain decoding and ``auto`` continue the same prompts in turn, in pairs next to each other in time.

At temperature 0, and above it with shared noise, both write the same tokens. A new process is a new :class:`Decoders`: its
controllers know what the drafter's folder says and the costs that are measured when a pair is loaded, or what those of an
earlier one have learnt from longer texts. The engines have run before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

import torch

from benchmarks.never_slower.config import NeverSlowerConfig
from benchmarks.opening import on_backend, open_pair, with_draft
from benchmarks.record import facts_of, machine_lines, plain, surroundings
from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive.learnt import Knowledge
from draftwood.engine.decoders import Decoders
from draftwood.engine.requests import Request
from draftwood.hardware.machine import load_average
from draftwood.sampling.settings import Sampling
from draftwood.tune.compare import PAUSE

TEXTS: Final = {
    "chat": "Question: Why do leaves change their colour in autumn?\nAnswer:",
    "repeating": " ".join(["The red fox ran to the old tree."] * 4),
}
RANDOM: Final = "random"
_RANDOM_TOKENS: Final = 24
_TAUGHT: Final = 2  # times that the earlier process writes every text
_TAUGHT_TOKENS: Final = 200  # new tokens of these; a draft is first tried where a try is a small share of a text


class Case(NamedTuple):
    """One line of the table."""

    backend: str
    draft: str
    state: str
    batch: int
    temperature: float
    text: str


Timed = tuple[float, float, int]
"""Seconds of a call, new tokens per forward of the target, and new tokens."""


def count(config: NeverSlowerConfig, drafts: int) -> int:
    """The number of steps of :func:`measure` on one backend with so many drafts."""
    cases = len(config.batch_sizes()) * len(config.temperature_values()) * (len(TEXTS) + 1) * drafts
    return cases * (_TAUGHT + config.repeats)


def drafts_of(config: NeverSlowerConfig, pair: Pair) -> list[str]:
    """The drafts that there are: without a draft model ``own`` is none."""
    return [name for name in config.draft_names() if name != "own" or pair.draft is not None]


def measure(config: NeverSlowerConfig, pair: Pair, backend: str, advance: Callable[[], None]) -> list[dict[str, Any]]:
    """The results of all cases on one backend."""
    out = []
    for draft in drafts_of(config, pair):
        makers = {"own": lambda: pair, "none": lambda: without_draft(pair), "random": lambda: useless(pair, config.seed)}
        used = makers[draft]()
        for batch in config.batch_sizes():
            for temperature in config.temperature_values():
                bench = _Bench(config, used, batch, temperature)
                known = bench.learn(advance)
                for text, (plains, autos) in bench.compare(known, advance).items():
                    for state, runs in autos.items():
                        case = Case(backend, draft, state, batch, temperature, text)
                        out.append(_result(case, plains, runs))
    return out


def without_draft(pair: Pair) -> Pair:
    """The same target alone."""
    return with_draft(pair, None)


def useless(pair: Pair, seed: int) -> Pair:
    """The same target with a draft of one of its layers, with random weights."""
    model = pair.model
    config = deepcopy(model.config)
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    with torch.random.fork_rng(devices=[]):  # weights are made with the global generator of the CPU
        torch.default_generator.manual_seed(seed)
        fresh = type(model)(config)
    fresh = fresh.to(model.device, model.dtype).eval()
    return with_draft(pair, fresh)


class _Bench:
    """One pair at one batch size and temperature."""

    def __init__(self, config: NeverSlowerConfig, pair: Pair, batch: int, temperature: float) -> None:
        self.config, self.pair, self.batch = config, pair, batch
        self.sampling = Sampling(temperature=temperature, grammar=config.grammar())
        self.limits = Limits(max_new_tokens=config.max_new_tokens, ignore_eos=self.sampling.grammar is None)
        draws = random.Random(config.seed)
        tokens = [draws.randrange(pair.target.vocab_size) for _ in range(_RANDOM_TOKENS)]
        self.prompts = {name: pair.encode(text) for name, text in TEXTS.items()} | {RANDOM: tokens}

    def learn(self, advance: Callable[[], None]) -> Mapping[str, Knowledge]:
        """What an earlier process knows at its end; it also warms the engine."""
        earlier = self._process(self.pair.known.learnt)
        for repeat in range(_TAUGHT):
            for prompt in self.prompts.values():
                self._timed(earlier, Method(method="ar"), prompt, repeat)
                self._timed(earlier, Method(), prompt, repeat, max(_TAUGHT_TOKENS, self.config.max_new_tokens))
                advance()
        return earlier.learnt

    def compare(
        self, known: Mapping[str, Knowledge], advance: Callable[[], None]
    ) -> dict[str, tuple[list[Timed], dict[str, list[Timed]]]]:
        """Per text, the runs of plain decoding, and those of ``auto`` by state."""
        out: dict[str, tuple[list[Timed], dict[str, list[Timed]]]]
        states = self.config.state_names()
        out = {name: ([], {state: [] for state in states}) for name in self.prompts}
        for repeat in range(self.config.repeats):
            for name, prompt in self.prompts.items():
                seed = 1_000 * (1 + self.config.seed) + repeat
                for way in random.Random(seed).sample(["plain", *states], 1 + len(states)):
                    process = self._process(known if way == "known" else self.pair.known.learnt)
                    method = Method(method="ar") if way == "plain" else Method()
                    run = self._timed(process, method, prompt, seed)
                    (out[name][0] if way == "plain" else out[name][1][way]).append(run)
                advance()
        return out

    def _process(self, known: Mapping[str, Knowledge]) -> Decoders:
        tokenizer = None if self.sampling.grammar is None else self.pair.tokenizer
        return Decoders(self.pair.target, self.pair.draft, tokenizer=tokenizer, eos=self.pair.eos, known=known)

    def _timed(
        self, process: Decoders, method: Method, prompt: Sequence[int], seed: int, tokens: int | None = None
    ) -> Timed:
        """A call that writes ``tokens`` new tokens, by default as many as the settings say."""
        limits = self.limits if tokens is None else replace(self.limits, max_new_tokens=tokens)
        greedy = self.sampling.greedy
        resolved = process.resolve(method, greedy=greedy)
        process.measure_costs(resolved, self.sampling.temperature)  # as load does
        decoder = process.of(resolved, greedy=greedy)
        requests = [Request(prompt=prompt, seed=seed + 100 * row, limits=limits) for row in range(self.batch)]
        sleep(PAUSE)
        began = perf_counter()
        results = decoder.generate(requests, self.sampling)
        seconds = perf_counter() - began
        return seconds, results[0].stats.block_efficiency, sum(len(result.token_ids) for result in results)


def _result(case: Case, plains: list[Timed], autos: list[Timed]) -> dict[str, Any]:
    ratios = [before / seconds for (before, *_), (seconds, *_) in zip(plains, autos, strict=True)]
    return case._asdict() | {
        "ratio": median(ratios),
        "ratios": ratios,
        "plain_seconds": [seconds for seconds, *_ in plains],
        "auto_seconds": [seconds for seconds, *_ in autos],
        "tokens_per_second": median(tokens / seconds for seconds, _, tokens in autos),
        "tokens_per_pass": median(passes for _, passes, _ in autos),
    }


def run(config: NeverSlowerConfig, steps: Callable[[str, int], Any]) -> dict[str, Any]:
    """The document of a run over all backends."""
    before, results = load_average(), []
    pairs: dict[str, Pair] = {}
    for backend in config.backends():
        first = next(iter(pairs.values()), None)
        pairs[backend] = pair = open_pair(config, backend) if first is None else on_backend(first, backend)
        with steps(f"never-slower, {backend}", count(config, len(drafts_of(config, pair)))) as advance:
            results += measure(config, pair, backend, advance)
    pair = next(iter(pairs.values()))
    document = {"format": 1, "config": plain(asdict(config)), "target": facts_of(pair.model, "+".join(pairs))}
    return document | surroundings(pair.target.device, before) | {"results": results}


def markdown(document: dict[str, Any]) -> str:
    """The report of a run."""
    results = document["results"]
    low = [found for found in results if found["ratio"] < 0.97]
    schema = document["config"]["json_schema"]
    remarks = [] if schema is None else [f"all texts follow the JSON schema {Path(schema).name}, and end with it"]
    lines = ["# auto over plain decoding", "", *machine_lines(document, *remarks), ""]
    lines += [f"{len(results) - len(low)} of {len(results)} lines at 0.97 or above.", ""]
    lines += ["| backend | draft | process | batch | T | text | ÷ plain | tokens/s | tokens per pass |"]
    lines += ["|---|---|---|---:|---:|---|---|---:|---:|"]
    for found in results:
        ratio = f"{found['ratio']:.2f} ({min(found['ratios']):.2f} to {max(found['ratios']):.2f})"
        lines.append(
            f"| {found['backend']} | {found['draft']} | {found['state']} | {found['batch']} | {found['temperature']:g} "
            f"| {found['text']} | {ratio} | {found['tokens_per_second']:.0f} | {found['tokens_per_pass']:.2f} |"
        )
    return "\n".join(lines) + "\n"
