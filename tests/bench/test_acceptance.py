"""Expected block efficiency: the same in the mean as that of real runs, and told for every drawn tree."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from draftwood.api import Pair
from draftwood.bench.acceptance import compare, drawn, measure
from draftwood.bench.prompts import Prompt
from draftwood.bench.settings import Setting, plan
from draftwood.cli import main
from draftwood.methods import Method
from draftwood.sampling import Sampling

PROMPTS = [Prompt(source="a", tokens=(1, 2, 3)), Prompt(source="b", tokens=(4, 5))]


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_a_perfect_draft_is_expected_to_be_accepted_whole(pair: Pair, verifier: str) -> None:
    twins = Pair(pair.target.model, pair.target.model, pair.tokenizer)
    name = "chain" if verifier == "recursive" else "chain+traversal"
    means = measure(twins, PROMPTS, Setting(method=name, shape="3", nodes=3), Sampling(), 9, 0)
    assert means == pytest.approx([4.0, 4.0], abs=1e-4)


def test_every_drawn_setting_stands_beside_rsd_s(pair: Pair) -> None:
    settings = drawn(plan("paper", None, has_draft=True, budgets=(6,)))
    assert {s.method.partition("+")[0] for s in settings} == {"chain", "iid", "rsd-c", "rsd-s", "hybrid", "dynamic"}
    steps: list[int] = []
    report = compare(pair, settings, PROMPTS, [1.0], 8, 0, lambda: steps.append(1))
    assert len(steps) == len(settings)
    assert all(f"| {setting.name} |" in report for setting in settings)
    assert "+0.0 % ± 0.0" in report  # RSD-S against itself
    assert Method(method="rsd-s", shape="2x3").shape in report


def test_nothing_to_measure_is_said() -> None:
    done = CliRunner().invoke(main, ["bench", "acceptance", "--methods", "shared-noise"])
    assert done.exit_code == 2
    assert "nothing is left to measure" in done.output
