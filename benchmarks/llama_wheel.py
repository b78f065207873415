"""llama.cpp through ``xllamacpp``, a wheel that needs no compiler, with the quantized file of the target.

It rounds inputs in its own way, so it runs another model.
It is compiled for AVX2, and says so (:func:`uses`). It takes token ids and returns text, which is encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.measure import Maker, Texts
from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.core.errors import ConfigError


def uses() -> str:
    """The instruction sets that it was compiled for."""
    import xllamacpp

    said = str(xllamacpp.get_system_info()).split(":", 1)[-1]
    return " ".join(name.split("=")[0].strip() for name in said.split("|") if name.strip().endswith("= 1"))


@final
class LlamaWheel:
    """Plain decoding; every text starts with an empty memory.

    Args:
        pair: its target was read from a GGUF file.

    Raises:
        ConfigError: it was not.
        ImportError: the package is missing.
    """

    def __init__(self, pair: Pair, method: str = "", folder: Path | None = None) -> None:
        import xllamacpp

        if not Path(path := pair.model.name_or_path).is_file():
            raise ConfigError(f"the target {path!r} is no GGUF file")
        given = xllamacpp.CommonParams()
        given.model.path, given.n_ctx = path, pair.model.config.max_position_embeddings
        given.n_parallel, given.verbosity = 1, 0
        given.cpuparams.n_threads = given.cpuparams_batch.n_threads = torch.get_num_threads()
        self._server, self._encode = xllamacpp.Server(given), pair.encode

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """A function that continues prompts with its own distribution at this temperature."""

        def make(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Texts:
            found = self._write(prompts[0], max_new_tokens, temperature=temperature, seed=seeds[0] % 2**32)
            count = found["usage"]["completion_tokens"]
            tokens = self._encode(found["choices"][0]["text"])[:count]
            tokens += [0] * (count - len(tokens))  # the end, which is no text
            return Texts(tokens=[tokens], forwards=count, row_forwards=count, drafted=0, seen=False)

        return make

    def seconds(self, context: int, new: int) -> tuple[float, float]:
        """The seconds of a prompt of so many tokens, and of one of so many new tokens behind it; of random tokens."""
        found = self._write([1000 + 7 * at % 997 for at in range(context)], new, temperature=0.0, seed=0, ignore_eos=True)
        times = found["timings"]
        return times["prompt_ms"] / 1e3, times["predicted_per_token_ms"] / 1e3

    def _write(self, prompt: Sequence[int], new: int, **more: Any) -> dict[str, Any]:
        whole = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "cache_prompt": False}
        found: dict[str, Any] = self._server.handle_completions({"prompt": list(prompt), "n_predict": new, **whole, **more})
        return found
