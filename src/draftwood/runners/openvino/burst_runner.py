"""The OpenVINO runner of a draft model that can also draft bursts: it chooses and reads several tokens in one call."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftwood.core.errors import ModelError
from draftwood.core.scores import Scores
from draftwood.runners.openvino.burst import BURST, READ, BurstNetwork
from draftwood.runners.openvino.network import CPU
from draftwood.runners.openvino.runner import OpenVinoRunner
from draftwood.runners.protocols import ModelRunner, Prefix
from draftwood.runners.rows import common_length
from draftwood.runners.support import TOLERANCE, score_difference, score_tree
from draftwood.runners.windows import sliding_window

_LOG = logging.getLogger(__name__)
_MOST_WEIGHTS: Final = 10_000_000  # in a larger model the arithmetic takes longer than the call overhead
_MOST_BYTES: Final = 1 << 21  # of keys and values, which each call copies BURST times
# With this many unread tokens, and at least this fraction (1/16) of the text, one forward reads the whole text again.
_FAR_BEHIND, _SHARE_BEHIND = 2 * READ, 16


@final
class OpenVinoBurstRunner:
    """The runner of a small draft model and its :class:`BurstNetwork`, each with its own cache.

    Bursts need a single text that is not too long. The first :meth:`extend`, or a second row, moves the texts to the runner
    until the next :meth:`clear`.

    Args:
        runner: the model's runner.
        network: its graph for bursts.

    Attributes:
        networks: the two modules that make the calls.
    """

    reads_source = False
    pads = True

    def __init__(self, runner: OpenVinoRunner, network: BurstNetwork) -> None:
        self.runner = runner
        self.networks: tuple[nn.Module, ...] = (runner.network, network)
        self.device = runner.device
        self.forward_seconds = 0.0
        self._network = network
        self._texts: list[list[int]] | None = []  # at most one row; None if the runner has the rows
        self._cached = 0  # number of its tokens in the network's memory
        self._round: list[int] = []  # tokens of this round's nodes
        self._base = 0  # the slot of the first node
        self._kept: list[int] = []  # the tokens in the network's memory that clear kept

    @property
    def model(self) -> Any:
        return self.runner.model

    @property
    def engine(self) -> str:
        return self.runner.engine

    @property
    def network(self) -> nn.Module:
        return self.runner.network

    @property
    def vocab_size(self) -> int:
        return self.runner.vocab_size

    @property
    def max_length(self) -> int | None:
        return self.runner.max_length

    def clear(self, *, keep: bool = False) -> None:
        self._kept = self._text[: self._cached] if keep and self._texts and not self._round else []
        self.runner.clear(keep=keep)
        if not self._kept:
            self._network.memory.clear()
        self._texts, self._cached, self._round = [], 0, []

    def add(self, texts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] = ()) -> None:
        if self._texts is not None and len(self._texts) + len(texts) <= 1:
            self._texts += [list(text) for text in texts]
            for text in texts:
                self._network.memory.used = self._cached = common_length(self._kept, text)
            return
        self._hand_over()
        self.runner.add(texts)

    def prefill(
        self,
        text: Sequence[int],
        *,
        prefix: Prefix | None = None,
        hidden: Float[Tensor, "_token width"] | None = None,
    ) -> Float[Tensor, "_token width"] | None:
        if self._texts is not None and not self._texts:  # it may be drafted in bursts
            return None
        return self.runner.prefill(text, prefix=prefix if self._texts is None else None)

    def drop(self, rows: Sequence[int]) -> None:
        if self._texts is None:
            self.runner.drop(rows)
        elif rows:
            self.clear()

    def _hand_over(self) -> None:
        """Move the rows to the runner."""
        if self._texts is not None:
            self.runner.clear(keep=True)
            self.runner.add(self._texts)
            self._texts = None

    @property
    def burst(self) -> int:
        fits = bool(self._texts) and len(self._text) * self._network.memory.slot_bytes <= _MOST_BYTES
        return BURST if fits else 0

    @property
    def _text(self) -> list[int]:
        assert self._texts, "bursts need a single text without a call of extend"
        return self._texts[0]

    def extend(
        self,
        tokens: Int[Tensor, "row node"],
        depths: Int[Tensor, "row node"],
        ancestors: Bool[Tensor, "row node seen"],
    ) -> Scores:
        self._hand_over()
        before = self.runner.forward_seconds
        scores = self.runner.extend(tokens, depths, ancestors)
        self.forward_seconds += self.runner.forward_seconds - before
        return scores

    def draft_burst(
        self, token: int, path: Sequence[int], noise: Float[Tensor, "burst vocab"] | None, scale: float
    ) -> tuple[list[int], Float[Tensor, "burst scored"]]:
        position = len(self._text) + len(path)
        tokens = [token]
        if not self._round:
            tokens = self._catch_up() + tokens
            self._base = len(self._text)
        start, first = perf_counter(), self._network.memory.used
        hidden = sorted({*range(self._base, first)} - {self._base + node for node in path})
        ids = torch.from_numpy(np.array([tokens], np.int64))
        chosen, scores = self._network(ids, position + 1 - len(tokens), hidden, self._draft_noise(noise), scale)
        self.forward_seconds += perf_counter() - start
        self._round += [token, *chosen[:-1]]
        return chosen, scores

    def _draft_noise(self, noise: Tensor | None) -> Tensor | None:
        """Noise over the draft's vocabulary, with -inf for tokens that the target does not know."""
        if noise is None:
            return None
        missing = self._network.vocab - noise.shape[1]
        if missing > 0:
            return torch.nn.functional.pad(noise, (0, missing), value=-torch.inf)
        return noise[:, : self._network.vocab] if missing else noise

    def _catch_up(self) -> list[int]:
        """Read the unread tokens of the text; returns the last few, which the next call reads."""
        text, memory, start = self._text, self._network.memory, perf_counter()
        if len(text) - self._cached >= max(_FAR_BEHIND, len(text) // _SHARE_BEHIND):
            memory.load(self.runner.read(text))
            self._cached = len(text)
        while len(text) - self._cached >= READ:
            part = text[self._cached : self._cached + READ]
            self._network(torch.tensor([part]), self._cached, (), None, 1.0)
            self._cached += READ
            memory.used = self._cached
        self.forward_seconds += perf_counter() - start
        return text[self._cached :]

    def commit(
        self,
        nodes: Sequence[Sequence[int]],
        pending: Sequence[Sequence[int]],
        hidden: Sequence[Float[Tensor, "_token width"]] | None = None,
    ) -> None:
        if self._texts is None:
            self.runner.commit(nodes, pending)
            return
        if self._round:
            self._network.memory.keep([self._base + node for node in nodes[0]], self._base)
            self._text.extend(self._round[node] for node in nodes[0])
            self._cached, self._round = len(self._text), []
        self._text.extend(pending[0])


def with_bursts(runner: ModelRunner) -> ModelRunner:
    """The runner of a draft model, with bursts if the model is small and OpenVINO's CPU plugin runs it.

    Without bursts if they cannot be made or score differently, or if the model has sliding attention. They affect only
    speed.
    """
    if not isinstance(runner, OpenVinoRunner) or runner.place != CPU or sliding_window(runner.model.config) is not None:
        return runner
    if sum(weight.numel() for weight in runner.model.parameters()) > _MOST_WEIGHTS:
        return runner
    try:
        found = OpenVinoBurstRunner(runner, BurstNetwork(runner.model, runner.weights, runner.max_length))
        _check(found)
    except (ModelError, RuntimeError) as error:  # OpenVINO raises RuntimeError
        _LOG.info("no bursts, so the draft model is called once per level: %s", " ".join(str(error).split()))
        return runner
    return found


def _check(runner: OpenVinoBurstRunner) -> None:
    """Compare a burst after a short text, and a second one from its root, with the model's runner.

    Raises:
        ModelError: they differ by more than rounding errors.
    """
    *text, first, other = (token % runner.vocab_size for token in range(1, 9))
    if runner.max_length is not None and runner.max_length < len(text) + 1 + BURST:
        raise ModelError(f"its context of {runner.max_length} tokens is too short to compare bursts with single calls")
    runner.clear()
    runner.add([text])
    with torch.inference_mode():
        straight, scores = runner.draft_burst(first, [], None, 1.0)
        aside, more = runner.draft_burst(other, [0], None, 1.0)
        paths = [[*range(i + 1)] for i in range(BURST)] + [[0, *range(BURST, BURST + i + 1)] for i in range(BURST)]
        wanted = score_tree(runner.runner, [first, *straight[:-1], other, *aside[:-1]], paths, text)
    runner.clear()
    runner.forward_seconds = 0.0
    found, chosen = torch.cat([scores, more]), torch.tensor([*straight, *aside])
    largest = max(1.0, float(wanted[wanted.isfinite()].abs().max()))
    worst = score_difference(found, wanted)
    if not worst <= TOLERANCE.get(runner.model.dtype, 0.5):
        raise ModelError(f"its bursts give other scores than single calls, by {worst:.2g}")
    short = float((found.amax(dim=-1) - found.gather(1, chosen.unsqueeze(1)).squeeze(1)).max()) / largest
    if not short <= TOLERANCE.get(runner.model.dtype, 0.5):
        raise ModelError(f"its bursts do not choose the best tokens, by {short:.2g}")
