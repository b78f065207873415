"""Compiled graphs that are called like a model, without copies of large tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import no_format
from draftwood.runners.forward import ForwardOutput
from draftwood.runners.openvino.ahead import THREADS, compiled
from draftwood.runners.openvino.graph import core, shared
from draftwood.runners.openvino.memory import Inputs

CPU = "CPU"
_STEP = 8  # tokens
_SMALL = 256  # most values of an input that is copied to a reused buffer
_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}
_ACTIVATION_GROUPS = {torch.float32: 0, torch.bfloat16: 32}
"""Inputs of a product with quantized weights that are rounded to eight bits with one scale; 0 rounds none.

Rounding turns differences of 1e-7, which attention has between a tree and a path, into differences of a whole step. In
float32 they would be a thousand times larger. In bfloat16 the number format itself has such steps, and rounding adds none.
"""


@final
class CompiledGraph:
    """A compiled graph and its input and output tensors; on the CPU large ones are not copied.

    Args:
        graph: an ``openvino.Model``.
        model: the model of the graph; its number format is used for computation.
        device: OpenVINO's name of the device.

    Attributes:
        compiled: the ``openvino.CompiledModel``.
        request: the ``openvino.InferRequest``, whose state holds keys and values.

    Raises:
        ModelError: the graph cannot be compiled.
    """

    def __init__(self, graph: Any, model: Any, device: str = CPU) -> None:
        precision = _PRECISIONS[model.dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _ACTIVATION_GROUPS[model.dtype],
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        if device == CPU:
            settings |= {
                THREADS: torch.get_num_threads(),
                "ENABLE_CPU_PINNING": False,  # PyTorch's threads and other processes use the same cores
            }
        try:
            self.compiled = compiled(graph, device, settings)
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO cannot compile model type {model.config.model_type!r} for {device} ({error}). Use --backend torch"
            ) from error
        self._begin()

    def _begin(self) -> None:
        self.request = self.compiled.create_infer_request()
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


@final
class OpenVinoNetwork(nn.Module):
    """A compiled graph of :mod:`draftwood.runners.openvino.graph`; it is a module, so hooks can observe its calls.

    Arguments, attribute and errors are those of :class:`CompiledGraph`; ``hidden_width`` is the width of the graph's hidden
    states, 0 without such an output.
    """

    def __init__(self, graph: Any, model: Any, device: str = CPU, hidden_width: int = 0) -> None:
        super().__init__()
        self._compiled = CompiledGraph(graph, model, device)
        self.request = self._compiled.request
        self._hidden_width = hidden_width
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])

    @property
    def storage(self) -> Any:
        """Where keys and values lie: the request whose state they are."""
        return self.request

    def another(self) -> OpenVinoNetwork:
        """The same graph with another request; hooks observe both."""
        found = copy.copy(self)
        found._compiled = self._compiled.another()
        found.request = found._compiled.request
        return found

    def forward(self, input_ids: Int[Tensor, "row new"], inputs: Inputs, keep: int) -> ForwardOutput:
        """Scores of the last ``keep`` tokens."""
        new = input_ids.shape[1]
        scores = torch.empty(len(input_ids), keep, self.vocab_size)  # a new tensor, which later calls do not overwrite
        self._compiled.fill(tokens=input_ids, positions=inputs.positions)
        hidden = torch.empty(*input_ids.shape, self._hidden_width) if self._hidden_width else None
        self._compiled.put(mask=inputs.mask, scores=scores, **({} if hidden is None else {"hidden": hidden}))
        if inputs.sliding is not None:
            self._compiled.put(sliding=inputs.sliding)
        self._compiled.put_list("keep", range(new - keep, new), np.int64)
        self._compiled.put_list("rows", inputs.rows, np.int32)
        self._compiled.run()
        return ForwardOutput(scores, hidden)


def padded_length(length: int, longest: int) -> int:
    """The length rounded up, within ``longest``. Each new length costs a compiled graph a millisecond or more."""
    return min(-(-length // _STEP) * _STEP, max(length, longest))


def check_precision(model: Any, device: str = CPU) -> None:
    """Raise a ConfigError for a number format or device that OpenVINO does not support here."""
    if model.device.type != "cpu":
        raise ConfigError(
            f"the model is on {model.device}, but OpenVINO reads it on the CPU: use --device cpu, or --backend torch"
        )
    if model.dtype not in _PRECISIONS:
        raise no_format("openvino", str(model.dtype)[6:])
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
            f"this {what} does not compute in bfloat16, and OpenVINO would use another format: use --dtype float32, or "
            "--backend torch"
        )
