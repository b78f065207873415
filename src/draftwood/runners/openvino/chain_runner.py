"""A draft model on OpenVINO that can also choose and read several tokens in one call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ModelError
from draftwood.runners.openvino.chain import READ, SPAN, ChainNetwork
from draftwood.runners.openvino.network import CPU
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.protocols import ModelRunner
from draftwood.runners.support import TOLERANCE, apart, score_tree

_LOG = logging.getLogger(__name__)
_MOST_WEIGHTS: Final = 10_000_000  # a larger model takes longer for its arithmetic than a call does for itself
_MOST_BYTES: Final = 1 << 21  # of keys and values, which every step copies once
# From so many tokens to be read, and from such a share of the text, the whole text is read again in one forward.
_FAR_BEHIND, _SHARE_BEHIND = 2 * READ, 16


@final
class OpenVinoChainRunner:
    """A small draft model's runner and its :class:`ChainNetwork`, each with a memory of its own.

    A single text that is not too long can be drafted for by :meth:`chain`; with the first :meth:`extend` the text goes over
    to the runner, until the next :meth:`start`.

    Args:
        runner: the model's runner.
        chains: its graph for several tokens on end.

    Attributes:
        networks: both modules that are called.
    """

    reads_source = False

    def __init__(self, runner: OpenVinoRunner, chains: ChainNetwork) -> None:
        self.runner = runner
        self.model = runner.model
        self.engine, self.network = runner.engine, runner.network
        self.networks: tuple[nn.Module, ...] = (runner.network, chains)
        self.vocab_size, self.max_length, self.device = runner.vocab_size, runner.max_length, runner.device
        self._chains = chains
        self.forward_seconds = 0.0
        self._begin([[]])

    def _begin(self, texts: Sequence[Sequence[int]]) -> None:
        self._text: list[int] | None = list(texts[0]) if len(texts) == 1 else None  # None once the runner has it
        self._chains.clear()
        self._cached = 0  # tokens of the text whose keys and values the chains have
        self._round: list[int] = []  # tokens of this round's nodes
        self._base = 0  # the slot of the first of them

    def start(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        self._begin(texts)
        if self._text is None:
            self.runner.start(texts)

    def select(self, rows: Sequence[int]) -> None:
        if self._text is None:
            self.runner.select(rows)

    @property
    def span(self) -> int:
        fits = self._text is not None and len(self._text) * self._chains.slot_bytes <= _MOST_BYTES
        return SPAN if fits else 0

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Float[Tensor, "row node vocab"]:
        if self._text is not None:
            self.runner.start([self._text])
            self._text = None
        before = self.runner.forward_seconds
        scores = self.runner.extend(tokens, depths, ancestors)
        self.forward_seconds += self.runner.forward_seconds - before
        return scores

    def chain(
        self, token: int, path: Sequence[int], noise: Float[Tensor, "span vocab"] | None, scale: float
    ) -> tuple[list[int], Float[Tensor, "span scored"]]:
        assert self._text is not None, "chains go on behind a single text that was never extended"
        position = len(self._text) + len(path)
        tokens = [token]
        if not self._round:
            tokens = self._catch_up() + tokens
            self._base = len(self._text)
        start, first = perf_counter(), self._chains.used
        hidden = sorted({*range(self._base, first)} - {self._base + node for node in path})
        ids = torch.from_numpy(np.array([tokens], np.int64))
        chosen, scores = self._chains(ids, position + 1 - len(tokens), hidden, self._fitted(noise), scale)
        self.forward_seconds += perf_counter() - start
        self._round += [token, *chosen[:-1]]
        return chosen, scores

    def _fitted(self, noise: Tensor | None) -> Tensor | None:
        """Noise for the tokens that the draft scores; with it no choice falls on one that the target does not know."""
        if noise is None:
            return None
        missing = self._chains.vocab - noise.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(noise, (0, missing), value=-torch.inf)
        return noise[:, : self._chains.vocab] if missing else noise

    def _catch_up(self) -> list[int]:
        """Read what the chains have not seen of the text, but for the last few tokens, which the next call can read."""
        text, start = self._text or [], perf_counter()
        if len(text) - self._cached >= max(_FAR_BEHIND, len(text) // _SHARE_BEHIND):
            self._chains.load(self.runner.read(text))
            self._cached = len(text)
        while len(text) - self._cached >= READ:
            part = text[self._cached : self._cached + READ]
            self._chains(torch.tensor([part]), self._cached, (), None, 1.0)
            self._cached += READ
            self._chains.used = self._cached
        self.forward_seconds += perf_counter() - start
        return text[self._cached :]

    def commit(self, nodes: Sequence[Sequence[int]], pending: Sequence[Sequence[int]]) -> None:
        if self._text is None:
            self.runner.commit(nodes, pending)
            return
        if self._round:
            self._chains.keep([self._base + node for node in nodes[0]], self._base)
            self._text += [self._round[node] for node in nodes[0]]
            self._cached, self._round = len(self._text), []
        self._text += pending[0]


def chained(runner: ModelRunner) -> ModelRunner:
    """The runner of a draft model, with chains if the model is small and OpenVINO's CPU plugin runs it.

    A chain that cannot be made, or that scores otherwise than the runner, is left out: it would only have been faster.
    """
    if not isinstance(runner, OpenVinoRunner) or runner.place != CPU:
        return runner
    if sum(weight.numel() for weight in runner.model.parameters()) > _MOST_WEIGHTS:
        return runner
    try:
        found = OpenVinoChainRunner(runner, ChainNetwork(runner.model, runner.weights, runner.max_length))
        _check(found)
    except (ModelError, RuntimeError) as error:  # the latter is OpenVINO's own
        _LOG.info("the draft model is called for every level: %s", " ".join(str(error).split()))
        return runner
    return found


def _check(runner: OpenVinoChainRunner) -> None:
    """Compare a chain behind a short text, and one that leaves it after its first token, with the model's own runner.

    Raises:
        ModelError: they differ by more than rounding.
    """
    *text, first, other = (token % runner.vocab_size for token in range(1, 9))
    if runner.max_length is not None and runner.max_length < len(text) + 1 + SPAN:
        raise ModelError(f"its context of {runner.max_length} tokens is too short to compare chains with single calls")
    runner.start([text])
    with torch.inference_mode():
        straight, scores = runner.chain(first, [], None, 1.0)
        aside, more = runner.chain(other, [0], None, 1.0)
        paths = [[*range(i + 1)] for i in range(SPAN)] + [[0, *range(SPAN, SPAN + i + 1)] for i in range(SPAN)]
        wanted = score_tree(runner.runner, [first, *straight[:-1], other, *aside[:-1]], paths, text)
    runner.start([[]])
    runner.forward_seconds = 0.0
    found, chosen = torch.cat([scores, more]), torch.tensor([*straight, *aside])
    largest = max(1.0, float(wanted[wanted.isfinite()].abs().max()))
    worst = apart(found, wanted)
    if not worst <= TOLERANCE.get(runner.model.dtype, 0.5):
        raise ModelError(f"its chains score otherwise than it does, by {worst:.2g}")
    short = float((found.amax(dim=-1) - found.gather(1, chosen.unsqueeze(1)).squeeze(1)).max()) / largest
    if not short <= TOLERANCE.get(runner.model.dtype, 0.5):
        raise ModelError(f"its chains choose other tokens than the best, by {short:.2g}")
