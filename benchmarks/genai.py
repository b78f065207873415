"""OpenVINO GenAI (https://github.com/openvinotoolkit/openvino.genai) on the same weights, token ids in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, final

import torch

from benchmarks.genai_graph import openvino, served
from benchmarks.measure import Maker, Texts, closed
from benchmarks.peers import padded
from benchmarks.settings import Setting
from draftwood.api import Pair
from draftwood.core.errors import ConfigError

NGRAM: Final = 3  # tokens that prompt lookup matches at most, GenAI's default
_PRECISIONS: Final = {torch.float32: "f32", torch.bfloat16: "bf16"}
SCHEDULER: Final = {"enable_prefix_caching": False, "max_num_batched_tokens": 4096}  # prompts are read at once


@final
class GenAI:
    """One pipeline of GenAI: plain decoding, or with prompt lookup.

    Nothing is kept from one text to the next: no prefixes, as nobody else keeps any. Keys and values have the precision of
    the model, and nothing is quantised on the way.

    Args:
        pair: models whose weights it gets, on the CPU, in float32 or bfloat16.
        method: ``genai`` or ``genai-lookup``.
        folder: for converted models; it has to stay as long as this object does.

    Raises:
        ConfigError: a device or number format that GenAI is not measured with.
        ImportError: a package is missing.
        ModelError: a model that cannot be converted.
    """

    def __init__(self, pair: Pair, method: str, folder: Path) -> None:
        openvino()  # first, as nothing it brings along may report its use from here
        import openvino_genai

        model = pair.model
        if model.device.type != "cpu" or model.dtype not in _PRECISIONS:
            raise ConfigError(f"it is measured on the CPU in float32 or bfloat16, not on {model.device} in {model.dtype}")
        self._genai, self._eos = openvino_genai, pair.eos
        scheduler = openvino_genai.SchedulerConfig()
        for name, value in SCHEDULER.items():
            setattr(scheduler, name, value)
        extra: dict[str, Any] = {"scheduler_config": scheduler, **options(model)}
        if method == "genai-lookup":
            extra["prompt_lookup"] = True
        target = saved(model, folder / "target")
        self._pipeline = openvino_genai.LLMPipeline(str(target), "CPU", **extra)

    def maker(self, setting: Setting, temperature: float, max_new_tokens: int) -> Maker:
        """A function that continues prompts with the target's own distribution at this temperature."""
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.apply_chat_template = max_new_tokens, False
        config.do_sample = temperature > 0
        if temperature:
            config.temperature = temperature
        if self._eos:
            config.set_eos_token_id(self._eos[0])
            config.stop_token_ids = set(self._eos)
        config.ignore_eos = not self._eos
        if setting.nodes:
            config.num_assistant_tokens = setting.nodes
        if setting.method == "genai-lookup":
            config.max_ngram_size = NGRAM

        def make(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> Texts:
            config.rng_seed = seeds[0]
            ov = openvino()
            inputs = self._genai.TokenizedInputs(*(ov.Tensor(rows.numpy()) for rows in padded(prompts)))
            found = self._pipeline.generate(inputs, config)
            tokens = [closed(row, self._eos) for row in found.tokens]
            forwards = len(found.perf_metrics.raw_metrics.token_infer_durations)
            return Texts(tokens=tokens, forwards=forwards, row_forwards=forwards, drafted=0, seen=False)

        return make


def options(model: Any) -> dict[str, Any]:
    """The engine's settings."""
    precision = _PRECISIONS[model.dtype]
    return {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "ENABLE_CPU_PINNING": False,
        "PERFORMANCE_HINT": "LATENCY",
    }


def saved(model: Any, folder: Path) -> Path:
    """The folder with the network that GenAI reads."""
    ov = openvino()
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(served(model), folder / "openvino_model.xml", compress_to_fp16=False)
    model.config.save_pretrained(folder)
    return folder
