"""A compiled graph with paged attention that is called like a model."""

from __future__ import annotations

import copy
from itertools import accumulate
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from draftwood.runners.forward import ForwardOutput
from draftwood.runners.openvino.blocks import BlockStorage
from draftwood.runners.openvino.network import CompiledGraph
from draftwood.runners.openvino.paged_memory import PagedInputs


@final
class PagedNetwork(nn.Module):
    """A compiled graph of :mod:`draftwood.runners.openvino.paged`; it is a module, so hooks can observe its calls.

    Arguments and errors are those of :class:`draftwood.runners.openvino.network.OpenVinoNetwork`.

    Attributes:
        storage: the blocks of its keys and values.
    """

    def __init__(self, graph: Any, model: Any, hidden_width: int = 0) -> None:
        super().__init__()
        self._compiled = CompiledGraph(graph, model)
        self.storage = BlockStorage(self._compiled.compiled)
        self._set: object = None  # the tensors of the storage that the request has
        self._hidden_width = hidden_width
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])

    def another(self) -> PagedNetwork:
        """The same graph with other blocks; hooks observe both."""
        found = copy.copy(self)
        found._compiled, found._set = self._compiled.another(), None
        found.storage = BlockStorage(self._compiled.compiled)
        return found

    def forward(self, input_ids: Int[Tensor, "row new"], inputs: PagedInputs, keep: int) -> ForwardOutput:
        """Scores of the last ``keep`` tokens of each row, and hidden states of those that were not read before."""
        rows, new = input_ids.shape
        counts = [new - unread for unread in inputs.padding]
        ends = list(accumulate(counts, initial=0))
        is_read = None if not any(inputs.padding) else _is_read(inputs.padding, new)
        self._place(inputs, counts, ends)
        tokens, positions = (_flat(values, is_read, inputs.spare) for values in (input_ids, inputs.positions))
        self._compiled.fill(tokens=tokens, positions=positions)
        kept = [max(0, end - keep + index) for end in ends[1:] for index in range(keep)]
        self._compiled.put_list("keep", kept, np.int64)
        scores = torch.empty(len(kept), 1, self.vocab_size)  # a new tensor, which later calls do not overwrite
        hidden = torch.empty(len(tokens), 1, self._hidden_width) if self._hidden_width else None
        self._compiled.put(scores=scores, **({} if hidden is None else {"hidden": hidden}))
        self._compiled.run()
        states = None if hidden is None else self._states(hidden[: ends[-1]], inputs, rows, is_read)
        return ForwardOutput(scores.view(rows, keep, -1), states)

    def _place(self, inputs: PagedInputs, counts: list[int], ends: list[int]) -> None:
        """Set where the rows lie, and what their tokens see. Rows without tokens are left out."""
        if self._set is not self.storage.tensors:
            for name, tensor in self.storage.tensors.items():
                self._compiled.request.set_tensor(name, tensor)
            self._set = self.storage.tensors
        rows = [row for row, count in enumerate(counts) if count]
        blocks, past = [inputs.blocks[row] for row in rows], [inputs.past[row] for row in rows]
        begins = [ends[row] for row in rows] + [ends[-1]]
        seen = [inputs.seen[row] for row in rows] if inputs.seen else [np.zeros(0, np.bool_) for _ in rows]
        if inputs.spare:
            blocks, past, begins = [*blocks, [inputs.spare_block]], [*past, 0], [*begins, ends[-1] + inputs.spare]
            seen.append(np.tri(inputs.spare if inputs.seen else 0, dtype=np.bool_))
        lists = {
            "past_lens": past,
            "subsequence_begins": begins,
            "block_indices": [block for part in blocks for block in part],
            "block_indices_begins": list(accumulate(map(len, blocks), initial=0)),
            "qq_bias_begins": list(accumulate((part.size for part in seen), initial=0)),
        }
        for name, values in lists.items():
            self._compiled.put_list(name, values, np.int32)
        longest = max(inputs.past[row] + counts[row] for row in rows)
        self._compiled.fill(max_context_len=torch.tensor(longest, dtype=torch.int32))
        self._compiled.fill(qq_bias=torch.from_numpy(np.concatenate([part.reshape(-1) for part in seen]).view(np.uint8)))

    def _states(
        self, hidden: Float[Tensor, "token 1 width"], inputs: PagedInputs, rows: int, is_read: Tensor | None
    ) -> Float[Tensor, "row new width"]:
        if is_read is None:
            return hidden.view(rows, -1, self._hidden_width)[:, inputs.repeated :]
        found = torch.zeros(*is_read.shape, self._hidden_width)
        found[is_read] = hidden[:, 0]
        return found


def _is_read(padding: tuple[int, ...], new: int) -> Tensor:
    return torch.arange(new) >= torch.tensor(padding)[:, None]


def _flat(values: Int[Tensor, "row new"], is_read: Tensor | None, spare: int) -> Int[Tensor, "token"]:
    """The tokens that are read, row after row, and then zeros as padding."""
    flat = values.reshape(-1) if is_read is None else values[is_read]
    return pad(flat, (0, spare)) if spare else flat
