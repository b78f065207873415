"""Compiled graphs that are called like a model, without copies of large tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import no_format
from draftwood.runners.openvino.graph import core, shared

_STEP = 8  # tokens
_SMALL = 256  # most values of an input that is copied to a reused buffer
_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


@final
class CompiledGraph:
    """A compiled graph and its input and output tensors; on the CPU large ones are not copied.

    Args:
        graph: an ``openvino.Model``.
        model: the model of the graph; its number format is used for computation.

    Attributes:
        request: the ``openvino.InferRequest``, whose state holds keys and values.

    Raises:
        ModelError: the graph cannot be compiled.
    """

    def __init__(self, graph: Any, model: Any) -> None:
        precision = _PRECISIONS[model.dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # PyTorch's threads and other processes use the same cores
        }
        try:
            self._compiled = core().compile_model(graph, "CPU", settings)
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO cannot compile model type {model.config.model_type!r} ({error}). Use --backend torch"
            ) from error
        self._begin()

    def _begin(self) -> None:
        self.request = self._compiled.create_infer_request()
        self._lists: dict[str, Sequence[int]] = {}  # small inputs as last set
        self._held: dict[str, Tensor] = {}  # tensors of the request, which does not keep them alive
        self._small: dict[tuple[str, torch.Size], tuple[Tensor, Any]] = {}  # buffers by shape, also as OpenVINO tensors

    def another(self) -> CompiledGraph:
        """The same graph with another request."""
        found = copy.copy(self)
        found._begin()
        return found

    def put(self, **tensors: Tensor) -> None:
        """Set input and output tensors by name; they are held until they are replaced."""
        for name, values in tensors.items():
            held = values.contiguous()
            self.request.set_tensor(name, shared(held))
            self._held[name] = held  # after set_tensor: the request must not read freed memory

    def fill(self, **tensors: Tensor) -> None:
        """Set inputs by copying their values. Small ones have a buffer per shape, because it is slower to set a tensor."""
        for name, values in tensors.items():
            held, seen = self._small.get((name, values.shape), (None, None))
            if held is None:
                held = values.clone(memory_format=torch.contiguous_format)
                seen = shared(held)
                if values.numel() <= _SMALL:
                    self._small[name, values.shape] = held, seen
            else:
                np.copyto(held.numpy(), values.numpy())  # PyTorch cannot write to tensors of inference mode
            if self._held.get(name) is not held:
                self.request.set_tensor(name, seen)
                self._held[name] = held

    def put_list(self, name: str, values: Sequence[int], dtype: type[np.integer[Any]]) -> None:
        """Set a small input if its values changed."""
        if self._lists.get(name) != values:
            self.fill(**{name: torch.from_numpy(np.array(values, dtype))})
            self._lists[name] = values

    def run(self) -> None:
        """Compute."""
        self.request.infer(share_outputs=True)


def padded_length(length: int, longest: int) -> int:
    """The length rounded up, within ``longest``. Each new length costs a compiled graph a millisecond or more."""
    return min(-(-length // _STEP) * _STEP, max(length, longest))


def check_precision(model: Any) -> None:
    """Raise a ConfigError for a number format or device that OpenVINO does not support here."""
    if model.device.type != "cpu":
        raise ConfigError(
            f"the model is on {model.device}, but OpenVINO reads it on the CPU: use --device cpu, or --backend torch"
        )
    if model.dtype not in _PRECISIONS:
        raise no_format("openvino", str(model.dtype)[6:])
    if model.dtype == torch.bfloat16 and "BF16" not in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise ConfigError(
            "this processor does not compute in bfloat16, and OpenVINO would use another format: use --dtype float32, or "
            "--backend torch"
        )
