"""Writes ``calibration.json`` for a drafter: what an adaptive tree brings, for the first texts of a process on any machine.

``python -m recipes.calibration --target smollm2 --data FOLDER --out calibration.json``

The target answers user turns made from training text, one after the other, at temperatures 0 and 1. In every round the tree
has all levels and up to 16 nodes. A level brings what it adds to the best tree, whose nodes have their first costs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from draftwood.api import Pair, load
from draftwood.core.limits import Limits
from draftwood.core.settings import LoadOptions, Method
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.budget import Budget
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.learnt import NOTHING, Knowledge
from draftwood.engine.decode import Decoder
from draftwood.engine.knowledge import FORMAT
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.settings import Sampling
from recipes.turns import text_turns

NODES: Final = 16
TEMPERATURES: Final = {"temperature 0": 0.0, "sampling": 1.0}


class WholeTrees(Budget):
    """A budget whose trees have all levels, and sums of what these brought.

    Attributes:
        gains, above: by depth, tokens that a level added to the best tree, and the probability above it.
    """

    def __init__(self) -> None:
        self.gains: list[float] = []
        self.above: list[float] = []
        self._best = 0.0  # tokens of the round's best tree so far

    def begin_round(self) -> bool:
        self._best = 0.0
        return False

    def shows_guess(self, chains: Sequence[Sequence[float]]) -> bool:
        return False

    def end_level(self, depth: int, above: float, values: Sequence[float], nodes: int, seconds: float | None) -> None:
        nets = accumulate(value - constants.FIRST_NODE * (n > 0) for n, value in enumerate(values[:NODES]))
        before, self._best = self._best, max(nets, default=0.0)
        for sums, one in ((self.gains, self._best - before), (self.above, above)):
            sums += [0.0] * (depth + 1 - len(sums))
            sums[depth] += one

    def tree_size(self, values: Sequence[float]) -> int:
        return min(NODES, len(values))


def calibration(pair: Pair, prompts: Sequence[Sequence[int]], limits: Limits, temperature: float) -> Knowledge:
    """What the draft of a pair brings in answers to these prompts."""
    controllers = Controllers(budget=(trees := WholeTrees()))
    parts = build(Method(method="adaptive"), pair.draft, greedy=temperature == 0, controllers=controllers)
    decoder = Decoder(pair.target, *parts, tokenizer=pair.tokenizer, eos=pair.eos)
    requests = [Request(prompt=prompt, seed=seed, limits=limits) for seed, prompt in enumerate(prompts)]
    found = [one.stats for _, one in decoder.results(requests, Sampling(temperature=temperature), rows=1)]
    count, rounds = sum(stats.new_tokens for stats in found), sum(stats.rounds for stats in found)
    print(f"temperature {temperature:g}: {count} tokens in {rounds} rounds", flush=True)
    gains = [round(gain / above, 3) for gain, above in zip(trees.gains, trees.above, strict=True)]
    reach = [round(below / above, 3) for above, below in pairwise(trees.above)]
    learnt, whole = replace(NOTHING, gains=tuple(gains), reach=tuple(reach)), controllers.knowledge
    digits = {name: tuple(round(one, 3) for one in getattr(whole, name)) for name in ("acceptance", "hits", "guesses")}
    return Knowledge(by_rows={1: learnt}, **digits)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--target", required=True, help="a chat model")
    parser.add_argument("--draft", help="its drafter; by default the one that comes with it")
    parser.add_argument("--data", type=Path, required=True, help="folder with NAME.train.txt: some first user turns")
    parser.add_argument("--out", type=Path, required=True)
    for name, value in (("turns", 64), ("tokens", 96), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    pair = load(given.target, given.draft, options=LoadOptions(profile="none"))
    turns = text_turns(given.data, 100 * given.turns, given.seed)[: given.turns]
    prompts = [pair.chat_request([{"role": "user", "content": turn}]).prompt for turn in turns]
    limits = Limits(max_new_tokens=given.tokens)
    learnt = {f"adaptive, {name}": asdict(calibration(pair, prompts, limits, at)) for name, at in TEMPERATURES.items()}
    given.out.write_text(json.dumps({"format": FORMAT, "learnt": learnt}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
