"""Encoder-decoder models whose positions cannot be set: every path of a tree is read from the start as a separate text."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from draftwood.core.errors import ModelError, PairingError
from draftwood.core.scores import Scores
from draftwood.core.settings import Backend
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.runners.rows import remaining
from draftwood.runners.seq2seq.runner import Seq2SeqRunner
from draftwood.runners.seq2seq.source import Encoded, SourceReader, check_encoder_decoder, longest_text, source_text_limits
from draftwood.runners.seq2seq.tree_check import check_source_trees


def seq2seq_runner(
    model: Any, *, engine: Backend = "torch", drafts: bool = False, hidden: bool = False
) -> Seq2SeqRunner | PathRunner:
    """The fastest correct runner of an encoder-decoder model; arguments and errors as for :class:`Seq2SeqRunner`.

    Raises:
        PairingError: ``hidden`` is set, but the only correct runner returns no hidden states.
    """
    check_encoder_decoder(model)
    if engine == "openvino":
        return Seq2SeqRunner(model, engine=engine, drafts=drafts, hidden=hidden)
    try:
        return Seq2SeqRunner(model, drafts=drafts, hidden=hidden)
    except ModelError as error:
        if hidden:
            raise PairingError(
                f"the drafter reads hidden states, which PathRunner does not return: give another drafter ({error})"
            ) from error
        return PathRunner(model, drafts=drafts)


@final
class PathRunner(ReadsAtOnce):
    """A runner of any encoder-decoder language model with a causal decoder, without a cache of the text.

    Each forward reads the text and the path to each leaf again, one line per leaf, padded on the right. This is slower than
    a cache and correct for more models.

    Args:
        model, check, drafts: as for :class:`Seq2SeqRunner`.

    Raises:
        ModelError: the architecture cannot score a tree; the message has the reason.
    """

    reads_source = True
    pads = True
    engine = "torch"

    def __init__(self, model: Any, *, check: bool = True, drafts: bool = False) -> None:
        check_encoder_decoder(model)
        self.model = model
        self.max_length = longest_text(model)
        self.device = model.device
        self.forward_seconds = 0.0
        self._limits = source_text_limits(model, drafts=drafts)
        self._reader = SourceReader(model, drafts=drafts)
        self.clear()
        if check:
            check_source_trees(self)

    @property
    def vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def max_source(self) -> int | None:
        return self._reader.longest

    def clear(self, *, keep: bool = False) -> None:
        self._source: Encoded | None = None
        self._texts: list[list[int]] = []
        self._nodes: list[list[int]] = []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        start = perf_counter()
        new = self._reader.read(sources, len(texts))
        self._source = new if self._source is None else self._source.joined(new)
        self.forward_seconds += perf_counter() - start
        self._texts += [list(text) for text in texts]
        self._nodes += [[] for _ in texts]

    def drop(self, rows: Sequence[int]) -> None:
        assert self._source is not None
        self._source = self._source.without(rows)
        self._texts = remaining(self._texts, rows)
        self._nodes = [[] for _ in self._texts]

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        self._limits.check(max(map(len, self._texts)) + 1)
        for nodes, new in zip(self._nodes, tokens.tolist(), strict=True):
            nodes += new
        rows: list[int] = []
        lines: list[list[int]] = []
        indices: list[list[tuple[int, int]]] = []  # line and token of each node
        for row, seen in enumerate(ancestors.tolist()):
            paths = [[j for j, sees in enumerate(line) if sees] for line in seen]
            leaf_of = _leaves(paths)
            leaves = sorted(set(leaf_of))
            text = self._texts[row]
            indices.append([
                (len(lines) + leaves.index(leaf), len(text) + len(path) - 1)
                for path, leaf in zip(paths, leaf_of, strict=True)
            ])  # fmt: skip
            lines += [text + [self._nodes[row][node] for node in paths[leaf]] for leaf in leaves]
            rows += [row] * len(leaves)
        scores = self._forward(rows, lines)
        line, token = torch.tensor(indices, device=self.device).unbind(-1)
        return Scores(scores[line, token.clamp_(max=scores.shape[1] - 1)])

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        for row, (kept, tokens) in enumerate(zip(nodes, pending, strict=True)):
            self._texts[row] += [self._nodes[row][node] for node in kept]
            self._texts[row] += tokens
            self._nodes[row] = []

    def _forward(self, rows: list[int], lines: list[list[int]]) -> Float[Tensor, "line token vocab"]:
        assert self._source is not None
        start = perf_counter()
        # Scores of nodes beyond the last position are never used.
        width = min(max(map(len, lines)), self.max_length or max(map(len, lines)))
        tokens = torch.tensor([(line + [0] * width)[:width] for line in lines], device=self.device)
        source = self._source.picked(rows)
        whole = torch.ones(source.states.shape[:2], dtype=torch.long, device=self.device)
        with torch.inference_mode():
            scores: Tensor = self.model(
                input_ids=source.tokens,  # without them FSMT's decoder is not causal
                encoder_outputs=BaseModelOutput(last_hidden_state=source.states),
                attention_mask=whole if source.mask is None else source.mask.long(),
                decoder_input_ids=self._limits.clamp(tokens),
                use_cache=False,
            ).logits
        self.forward_seconds += perf_counter() - start
        return scores


def _leaves(paths: list[list[int]]) -> list[int]:
    """For each path, the index of its last continuation to a leaf."""
    first = min(path[-1] for path in paths)
    out = list(range(len(paths)))
    for index in range(len(paths) - 1, -1, -1):  # children come after their parents
        for node in paths[index]:
            if node >= first and out[node - first] == node - first:
                out[node - first] = out[index]
    return out
