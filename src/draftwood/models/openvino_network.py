"""A compiled graph that is called like a model: tensors in, scores out, nothing copied on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.errors import ConfigError, ModelError
from draftwood.models.openvino_graph import openvino, shared

_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


@final
class OpenVinoNetwork(nn.Module):
    """A graph of :mod:`draftwood.models.openvino_graph`, compiled for the CPU; a module, so that its calls can be watched.

    Args:
        graph: an ``openvino.Model``.
        model: what the graph was made from; its number format is the one to compute in.

    Attributes:
        request: the ``openvino.InferRequest``, whose state holds keys and values.

    Raises:
        ModelError: the graph cannot be compiled.
    """

    def __init__(self, graph: Any, model: Any) -> None:
        super().__init__()
        precision = _PRECISIONS[model.dtype]
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,  # weights may be rounded, what is computed from them is not
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "ENABLE_CPU_PINNING": False,  # PyTorch's threads, and other processes, want the same cores
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        try:
            self.request = openvino().Core().compile_model(graph, "CPU", settings).create_infer_request()
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO cannot compile model type {model.config.model_type!r} ({error}). Use --backend torch"
            ) from error
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._lists: dict[str, Sequence[int]] = {}  # small inputs as they were set last
        self._held: dict[str, Tensor] = {}  # the memory that the request reads and writes, which does not hold it itself

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
        for name, values in (("tokens", input_ids), ("positions", positions), ("mask", mask), ("scores", scores)):
            self._put(name, values)
        self._put_list("keep", range(new - keep, new), torch.int64)
        self._put_list("rows", rows, torch.int32)
        self.request.infer(share_outputs=True)
        return scores

    def _put(self, name: str, values: Tensor) -> None:
        held = self._held[name] = values.contiguous()
        self.request.set_tensor(name, shared(held))

    def _put_list(self, name: str, values: Sequence[int], dtype: torch.dtype) -> None:
        if self._lists.get(name) != values:
            self._put(name, torch.tensor(list(values), dtype=dtype))
            self._lists[name] = values


def check_precision(model: Any) -> None:
    """Refuse a number format or device that OpenVINO does not compute in here.

    Raises:
        ConfigError: says what came, and what is possible.
    """
    if model.device.type != "cpu":
        raise ConfigError(f"the model is on {model.device}, but OpenVINO runs on the CPU here: use --backend torch")
    if model.dtype not in _PRECISIONS:
        raise ConfigError(
            f"dtype {str(model.dtype)[6:]} cannot be had with OpenVINO: use --dtype float32 or bfloat16, or --backend torch"
        )
    possible = openvino().Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    if model.dtype == torch.bfloat16 and "BF16" not in possible:
        raise ConfigError(
            "this processor does not compute in bfloat16, and OpenVINO would take float32: use --dtype float32, or "
            "--backend torch"
        )
