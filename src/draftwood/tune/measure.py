"""Short real runs: what single rounds cost and bring, from their second round on, when the prompt has been read."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, Final, NamedTuple, cast, final

import torch

from draftwood.api import Pair
from draftwood.core.limits import Limits
from draftwood.core.settings import Method, Sampling
from draftwood.draft.level import LevelDrafter
from draftwood.engine.decode import Decoder, Piece, Request
from draftwood.engine.methods import PACED_LENGTH, build
from draftwood.runners.protocols import Runner
from draftwood.tune.nests import beams, branchings
from draftwood.verify import Verifier

BEAMS: Final = beams(4, PACED_LENGTH)
BRANCHINGS: Final = branchings((3, 2, 2, 1, 1))
ASKED: Final = (1, 2, 3, 4, 6, 12)  # nodes of a draft forward
SCORED: Final = (*range(1, 10), 11, 13, 15, 17, 21, 25, 33, 46)  # nodes of a target forward
_INTERRUPTED: Final = 10
ROOM: Final = 16  # tokens that a text may go on, so that no measured tree is cut by its end


class Timed(NamedTuple):
    """One round: seconds in forwards of both models, and of all else; drafted nodes; new tokens."""

    forwards: float
    rest: float
    nodes: int
    tokens: int

    @property
    def seconds(self) -> float:
        return self.forwards + self.rest


@final
class Runs:
    """Ways to continue prompts, each with a memory of its own of what it has learnt about the pair.

    Args:
        pair: the models.
        tokens: new tokens of a text, a round more or less.
    """

    def __init__(self, pair: Pair, tokens: int) -> None:
        self.pair = pair
        self.tokens = tokens
        self._decoders: dict[tuple[Method, float], Decoder] = {}

    def timed(self, method: Method, temperature: float, prompt: Sequence[int], seed: int) -> list[Timed]:
        """One text, round by round without the first."""
        key = method, temperature
        if key not in self._decoders:
            self._decoders[key] = Decoder(self.pair.target, *build(method, self.pair.draft, greedy=temperature == 0))
        decoder, rounds = self._decoders[key], list[Timed]()
        before = (0.0, 0.0)
        for piece in self._pieces(decoder, temperature, prompt, seed):
            spent = decoder.stats[0].seconds
            now = (spent["draft"] + spent["target"], spent["verify"] + spent["other"])
            nodes = piece.round.tree.drafted[0]
            rounds.append(Timed(now[0] - before[0], now[1] - before[1], nodes, len(piece.tokens)))
            before = now
        return rounds[1:]

    def write(self, method: Method, verifier: Verifier, temperature: float, prompt: Sequence[int], seed: int) -> None:
        """One text with a verifier of one's own."""
        decoder = Decoder(self.pair.target, build(method, self.pair.draft, greedy=temperature == 0)[0], verifier)
        for _ in self._pieces(decoder, temperature, prompt, seed):
            pass

    def _pieces(self, decoder: Decoder, temperature: float, prompt: Sequence[int], seed: int) -> Iterator[Piece]:
        """Rounds until there are enough tokens. The text's own end is looked for here: a decoder that knew it would draft
        nothing below it, and then trees are not whole."""
        limits = Limits(max_new_tokens=self.tokens + ROOM, ignore_eos=True)
        request = Request(prompt=prompt, seed=seed, limits=limits)
        stream = cast(Any, decoder.stream([request], Sampling(temperature=temperature)))
        count = 0
        with closing(stream):
            for [piece] in stream:
                yield piece
                count += len(piece.tokens)
                if count >= self.tokens or not set(self.pair.eos).isdisjoint(piece.tokens):
                    return


def steady(seconds: Sequence[float]) -> float:
    """The mean, without times of more than ten medians: the machine did something else then."""
    most = _INTERRUPTED * median(seconds)
    return fmean(one for one in seconds if one <= most)


@final
@dataclass
class Speed:
    """How fast a method wrote.

    Attributes:
        rounds: of all texts.
        texts: how many it wrote.
    """

    rounds: list[Timed] = field(default_factory=list)
    texts: int = 0

    def add(self, rounds: Sequence[Timed]) -> None:
        """Another text."""
        self.rounds += rounds
        self.texts += 1

    @property
    def tokens_per_round(self) -> float:
        """New tokens per target forward."""
        return fmean(one.tokens for one in self.rounds)

    @property
    def seconds_per_round(self) -> float:
        return steady([one.seconds for one in self.rounds])

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_round / self.seconds_per_round


@final
@dataclass(frozen=True)
class Forwards:
    """Seconds of single forwards, by the number of nodes that they score.

    Attributes:
        draft, target: of the two models.
    """

    draft: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in ASKED})
    target: dict[int, list[float]] = field(default_factory=lambda: {n: [] for n in SCORED})

    def take(self, pair: Pair, prompt: Sequence[int], seed: int) -> None:
        """One forward of every size behind a prompt, the models in turn as in a round."""
        runners = [(runner, found) for runner, found in ((pair.draft, self.draft), (pair.target, self.target)) if runner]
        for runner, _ in runners:
            runner.clear()
            runner.add([prompt[:-1]])
            _forward(runner, prompt[-1], 1)  # reads the prompt
        order = list(SCORED)
        random.Random(seed).shuffle(order)
        for i, scored in enumerate(order):
            for runner, found in runners:
                nodes = scored if found is self.target else ASKED[i % len(ASKED)]
                found[nodes].append(_forward(runner, prompt[-1], nodes))


def _forward(runner: Runner, token: int, nodes: int) -> float:
    """Seconds of a forward of a root and its children, of which nothing is kept."""
    sees = torch.eye(nodes, dtype=torch.bool, device=runner.device)
    sees[:, 0] = True
    depths = torch.tensor([[0] + [1] * (nodes - 1)], device=runner.device)
    before = runner.forward_seconds
    with torch.inference_mode():
        runner.extend(torch.full_like(depths, token), depths, sees.unsqueeze(0))
        runner.commit([[]], [[]])
    return runner.forward_seconds - before


def widths_of(method: Method, pair: Pair) -> tuple[int, ...]:
    """Nodes per level of a drawn tree; none where nothing is drawn level by level."""
    drafter, _ = build(method, pair.draft, greedy=False)
    return drafter.policy.widths if isinstance(drafter, LevelDrafter) else ()
