"""What traces cost, in processor time on one thread, measured in two ways.

* **Within a run**: the seconds of the recorder's own calls against those of the rest of the same run, and the seconds of
  what an untraced text runs for traces' sake (one test of the setting, and one call of an empty function a round). Whatever
  slows the machine slows both parts, so this is precise where others use the machine too.
* **Between runs**: the whole call without that code, with traces off, and with traces on, the same text in turn. This holds
  indirect costs too, such as caches, but sees only differences above the machine's own noise.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from time import process_time
from typing import Any, Final, final
from unittest.mock import patch

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.opening import open_pair
from benchmarks.record import facts_of, machine_lines, plain, surroundings
from benchmarks.report import table
from benchmarks.tracing.config import TraceConfig
from draftwood.api import Pair
from draftwood.core.rounds import Piece
from draftwood.core.settings import Method
from draftwood.engine import tracing
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request, Result
from draftwood.engine.tracing import recorder as make_recorder
from draftwood.hardware.machine import load_average
from draftwood.hardware.threads import set_threads
from draftwood.sampling.settings import Sampling
from draftwood.trace.records import Trace
from draftwood.trace.settings import trace_settings
from draftwood.tune.prompts import built_in

BARE, OFF, ON = "without the code", "off", "on"
RATIOS: Final = {"off": (OFF, BARE), "on": (ON, OFF)}
GOALS: Final = {"off": 1.01, "on": 1.10}
CASES: Final = {
    "rsd-s, T = 0": (Method(method="rsd-s", verifier="auto"), 0.0),
    "rsd-s, recursive, T = 1": (Method(method="rsd-s", verifier="recursive"), 1.0),
    "rsd-s, traversal, T = 1": (Method(method="rsd-s", verifier="traversal"), 1.0),
    "shared-noise, coupled, T = 1": (Method(method="shared-noise", verifier="coupled"), 1.0),
}
_WARM_UP, _SAMPLES, _CALLS = 2, 4000, 2000


def measure(config: TraceConfig, on_step: Callable[[], object]) -> dict[str, Any]:
    """Every case, each text in every way before the next text; ``on_step`` is called after each text of a case.

    Returns:
        A document of plain values; seconds are of the process, on one thread.
    """
    load_before = load_average()
    pair = open_pair(config, "torch")
    set_threads(1)
    prompts, order = [pair.encode(text) for text in built_in(config.repeats)], np.random.default_rng(config.seed)
    taken: dict[str, dict[str, list[float]]] = {case: {} for case in CASES}
    with _quiet_collector():
        for repeat in range(-_WARM_UP, config.repeats):
            for case, found in taken.items():
                text = Text(pair, prompts[repeat % len(prompts)], case, config, config.seed + repeat + _WARM_UP)
                here = text.run(list(order.permutation([BARE, OFF, ON])))
                if repeat >= 0:
                    for name, value in here.items():
                        found.setdefault(name, []).append(value)
                    on_step()
    models = {"target": facts_of(pair.model, "torch")}
    if pair.draft is not None:
        models["draft"] = facts_of(pair.draft_model, "torch")
    return {
        "config": plain(asdict(config)),
        **surroundings(torch.device("cpu"), load_before),
        "models": models,
        "seconds": taken,
    }


@final
class Text:
    """One text, written in every way.

    Args:
        pair: the models.
        prompt: token ids.
        case: a name of :data:`CASES`.
        config: shape and length.
        seed: of the text.
    """

    def __init__(self, pair: Pair, prompt: Sequence[int], case: str, config: TraceConfig, seed: int) -> None:
        method, self._temperature = CASES[case]
        self._pair, self._prompt, self._seed = pair, prompt, seed
        self._method, self._tokens = replace(method, shape=config.shape), config.max_new_tokens

    def run(self, ways: Sequence[str]) -> dict[str, float]:
        """Processor seconds by way, of the recorder and of what an untraced text runs for traces; and the rounds."""
        found, texts = dict[str, float](), set[str]()
        recorders: list[TimedRecorder] = []

        def timed_recorder(*args: Any, **kwargs: Any) -> TimedRecorder:
            recorders.append(TimedRecorder(args, kwargs))
            return recorders[-1]

        for way in ways:
            gc.collect()
            replaced = {BARE: ("generate", without_hooks), ON: ("recorder", timed_recorder)}.get(way)
            with ExitStack() as stack:
                if replaced is not None:
                    stack.enter_context(patch.object(tracing, *replaced))
                start = process_time()
                result = self._write(trace=way == ON)
                found[way] = process_time() - start
            texts.add(result.text)
            found["rounds"] = result.stats.rounds
        assert len(texts) == 1
        [made] = recorders
        return found | {"recorder": made.seconds, "hooks": hook_seconds(int(found["rounds"]))}

    def _write(self, *, trace: bool) -> Result:
        return self._pair.generate(
            self._prompt,
            method=self._method,
            sampling=Sampling(temperature=self._temperature),
            max_new_tokens=self._tokens,
            seed=self._seed,
            trace=trace,
        )


@final
class TimedRecorder:
    """A recorder that adds up its own processor seconds."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        start = process_time()
        self._recorder = make_recorder(*args, **kwargs)
        self.seconds = process_time() - start

    def take(self, piece: Piece) -> None:
        start = process_time()
        self._recorder.take(piece)
        self.seconds += process_time() - start

    def traces(self) -> list[Trace]:
        start = process_time()
        made = self._recorder.traces()
        self.seconds += process_time() - start
        return made


