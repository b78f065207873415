"""A compiled graph that is called like a model: tensors in, scores out, nothing large copied on the way."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ConfigError, ModelError
from draftwood.runners.openvino.graph import core, shared

CPU = "CPU"
_STEP = 8  # tokens
_SMALL = 256  # values of an input that is set again and again
_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


@final
class CompiledGraph:
    """A compiled graph, and the tensors that go in and come out: on the CPU nothing large is copied on the way.

    Args:
        graph: an ``openvino.Model``.
        model: what the graph was made from; its number format is the one to compute in.
        device: OpenVINO's name of what computes.

    Attributes:
        request: the ``openvino.InferRequest``, whose state holds keys and values.

    Raises:
        ModelError: the graph cannot be compiled.
    """

    def __init__(self, graph: Any, model: Any, device: str = CPU) -> None:
        precision = _PRECISIONS[model.dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # weights may be rounded, what is computed from them is not
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        if device == CPU:
            settings |= {
                "INFERENCE_NUM_THREADS": torch.get_num_threads(),
                "ENABLE_CPU_PINNING": False,  # PyTorch's threads, and other processes, want the same cores
            }
        try:
            self._compiled = core().compile_model(graph, device, settings)
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO cannot compile model type {model.config.model_type!r} for {device} ({error}). Use --backend torch"
            ) from error
        self._begin()

    def _begin(self) -> None:
        self.request = self._compiled.create_infer_request()
        self._lists: dict[str, Sequence[int]] = {}  # small inputs as they were set last
        self._held: dict[str, Tensor] = {}  # the memory that the request reads and writes, which does not hold it itself
        self._small: dict[tuple[str, torch.Size], tuple[Tensor, Any]] = {}  # inputs by shape, and as OpenVINO sees them

    def another(self) -> CompiledGraph:
        """The same graph with a request of its own."""
        found = copy.copy(self)
        found._begin()
        return found

    def put(self, **tensors: Tensor) -> None:
        """Set inputs, and where outputs are written to, by name; they are held until others come."""
        for name, values in tensors.items():
            held = values.contiguous()
            self.request.set_tensor(name, shared(held))
            self._held[name] = held  # not before: the request must never read from what is not held

    def fill(self, **tensors: Tensor) -> None:
        """Set inputs whose values are copied. Small ones have memory of their own for each shape: where it is the one that
        they had last, the request goes on reading from there, which is quicker than to show it another one."""
        for name, values in tensors.items():
            held, seen = self._small.get((name, values.shape), (None, None))
            if held is None:
                held = values.clone(memory_format=torch.contiguous_format)
                seen = shared(held)
                if values.numel() <= _SMALL:
                    self._small[name, values.shape] = held, seen
            else:
                np.copyto(held.numpy(), values.numpy())  # PyTorch would not write to what inference mode has made
            if self._held.get(name) is not held:
                self.request.set_tensor(name, seen)
                self._held[name] = held

    def put_list(self, name: str, values: Sequence[int], dtype: type[np.integer[Any]]) -> None:
        """Set a small input, if it is another one than last time."""
        if self._lists.get(name) != values:
            self.fill(**{name: torch.from_numpy(np.array(values, dtype))})
            self._lists[name] = values

    def run(self) -> None:
        """Compute."""
        self.request.infer(share_outputs=True)


@final
class OpenVinoNetwork(nn.Module):
    """A graph of :mod:`draftwood.runners.openvino.graph`, compiled; a module, so that its calls can be watched.

    Args:
        graph: an ``openvino.Model``.
        model: what the graph was made from; its number format is the one to compute in.
        device: OpenVINO's name of what computes.

    Attributes:
        request: the ``openvino.InferRequest``, whose state holds keys and values.

    Raises:
        ModelError: the graph cannot be compiled.
    """

    def __init__(self, graph: Any, model: Any, device: str = CPU) -> None:
        super().__init__()
        self._compiled = CompiledGraph(graph, model, device)
        self.request = self._compiled.request
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])

    def forward(
        self,
        input_ids: Int[Tensor, "row new"],
        positions: Int[Tensor, "row new"],
        mask: Float[Tensor, "row 1 new slot"],
        keep: int,
        rows: list[int],
    ) -> Float[Tensor, "row keep vocab"]:
        """Scores of the last ``keep`` tokens, behind the keys and values of the rows ``rows`` of the state."""
        new = input_ids.shape[1]
        scores = torch.empty(len(input_ids), keep, self.vocab_size)  # of its own: the next call leaves it alone
        self._compiled.fill(tokens=input_ids, positions=positions)
        self._compiled.put(mask=mask, scores=scores)
        self._compiled.put_list("keep", range(new - keep, new), np.int64)
        self._compiled.put_list("rows", rows, np.int32)
        self._compiled.run()
        return scores


def filled(length: int, longest: int) -> int:
    """A length that few others share: each new one costs a compiled graph about a millisecond, and more the first time."""
    return min(-(-length // _STEP) * _STEP, max(length, longest))


def check_precision(model: Any, device: str = CPU) -> None:
    """Refuse a number format or device that OpenVINO does not compute in, or on, here.

    Raises:
        ConfigError: says what came, and what is possible.
    """
    if model.device.type != "cpu":
        raise ConfigError(
            f"the model is on {model.device}, but OpenVINO reads it on the CPU: use --device cpu, or --backend torch"
        )
    if model.dtype not in _PRECISIONS:
        raise ConfigError(
            f"dtype {str(model.dtype)[6:]} cannot be had with OpenVINO: use --dtype float32 or bfloat16, or --backend torch"
        )
    found = core().available_devices if device != CPU else [CPU]
    if not any(one == device or one.startswith(f"{device}.") for one in found):
        raise ConfigError(
            f"OpenVINO has no device {device!r} here, only {', '.join(found)}: use --device openvino:{found[0]}, or leave "
            "--device out"
        )
    possible = core().get_property(device, "OPTIMIZATION_CAPABILITIES")
    if model.dtype == torch.bfloat16 and "BF16" not in possible:
        what = "processor" if device == CPU else "device"
        raise ConfigError(
            f"this {what} does not compute in bfloat16, and OpenVINO would take another format: use --dtype float32, or "
            "--backend torch"
        )
