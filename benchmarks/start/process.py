"""One start, in a process that does nothing else: ``python -P process.py JSON``, which prints JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias, final

STATUS = Path("/proc/self/status")
Mark: TypeAlias = Callable[[str], None]
"""Says that a point has been reached."""


def memory(status: Path = STATUS) -> dict[str, int | None]:
    """Bytes that a process has held at most (``peak``) and holds now (``held``), mapped files included, and holds without
    these (``own``); None where the system does not tell.

    On Linux from the kernel's account of this program (``VmHWM``): ``getrusage`` there begins with the peak of the process
    that started it.

    Args:
        status: the kernel's file on the process; by default on this one.
    """
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        keys = {"peak": "VmHWM", "held": "VmRSS", "own": "RssAnon"}
        return {name: 1024 * int(lines[key].split()[0]) for name, key in keys.items()}
    nothing: dict[str, int | None] = {"peak": None, "held": None, "own": None}
    if status != STATUS:
        return nothing
    try:
        import resource
    except ImportError:
        return nothing
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return nothing | {"peak": peak if sys.platform == "darwin" else 1024 * peak}


def started(job: Mapping[str, Any]) -> dict[str, Any]:
    """Load, and write a few tokens at temperature 0.

    Args:
        job: ``system``, ``target``, ``draft``, ``dtype``, ``prompt``, ``max_new_tokens``, and ``begun``, the time of
            ``perf_counter`` (one clock for all processes) at which this process was requested; for ``genai`` and
            ``llama.cpp`` also what :func:`benchmarks.start.peers.files` returns.

    Returns:
        Seconds since then to ``imported``, ``loaded``, ``first_token`` and ``done``; seconds from loaded to the first token,
        ``reading``; bytes of memory, ``peak_loaded``,
        ``peak``, ``held`` and ``own``; the number of ``tokens``.
    """
    found: dict[str, Any] = {}

    def mark(point: str) -> None:
        found[point] = perf_counter() - job["begun"]
        if point == "loaded":
            found["peak_loaded"] = memory()["peak"]

    run = {"transformers": _transformers, "genai": _genai, "llama.cpp": _llama_cpp}.get(job["system"], _draftwood)
    tokens, _models = run(job, mark)  # the models are held until memory is measured
    mark("done")
    return found | memory() | {"tokens": tokens, "reading": found["first_token"] - found["loaded"]}


@final
class _FirstToken:
    """A streamer of ``transformers``: its first call brings the prompt, its second one the first token."""

    def __init__(self, mark: Mark) -> None:
        self._mark, self._calls = mark, 0

    def put(self, tokens: Any) -> None:
        self._calls += 1
        if self._calls == 2:
            self._mark("first_token")

    def end(self) -> None:
        pass


def _transformers(job: Mapping[str, Any], mark: Mark) -> tuple[int, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    mark("imported")
    tokenizer = AutoTokenizer.from_pretrained(job["target"])
    dtype = getattr(torch, job["dtype"])
    model = AutoModelForCausalLM.from_pretrained(job["target"], dtype=dtype, use_safetensors=True).eval()
    mark("loaded")
    ids = torch.tensor([tokenizer(job["prompt"])["input_ids"]])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=job["max_new_tokens"],
        streamer=_FirstToken(mark),
    )
    return out.shape[1] - ids.shape[1], model


def _genai(job: Mapping[str, Any], mark: Mark) -> tuple[int, Any]:
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # an import of it fails
    import numpy as np
    import openvino
    import openvino_genai

    mark("imported")
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in job["scheduler"].items():
        setattr(scheduler, name, value)
    pipeline = openvino_genai.LLMPipeline(job["model"], "CPU", scheduler_config=scheduler, **job["options"])
    mark("loaded")

    class Marking(openvino_genai.StreamerBase):  # type: ignore[misc]
        tokens = 0

        def write(self, token: Any) -> Any:
            if not self.tokens:
                mark("first_token")
            self.tokens += 1 if isinstance(token, int) else len(token)
            return openvino_genai.StreamingStatus.RUNNING

        def end(self) -> None:
            pass

    ids, streamer = np.array([job["ids"]]), Marking()
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.apply_chat_template = job["max_new_tokens"], True, False
    pipeline.generate(inputs, config, streamer)
    return streamer.tokens, pipeline


def _llama_cpp(job: Mapping[str, Any], mark: Mark) -> tuple[int, Any]:
    import llama_cpp

    from benchmarks.llama_buffers import keep_llama_cpp_from_crashing

    keep_llama_cpp_from_crashing()
    mark("imported")
    llama = llama_cpp.Llama(job["model"], **job["options"])
    mark("loaded")
    for tokens, _ in enumerate(llama.generate(job["ids"], temp=0.0, repeat_penalty=1.0), start=1):
        if tokens == 1:
            mark("first_token")
        if tokens == job["max_new_tokens"]:
            break
    return tokens, llama


def _draftwood(job: Mapping[str, Any], mark: Mark) -> tuple[int, Any]:
    from draftwood.api import load
    from draftwood.core.limits import Limits
    from draftwood.core.settings import LoadOptions
    from draftwood.engine.requests import Request
    from draftwood.sampling.settings import Sampling

    mark("imported")
    options = LoadOptions(dtype=job["dtype"], device="cpu", backend=job["system"], profile="none")
    pair = load(job["target"], job["draft"], options=options)
    mark("loaded")
    request = Request(prompt=pair.encode(job["prompt"]), limits=Limits(max_new_tokens=job["max_new_tokens"]))
    tokens = 0
    for [piece] in pair.decoder(temperature=0.0).stream([request], Sampling(temperature=0.0)):
        if not tokens:
            mark("first_token")
        tokens += len(piece.tokens)
    return tokens, pair


if __name__ == "__main__":
    print(json.dumps(started(json.loads(sys.argv[1]))))