def hook_seconds(rounds: int) -> float:
    """Processor seconds of what an untraced text runs for traces' sake: a test of the setting, an empty call a round."""
    watch = inspect.signature(Decoder.generate).parameters["watch"].default
    start = process_time()
    for _ in range(_CALLS):
        trace_settings(False)
    middle = process_time()
    for _ in range(_CALLS):
        watch(None)
    return (middle - start + rounds * (process_time() - middle)) / _CALLS


def without_hooks(decoder: Decoder, requests: Sequence[Request], sampling: Sampling, **_unused: Any) -> list[Result]:
    """:func:`draftwood.engine.tracing.generate` as it would be without traces: nothing is asked, nobody watches."""
    [request] = requests
    text, tokens, reason = "", list[int](), None
    with closing(decoder.stream(requests, sampling)) as stream:
        for piece in (piece for pieces in stream for piece in pieces):
            text += piece.text
            tokens += piece.tokens
            reason = piece.finish_reason
    assert reason is not None
    return [
        Result(
            text=text,
            token_ids=tokens,
            finish_reason=reason,
            seed=request.seed,
            lossless=decoder.pipeline.verifier.lossless,
            stats=decoder.stats[0],
        )
    ]


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """Objects that are there already are left out of collections, which then cost what the texts' own objects cost."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def between(seconds: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """The median over texts of a ratio of whole calls, and its 95 % interval."""
    above, below = (np.array(seconds[way]) for way in RATIOS[name])
    return _median(above / below)


def within(seconds: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """The same of a call against the rest of itself."""
    part, whole = (np.array(seconds[found]) for found in {"off": ("hooks", OFF), "on": ("recorder", ON)}[name])
    return _median(whole / (whole - part))


def _median(ratios: Float[np.ndarray[Any, Any], "n"]) -> tuple[float, float, float]:
    drawn = np.random.default_rng(0).integers(0, len(ratios), (_SAMPLES, len(ratios)))
    least, most = np.percentile(np.median(ratios[drawn], axis=1), (2.5, 97.5))
    return float(np.median(ratios)), float(least), float(most)


def markdown(document: dict[str, Any]) -> str:
    """The report, made from the document alone."""
    config, rows = document["config"], []
    for case, seconds in document["seconds"].items():
        spent, rounds = (float(np.median(seconds[name])) for name in (OFF, "rounds"))
        off = _cell(within(seconds, "off"), 6)
        cells = [off, _cell(within(seconds, "on")), _cell(between(seconds, "off")), _cell(between(seconds, "on"))]
        rows.append([case, f"{1000 * spent:.0f}", f"{rounds:g}", *cells])
    models = [
        f"{part}: {found['type']}, {found['parameters'] / 1e6:.3g} M parameters, {found['dtype']}"
        for part, found in document["models"].items()
    ]
    remark = (
        f"{config['repeats']} texts of up to {config['max_new_tokens']} tokens for each line, trees of {config['shape']} "
        "nodes, PyTorch on one thread; the ways of a text follow one another, in random order"
    )
    header = ["method", "ms of a text", "rounds", "off, within", "on, within", "off, between", "on, between"]
    return "\n".join(
        [
            "# What traces cost\n",
            *machine_lines(document, *models, remark),
            "\nProcessor time of a text over that of the same text without tracing: medians over texts and, in brackets, "
            f"their 95 % intervals (bootstrap). 1 is no cost; the goals are {GOALS['off']:g} for off and {GOALS['on']:g} "
            "for on.\n",
            "**Within**: the seconds of the code for traces against the rest of the same run. Off, this code is a test of "
            "the setting and an empty call a round. **Between**: whole calls. Off is compared with a loop without code for "
            "traces, and on with off. The intervals of whole calls show how exactly this machine could measure them.\n",
            table(header, rows),
            "",
        ]
    )


def _cell(found: tuple[float, float, float], digits: int = 3) -> str:
    middle, least, most = found
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"
