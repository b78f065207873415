"""The pass of a drafter of hidden states as an OpenVINO graph."""

from __future__ import annotations

from typing import Any, final

import torch

from draftwood.runners.hidden.network import HiddenPass, PassInput, PassOutput
from draftwood.runners.openvino.copies import traceable
from draftwood.runners.openvino.graph import converting, traced
from draftwood.runners.openvino.network import CompiledGraph, check_precision
from draftwood.runners.openvino.store import stored_graphs


@final
class OpenVinoHiddenNetwork:
    """A compiled graph of the pass.

    It is not compared with the model, unlike a target, because the scores of a drafter affect only speed.

    Raises:
        ConfigError: OpenVINO is not installed, or does not support this number format or device.
        ModelError: the pass cannot be converted.
    """

    def __init__(self, network: HiddenPass) -> None:
        check_precision(network)
        [graph] = stored_graphs(network, {"": pass_graph})
        self._compiled = CompiledGraph(graph, network)
        self._config = network.config

    def __call__(self, given: PassInput, /) -> PassOutput:
        (rows, new), config = given.positions.shape, self._config
        parts = given.memory.shape
        scores = torch.empty(rows, config.block, config.draft_vocab_size)
        memory = torch.empty(*parts[:4], new, parts[5])
        self._compiled.fill(positions=given.positions, root_position=given.root_position)
        self._compiled.put(
            hidden=given.hidden, root=given.root, past=given.memory, mask=given.mask, scores=scores, memory=memory
        )
        self._compiled.run()
        return PassOutput(scores, memory)


def pass_graph(network: Any) -> Any:
    """The pass as an ``openvino.Model`` in float32; raises a ModelError if it cannot be traced."""
    config, rows, new, slots = network.config, 2, 3, 8
    width, taps, dim = config.hidden_size, len(config.target_layers), config.head_dim
    memory = (config.num_hidden_layers, 2, rows, config.num_key_value_heads, slots, dim)
    inputs = {
        "hidden": (torch.zeros(rows, new, taps * width), [-1, -1, taps * width]),
        "positions": (torch.tensor([[8, 9, 10]] * rows), [-1, -1]),
        "root": (torch.zeros(rows, width), [-1, width]),
        "root_position": (torch.tensor([11] * rows), [-1]),
        "past": (torch.zeros(memory), [*memory[:2], -1, memory[3], -1, dim]),
        "mask": (torch.zeros(rows, 1, network.slots, slots + new + network.slots), [-1, 1, network.slots, -1]),
    }
    with converting(network):
        return traced(traceable(network), inputs, ["scores", "memory"])
