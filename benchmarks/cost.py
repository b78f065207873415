"""The cost of a forward of the target: by tokens and context length, against the limit that memory sets.

Drafting pays as long as a forward of a few tokens costs about what one of one token costs: below the limit that memory
sets, which is the time that all weights need to be read once (roofline model, Williams et al. 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from benchmarks.config import CostConfig
from benchmarks.measure import settle
from benchmarks.record import facts_of, surroundings
from benchmarks.report import table
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.hardware.machine import load_average, version_of
from draftwood.hardware.threads import chosen_threads
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.stored import weight_sizes
from draftwood.runners.protocols import Runner
from draftwood.sampling.rows import Row

_BYTES: Final = 1 << 28  # read at once to measure the memory: more than caches hold
_READS: Final = 7


def measure(config: CostConfig, pairs: Mapping[str, Pair], on_step: Callable[[], object]) -> dict[str, Any]:
    """Every number of tokens in turn, after every context, on every backend; ``on_step`` is called after each context.

    Args:
        pairs: the same models by what runs them, the first one's weights are those whose read is the limit.

    Returns:
        A document of plain values.

    Raises:
        ConfigError: a context that leaves no room.
    """
    first = next(iter(pairs.values()))
    model, target = first.model, first.target
    _check_room(config, target.max_length)
    load_before, results = load_average(), []
    for context in config.context:
        taken: dict[tuple[str, int], list[float]] = {}
        for backend, pair in pairs.items():
            with chosen_threads(pair.target):  # as in decoding
                for tokens, seconds in _forwards(pair.target, context, config.tokens, config.repeats):
                    taken.setdefault((backend, tokens), []).append(1e3 * seconds)
        results += [
            {"backend": backend, "context": context, "tokens": n, "median": median(ms), "least": min(ms), "most": max(ms)}
            for (backend, n), ms in taken.items()
        ]
        on_step()
    names = "tokens", "context", "repeats", "prompt"
    return {
        "format": 1,
        "kind": "cost",
        "config": {name: getattr(config, name) for name in names},
        **surroundings(target.device, load_before),
        "model": facts_of(model, target.engine) | {"bytes": bytes_of(model), "label": _file_name(model)},
        "bytes_per_second": max(bandwidth(target.device), *(_read_speed(pair) for pair in pairs.values())),
        "milliseconds": results,
        "prompts": {
            name: _prompt(pair.target, config.prompt, config.repeats) for name, pair in pairs.items() if config.prompt
        },
        "llama.cpp": _llama_cpp(config, first) if config.llama_cpp else None,
    }


def _file_name(model: Any) -> str | None:
    return path.name if (path := Path(model.name_or_path)).is_file() else None


def _prompt(runner: Runner, length: int, repeats: int) -> list[float]:
    """Milliseconds of reading a prompt: the first, which warms up, does not count."""
    found = []
    with chosen_threads(runner):
        for _ in range(repeats + 1):
            runner.clear()
            row = Row(tokens=[i % runner.vocab_size for i in range(length + 1)])
            settle(runner.device)
            start = perf_counter()
            runner.prefill(row, length)
            settle(runner.device)
            found.append(1e3 * (perf_counter() - start))
    runner.clear()
    return found[1:]


def _llama_cpp(config: CostConfig, pair: Pair) -> dict[str, Any]:
    """Milliseconds of a token behind each context and of a prompt, and what that program uses."""
    from benchmarks.llama_wheel import LlamaWheel, uses

    model, length = LlamaWheel(pair), config.prompt or min(config.context)
    tokens = {context: 1e3 * model.seconds(context, config.repeats)[1] for context in config.context}
    prompt = median(1e3 * model.seconds(length, 1)[0] for _ in range(config.repeats))
    return {"version": version_of("xllamacpp"), "uses": uses(), "token": list(tokens.items()), "prompt": [length, prompt]}


def _check_room(config: CostConfig, longest: int | None) -> None:
    forwards = (2 * config.repeats + 1) * len(config.tokens)
    needed = max(max(config.context) + max(config.tokens) + forwards, config.prompt) + 1
    if longest is not None and needed > longest:
        raise ConfigError(
            f"context {max(config.context)} with {config.repeats} repeats of up to {max(config.tokens)} tokens needs "
            f"{needed} positions, but the target has {longest}: give less"
        )


def _forwards(runner: Runner, context: int, sizes: Sequence[int], repeats: int) -> Iterator[tuple[int, float]]:
    """Seconds of forwards of a chain of so many tokens, each behind one of its own size, as another size may take longer;
    after each one token stays, as in a round with nothing accepted."""
    row = Row(tokens=[*(i % runner.vocab_size for i in range(context)), 0])
    runner.clear()
    runner.set_rows([row])
    _forward(runner, row, 1)  # reads the context
    for size in sizes:
        _forward(runner, row, size)  # warming up
    for _ in range(repeats):
        for size in sizes:
            _forward(runner, row, size)
            yield size, _forward(runner, row, size)
    runner.clear()


def _forward(runner: Runner, row: Row, size: int) -> float:
    """Seconds of a forward of a chain of so many tokens, of which the first one stays."""
    tokens = torch.arange(size, device=runner.device).unsqueeze(0) % runner.vocab_size
    depths = torch.arange(size, device=runner.device).unsqueeze(0)
    seen = torch.ones(1, size, size, dtype=torch.bool, device=runner.device).tril()
    settle(runner.device)
    start = perf_counter()
    runner.extend(tokens, depths, seen)
    settle(runner.device)
    seconds = perf_counter() - start
    row.tokens.append(0)
    runner.commit([[0]])
    return seconds


def bytes_of(model: Any) -> int:
    """The bytes of all weights; of codes, those in the file."""
    return sum(size for _, size in weight_sizes(model))


def bandwidth(device: torch.device) -> float:
    """Bytes per second that a sum over a large tensor reads: the best of a few."""
    values = torch.ones(_BYTES // 4, device=device)
    best = 0.0
    for _ in range(_READS):
        settle(device)
        start = perf_counter()
        values.sum()
        settle(device)
        best = max(best, _BYTES / (perf_counter() - start))
    return best


def _read_speed(pair: Pair) -> float:
    """Bytes per second that the native engine's own loop reads of its weights: the best of a few; 0 of other engines."""
    if not isinstance(pair.target, NativeRunner):
        return 0.0
    best = inf
    for _ in range(_READS):
        start = perf_counter()
        pair.target.network.read()
        best = min(best, perf_counter() - start)
    return bytes_of(pair.model) / best


