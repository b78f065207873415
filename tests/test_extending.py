"""The page about extending: its code runs, and what it builds is exact."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from draftwood.draft.level import LevelDrafter
from draftwood.draft.proposed import ProposedChains
from draftwood.engine.decode import Decoder
from draftwood.exactness.tape import total_variation
from draftwood.runners.backends import VARIABLE
from draftwood.sampling.settings import Sampling
from draftwood.verify.recursive import Recursive
from draftwood.verify.traversal import Traversal
from tests.adaptive.test_lookup import VOCAB, drafted
from tests.ladder.test_rung3_tape import EXACT, engine_distribution
from tests.tables import TableRunner

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def page():
    """The names that the page's code makes, with the bundled pair."""
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "torch")
        for i, block in enumerate(BLOCKS):
            exec(compile(block, f"{PAGE.name}, block {i}", "exec"), names)
    return SimpleNamespace(**names)


def test_the_code_runs_and_drafts_something(page):
    assert len(BLOCKS) == 6
    assert page.result.stats.block_efficiency > 1
    assert page.drafted.stats.drafted > 0
    assert page.best.stats.block_efficiency > 1
    assert page.spec.verifiers == ["recursive", "traversal", "coupled", "greedy"]
    assert page.drafter.policy.widths == (2, 2)


def drafters(page, draft):
    return [LevelDrafter(draft, page.Tapering(3)), ProposedChains("bigrams", page.Bigrams, length=4)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("verifier", [Recursive(), Traversal()], ids=lambda verifier: verifier.name)
def test_drawn_tokens_follow_the_target(page, which, verifier):
    target = torch.tensor([0.6, -0.3, 0.2], dtype=torch.float64)
    draft = TableRunner(torch.tensor([-0.4, 0.5, 0.3], dtype=torch.float64))
    engine = Decoder(TableRunner(target), drafters(page, draft)[which], verifier)
    found = engine_distribution(engine, 2, Sampling(), prompt=(0, 1, 0, 1))
    one = target.softmax(-1).tolist()
    assert total_variation(found, {(a, b): one[a] * one[b] for a in range(3) for b in range(3)}) < EXACT
    assert engine.stats[0].drafted > 0


class Stubborn:
    """Proposes more than it may, and tokens that the target lacks."""

    def __init__(self, row):
        self.source = list(row.source)

    def propose(self, text, count):
        return [*self.source, VOCAB, 1, 2][: count + 2]


def test_proposals_are_cut_at_limits_and_before_unknown_tokens():
    drafter = ProposedChains("stubborn", Stubborn, length=3)
    sources = [[1, 2, 3, 4], [2], [-1, 2], [4, 4]]
    assert drafted(drafter, [[0, 1]] * 4, [9, 9, 9, 1], sources) == [[1, 2, 3], [2], [], [4]]
