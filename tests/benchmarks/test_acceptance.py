"""Expected block efficiency: the same on average as that of real rounds, for every tree of a budget."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

import pytest
import torch

from benchmarks import acceptance
from benchmarks.acceptance import DRAWS, compare, measure, write
from benchmarks.prompts import Prompt
from benchmarks.settings import Setting, plan
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.benchmarks.tiny import Letters, call
from tests.helpers import tiny_gpt, tiny_hidden

PROMPTS = [Prompt(source="a", tokens=(1, 2, 3)), Prompt(source="b", tokens=(4, 5))]
SHARED = Setting(method="shared-noise", nodes=6, comparisons=(("budget", 6),))


def figures(pair: Pair, setting: Setting, sampling: Sampling, tokens: int = 9, prompts: list = PROMPTS) -> list[float]:
    return measure(pair, write(pair, prompts, sampling, tokens, 0), setting, sampling)


def first_rounds(pair: Pair, setting: Setting, sampling: Sampling, prompt: Prompt, texts: int) -> list[float]:
    """Accepted tokens of the first rounds of real texts."""
    drafter, verifier = build(setting.to_method(), pair.draft, greedy=False)
    limits = Limits(max_new_tokens=16)
    requests = [Request(prompt=prompt.tokens, seed=1000 + i, limits=limits) for i in range(texts)]
    pieces = next(Decoder(pair.target, drafter, verifier).stream(requests, sampling))
    return [float(len(piece.round.paths[piece.round_row])) for piece in pieces]


@pytest.mark.parametrize("setting", [
    SHARED, Setting(method="rsd-s", shape="2x3", nodes=6), Setting(method="dynamic", nodes=6),
    Setting(method="ngram", shape="3", nodes=3),
])  # fmt: skip
def test_the_mean_is_that_of_real_rounds(pair: Pair, monkeypatch: pytest.MonkeyPatch, setting: Setting) -> None:
    """One context, the prompt, and so many draws or seeds that a slip in positions, noise or verdict shows."""
    many, sampling = 300, Sampling(temperature=0.6)
    monkeypatch.setattr(acceptance, "DRAWS", many)
    prompt = Prompt(source="a", tokens=(33, 95, 33) if setting.method == "ngram" else (1, 2, 3))
    texts = 1 if setting is SHARED else 60  # each has a seed of its own
    found = figures(pair, setting, sampling, 2, [prompt] * texts)
    real = first_rounds(pair, setting, sampling, prompt, many)
    spread = stdev(found) if len(found) > 1 else stdev(real) * math.sqrt(len(found) / many)
    error = math.sqrt(stdev(real) ** 2 / many + spread**2 / len(found))
    assert stdev(real) > 0.1
    assert 1 + fmean(real) == pytest.approx(fmean(found), abs=4 * error)


def test_at_temperature_0_what_is_accepted_is_what_the_text_goes_on_with(pair: Pair) -> None:
    setting, sampling = Setting(method="chain", shape="3", nodes=3), Sampling(temperature=0.0)
    [text, _] = write(pair, PROMPTS, sampling, 9, 0)
    draft = pair.draft.model
    accepted = []
    for at in (3, 7):
        ids = text.prompt + text.ids
        drafted = ids[:at]
        for _ in range(3):
            drafted.append(int(draft(input_ids=torch.tensor([drafted])).logits[0, -1].argmax()))
        real = zip(drafted[at:], ids[at:], strict=False)
        accepted.append(next((i for i, (a, b) in enumerate(real) if a != b), 3))
    assert measure(pair, [text], setting, sampling) == [1 + fmean(accepted)]


def test_what_cannot_be_measured_is_refused(pair: Pair) -> None:
    model = tiny_gpt(23, 1, dtype=torch.float32)
    drafter = tiny_hidden(model)
    hidden = Pair(model, drafter, Letters(), runners=make_runners(model, drafter, backend="torch"))
    for drafting, budget, tokens, message in (
        (hidden, 6, 9, "measure it with python -m benchmarks generate"),
        (pair, 30, 130, "3 tokens, 130 new ones and a tree of 30 do not fit the models' context of 160"),
    ):
        settings = plan("acceptance", ("chain",), has_draft=True, budgets=(budget,))
        with pytest.raises(ConfigError, match=message):
            compare(drafting, settings, PROMPTS, [1.0], tokens, 0, lambda: None)


def test_every_setting_of_every_budget_stands_beside_rsd_s(prompt_file: Path, tmp_path: Path) -> None:
    options = "--max-new-tokens", "6", "--output", tmp_path, "--budgets", "6,10", "--temperatures", "0,1"
    report = call("acceptance", "--prompts", prompt_file, *options, "--methods", "rsd-s,shared-noise").stdout
    assert (tmp_path / "acceptance.md").read_text() in report
    assert "Left out: ar, generate (nothing is drafted" in report
    for nodes in (6, 10):
        settings = plan("acceptance", ("rsd-s", "shared-noise"), has_draft=True, budgets=(nodes,))
        for temperature in (0, 1):
            part = report.split(f"## Temperature {temperature}, {nodes} nodes\n")[1].split("\n## ")[0]
            rows = [line.strip("| ").split(" | ") for line in part.splitlines() if " ± " in line and line[0] == "|"]
            assert {row[0] for row in rows} == {setting.name for setting in settings}
            assert any(name.startswith("rsd-s ") for name, *_, above in rows if above == "+0.0 % ± 0.0")  # against itself
            for name, _, mean, _ in rows:
                drawn = temperature == 1 and name.startswith("shared")
                assert mean == (f"sampled, {DRAWS} draws" if drawn else "exact")
