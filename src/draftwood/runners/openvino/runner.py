"""The OpenVINO runner of Hugging Face causal language models."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeAlias, final

import torch

from draftwood.core.errors import ModelError
from draftwood.core.scores import Scores
from draftwood.core.settings import Weights
from draftwood.runners.context import context, layer_count, token_bytes
from draftwood.runners.forward import ForwardBatch, ForwardOutput
from draftwood.runners.openvino.memory import GrowingMemory, spare_tokens
from draftwood.runners.openvino.network import CPU, OpenVinoNetwork, check_precision
from draftwood.runners.openvino.paged_memory import PagedMemory
from draftwood.runners.openvino.paged_network import PagedNetwork
from draftwood.runners.openvino.store import is_compared, note_compared, stored_graph
from draftwood.runners.prefill import Forward, Prefill
from draftwood.runners.protocols import Hidden, PerNode, Prefix, Seen
from draftwood.runners.slots import SlotTable
from draftwood.runners.support import (
    check_architecture,
    check_evaluates,
    check_hidden_layers,
    check_scores,
    check_tree_forward,
    text_limits,
)
from draftwood.runners.window_check import used_window
from draftwood.runners.windows import sliding_window
from draftwood.sampling.rows import Row

_LOG = logging.getLogger(__name__)
_Network: TypeAlias = OpenVinoNetwork | PagedNetwork
_Memory: TypeAlias = GrowingMemory | PagedMemory


def _smallest_forward(model: Any, weights: Weights) -> int:
    """Tokens of the smallest forward with paged attention. In bfloat16, products of one or two rows take longer than those
    of three to six (``benchmarks/README.md``, "A small model on a CPU")."""
    return 4 if model.dtype == torch.bfloat16 and weights == "same" else 1


def prefers_paged(model: Any, place: str) -> bool:
    """Whether paged attention reads this target: on the CPU, without sliding attention."""
    return place == CPU and sliding_window(model.config) is None


@final
class OpenVinoRunner:
    """A causal language model as an OpenVINO graph that holds its keys and values.

    The graph is converted from the model and stored in the user's cache (:mod:`draftwood.runners.openvino.store`). It uses
    as many threads as PyTorch.

    Args:
        model: a ``transformers`` causal language model in evaluation mode, on the CPU, in float32 or bfloat16.
        weights: ``int8`` and ``int4`` quantize them (:mod:`draftwood.runners.openvino.quantize`), and in bfloat16 the
            inputs of products too, by token. The quantized model is then the model: it has another distribution.
        check: compare a short text with the model (unless quantized, or done before with this stored graph on this
            processor), and a tree of five tokens with one forward per path.
        drafts: the model is a draft model, as for :class:`TorchRunner`.
        place: OpenVINO's name of the device, such as ``GPU`` or ``GPU.1``; tokens and scores stay on the CPU.
        hidden_layers: layers whose hidden states are returned, as for :class:`TorchRunner`.
        paged: use paged attention (:mod:`draftwood.runners.openvino.paged`), on the CPU and for models without sliding
            attention; by default for every target that it can read (:func:`prefers_paged`).

    Raises:
        ConfigError: OpenVINO is not installed, or does not support this number format or device; a layer is missing.
        ModelError: the architecture cannot score a tree or cannot be converted; the message has the reason.
    """

    reads_source = False
    same_bits = False
    pads: bool

    def __init__(
        self,
        model: Any,
        *,
        weights: Weights = "same",
        check: bool = True,
        drafts: bool = False,
        place: str = CPU,
        hidden_layers: tuple[int, ...] = (),
        paged: bool | None = None,
    ) -> None:
        check_architecture(model)
        check_evaluates(model)
        check_precision(model, place)
        check_hidden_layers(model, hidden_layers)
        longest = context(model.config)
        self.model = model
        self.weights, self.place = weights, place
        self.max_length = longest.length if longest is not None else None
        self.device = model.device
        self.forward_seconds = 0.0
        self._limits = text_limits(model, drafts=drafts)
        make = partial(self._make, hidden_layers, drafts=drafts, check=check)
        if paged is None and not drafts and prefers_paged(model, place):
            try:
                make(paged=True)
                return
            except ModelError as error:
                _LOG.info("attention is not paged, because: %s", error)
        make(paged=bool(paged))

    def _make(self, hidden_layers: tuple[int, ...], *, drafts: bool, check: bool, paged: bool) -> None:
        """Compile the graph, and check what it computes."""
        model, graph = self.model, stored_graph(self.model, self.weights, hidden_layers, paged=paged)
        width = len(hidden_layers) * int(model.config.get_text_config().hidden_size)
        self.pads = not paged
        network: _Network
        memory: _Memory
        if paged:
            network = PagedNetwork(graph, model, width)
            memory = PagedMemory(network.storage, _smallest_forward(model, self.weights))
        else:
            network = OpenVinoNetwork(graph, model, self.place, width)
            # A target needs no spare tokens: its tree sizes are chosen by the measured time of each size.
            spare = spare_tokens(model, layer_count(model.config)) if drafts else 0
            memory = GrowingMemory(network.storage, spare, used_window(model))
        rows = SlotTable(
            memory, torch.float32, self.device, self.max_length, bare=True, masked="nodes" if paged else "round"
        )
        self._use(network, memory, rows)
        if check:
            if self.weights == "same" and not is_compared(graph, self.place):
                check_scores(self)
                note_compared(graph, self.place)
            check_tree_forward(self)

    def _use(self, network: _Network, memory: _Memory, rows: SlotTable) -> None:
        """Take a network, its empty memory, and the table of its slots."""
        self.network, self._memory, self._rows = network, memory, rows
        self._prefill = Prefill(self._rows, self._reader)

    def another(self) -> OpenVinoRunner:
        found = copy.copy(self)
        found.forward_seconds = 0.0
        network = self.network.another()
        memory = self._memory.another(network.storage)
        found._use(network, memory, self._rows.another(memory))
        return found

    @property
    def engine(self) -> str:
        """``openvino``, the device unless it is the CPU, and the weights if quantized: ``openvino int8``."""
        parts = (self.place if self.place != CPU else "", self.weights if self.weights != "same" else "")
        return " ".join(["openvino", *filter(None, parts)])

    @property
    def token_bytes(self) -> int:
        return token_bytes(self.model.config, 4)

    @property
    def vocab_size(self) -> int:
        return self.network.vocab_size

    def clear(self, *, keep: bool = False) -> None:
        self._prefill.clear(keep=keep)

    def set_rows(self, rows: Sequence[Row]) -> None:
        self._prefill.set_rows(rows)

    def prefill(self, row: Row, end: int, *, prefix: Prefix | None = None, hidden: Hidden | None = None) -> Hidden | None:
        return self._prefill.read(row, end, prefix)

    def _reader(self) -> tuple[SlotTable, Forward]:
        network = self.network.another()
        memory = self._memory.another(network.storage)
        return self._rows.another(memory), partial(self._forward, memory=memory, network=network)

    def extend(self, tokens: PerNode, depths: PerNode, ancestors: Seen) -> Scores:
        self._limits.check(self._rows.longest_text)
        outputs = [
            self._forward(batch, self._memory, self.network) for batch in self._rows.batches(tokens, depths, ancestors)
        ]
        return self._rows.scores(outputs, tokens.shape[1])

    def commit(self, nodes: Sequence[Sequence[int]], hidden: Sequence[Hidden] | None = None) -> None:
        self._rows.commit(nodes)

    def _forward(self, batch: ForwardBatch, memory: _Memory, network: _Network) -> ForwardOutput:
        inputs = memory.inputs(batch)
        start = perf_counter()
        output: ForwardOutput = network(input_ids=self._limits.clamp(inputs.tokens), inputs=inputs, keep=batch.keep)
        seconds = perf_counter() - start
        memory.record(seconds)
        self.forward_seconds += seconds
        return output
