"""A round of exactly the published shape, made by the engine from two small tables: root 0, accepted 1, 5 and 8, then 10.

The tables were written so that token ``n`` becomes node ``n``, and the seed was searched: the round is one of a few in ten
thousand. Token 4 ends a text, so nothing is drafted below it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from draftwood import Limits, Method, Request, Sampling
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.tracing import generate
from draftwood.trace.records import Trace
from tests.tables import TableRunner

WORDS: Final = ["Once", " upon", " there", " in", ".", " a", " was", " midnight", " time", " no", ","]
SEED: Final = 902
END: Final = 4
# The probabilities after each token; what is left of 1 is shared by all other tokens.
DRAFT: Final = {
    0: {1: 0.6, 2: 0.24, 3: 0.12},
    1: {4: 0.5, 5: 0.4, 9: 0.05},
    2: {6: 0.9, 9: 0.05},
    3: {5: 0.5, 9: 0.4},
    4: {0: 0.4, 2: 0.3},
    5: {7: 0.5, 8: 0.42, 9: 0.04},
    6: {9: 0.9, 5: 0.05},
}
TARGET: Final = {
    0: {1: 0.7, 2: 0.2, 3: 0.05},
    1: {5: 0.85, 4: 0.05, 9: 0.04},
    2: {6: 0.9},
    3: {5: 0.7, 9: 0.2},
    4: {0: 0.7, 2: 0.2},
    5: {8: 0.8, 7: 0.06, 9: 0.05},
    6: {9: 0.5, 5: 0.3},
    7: {10: 0.8},
    8: {10: 0.85, 9: 0.05},
    9: {8: 0.4, 6: 0.2},
}


class Words:
    """The tokenizer of the example."""

    all_special_ids: Final[list[int]] = []

    def decode(self, tokens: list[int], **_settings: Any) -> str:
        return "".join(WORDS[token] for token in tokens)


def _table(rows: dict[int, dict[int, float]]) -> torch.Tensor:
    # In double precision, so that every processor shows the same digits.
    table = torch.full((len(WORDS), len(WORDS)), 1 / len(WORDS), dtype=torch.float64)
    for token, row in rows.items():
        rest = (1 - sum(row.values())) / (len(WORDS) - len(row))
        table[token] = torch.tensor([row.get(other, rest) for other in range(len(WORDS))], dtype=torch.float64)
    return table.log()


def recorded() -> Trace:
    """The first round of the text, without its times."""
    draft = TableRunner(_table(DRAFT))
    method = Method(method="rsd-s", shape="3x3", verifier="recursive")
    drafter, verifier = build(method, draft, greedy=False)
    decoder = Decoder(TableRunner(_table(TARGET)), drafter, verifier, tokenizer=Words(), eos=[END])
    request = Request(prompt=[0], seed=SEED, limits=Limits(max_new_tokens=4))
    [result] = generate(decoder, [request], Sampling(), method=method, draft=draft, trace=True)
    assert result.trace is not None
    return replace(result.trace, rounds=[replace(made, seconds={}, end=0.0) for made in result.trace.rounds])
