"""Any Hugging Face causal language model, run by OpenVINO and driven by trees."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from draftwood.core.errors import ModelError
from draftwood.core.settings import Weights
from draftwood.runners.openvino.memory import GrowingMemory, spare_tokens
from draftwood.runners.openvino.network import CPU, OpenVinoNetwork, check_precision
from draftwood.runners.openvino.store import stored_graph
from draftwood.runners.slots import ForwardBatch, SlotTable
from draftwood.runners.support import (
    check_architecture,
    check_length,
    check_scores,
    check_tree_forward,
    context,
    layer_count,
)

_CHUNK = 512  # pending tokens per forward; bounds the memory of a long prompt's mask


@final
class OpenVinoRunner:
    """A causal language model as a graph of OpenVINO's, which keeps its own keys and values.

    The graph is made from the model on the fly, and kept in the user's cache (:mod:`draftwood.runners.openvino.store`). The
    number of threads is that of PyTorch.

    Args:
        model: a ``transformers`` causal language model in evaluation mode, on the CPU, in float32 or bfloat16.
        weights: ``int8`` rounds the weights to eight bits per channel (Kozlov et al. 2020, arXiv 2002.08679, NNCF). What it
            scores then is another model, and a target's distribution is that of the rounded one.
        check: compare a small text with the model itself (unless its weights were rounded), and the scores of a tree of
            five tokens with one forward per path.
        drafts: this is a draft model, as for :class:`TorchRunner`.
        place: OpenVINO's name of the device that computes, such as ``GPU`` or ``GPU.1``; tokens and scores stay on the CPU.

    Attributes:
        model: as it came; what it scored is asked from the graph.
        engine: ``openvino``, with the device where it is not the CPU and the weights where they were rounded: ``openvino
            int8``.
        network: the graph.

    Raises:
        ConfigError: OpenVINO is not installed, or does not compute in this number format or on this device.
        ModelError: the architecture cannot score a tree or cannot be converted; it is named, with the reason.
    """

    reads_source = False

    def __init__(
        self, model: Any, *, weights: Weights = "same", check: bool = True, drafts: bool = False, place: str = CPU
    ) -> None:
        check_architecture(model)
        if model.training:
            raise ModelError("the model is in training mode, where dropout changes its scores: call model.eval()")
        check_precision(model, place)
        self.model = model
        self.weights, self.place = weights, place
        self.engine = " ".join(["openvino", *([place] if place != CPU else []), *([weights] if weights != "same" else [])])
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self._context = context(model.config)
        self.max_length = self._context.length if self._context is not None else None
        self.device = model.device
        self._drafts = drafts
        self._known_tokens = int(model.get_input_embeddings().weight.shape[0])
        self.forward_seconds = 0.0
        # Not for a target: a pace chooses the size of its trees by what each size takes there.
        self._spare = spare_tokens(model, layer_count(model.config)) if drafts else 0
        self.network = OpenVinoNetwork(stored_graph(model, weights), model, place)
        self.start([[]])
        if check:
            if weights == "same":
                check_scores(self)
            check_tree_forward(self)

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._memory = GrowingMemory(self.network.request, len(texts), self._spare)
        self._rows = SlotTable(texts, torch.float32, self.device, self.max_length, bare=True, recent=True)

    def select(self, rows: Sequence[int]) -> None:
        self._memory.select(rows)
        self._rows.select(rows)

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        if not self._drafts:
            check_length(self.model, self._context, self._rows.longest_text)
        while self._rows.waiting > _CHUNK:
            self._forward(self._rows.chunk(_CHUNK), keep=1)
        return self._forward(self._rows.step(tokens, depths, ancestors), keep=tokens.shape[1])

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        self._rows.commit(nodes, pending, self._memory)

    def read(self, text: Sequence[int]) -> list[Float[np.ndarray, "1 head token width"]]:
        """Begin again with this text, and its keys and values of every layer in turn; then only :meth:`start` may follow."""
        self.start([text])
        while self._rows.waiting:
            self._forward(self._rows.chunk(min(_CHUNK, self._rows.waiting)), keep=1)
        return self._memory.contents()

    def _forward(self, step: ForwardBatch, keep: int) -> Float[Tensor, "row keep vocab"]:
        tokens, positions, mask = self._memory.inputs(step)
        if self._drafts:
            tokens = tokens.clamp(max=self._known_tokens - 1)
        rows = self._memory.next_rows()
        start = perf_counter()
        scores: Tensor = self.network(input_ids=tokens, positions=positions, mask=mask, keep=keep, rows=rows)
        self.forward_seconds += perf_counter() - start
        return scores