def limit(document: dict[str, Any]) -> float:
    """Milliseconds for reading all weights once."""
    return float(1e3 * document["model"]["bytes"] / document["bytes_per_second"])


def _size(model: dict[str, Any]) -> str:
    return f"{model['parameters'] / 1e6:.3g} M parameters, {model['dtype']}"


def markdown(document: dict[str, Any]) -> str:
    """Tables of milliseconds and of their ratios to one token, a function of the document alone."""
    config, here, versions = document["config"], document["machine"], document["versions"]
    blocks = [
        "# What a forward of the target costs",
        f"{document['model']['label'] or 'Target'}: {_size(document['model'])}. "
        f"{here['accelerator'] or here['cpu']}, cores: {here['cores']}, threads: {here['torch_threads']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"The memory was read with {document['bytes_per_second'] / 1e9:.3g} GB/s, so all weights once take "
        f"{limit(document):.3g} ms.",
    ]
    for backend in dict.fromkeys(r["backend"] for r in document["milliseconds"]):
        found = {(r["context"], r["tokens"]): r for r in document["milliseconds"] if r["backend"] == backend}
        rows = []
        for context in config["context"]:
            one = found.get((context, 1), {}).get("median")
            cells = (found[context, tokens] for tokens in config["tokens"])
            rows.append([str(context), *(_cell(r, one, limit(document)) for r in cells)])
        header = ["context", *map(str, config["tokens"])]
        blocks += [f"## By {backend}", table(header, rows)]
    blocks.append(
        f"Milliseconds of a forward of so many tokens, a chain: median of {config['repeats']} repeats (extremes), all sizes "
        "by turns; how many times one token at that context it takes, and how many times the read of all weights."
    )
    if prompts := document["prompts"]:
        length = config["prompt"]
        rows = [[name, _spread(ms), f"{1e3 * length / median(ms):.0f}"] for name, ms in prompts.items()]
        blocks += [f"## A prompt of {length} tokens", table(["by", "ms", "tokens/s"], rows)]
    if theirs := document["llama.cpp"]:
        length, ms = theirs["prompt"]
        tokens = ", ".join(f"{ms:.1f} ms behind {context}" for context, ms in theirs["token"])
        blocks.append(
            f"llama.cpp (xllamacpp {theirs['version']}: {theirs['uses']}), means of {config['repeats']}: a token takes "
            f"{tokens}; a prompt of {length} tokens {ms:.0f} ms, {1e3 * length / ms:.0f} tokens/s."
        )
    return "\n\n".join(blocks) + "\n"


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def _cell(result: dict[str, Any], one: float | None, read: float) -> str:
    text = f"{result['median']:.2f} ({result['least']:.2f} to {result['most']:.2f})"
    ratios = [result["median"] / other for other in (one, read) if other is not None]
    return "; ".join([text, *(f"{ratio:.2f}" for ratio in ratios)])
