"""The sweep: ``auto`` beside fixed settings, and plain decoding beside an untrained draft."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks import run as bench_run
from benchmarks.sweep import FINALISTS, MORE, fixed, untrained
from benchmarks.sweep_report import markdown
from draftwood.api import Pair
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method
from draftwood.loading.profile import Profile
from tests.benchmarks.tiny import call
from tests.helpers import interrupted


def test_the_untrained_draft_has_the_drafts_form_and_weights_of_its_seed(pair: Pair) -> None:
    state = torch.random.get_rng_state()
    first, again, other = untrained(pair, 3), untrained(pair, 3), untrained(pair, 4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.target.model is pair.target.model
    weights = [dict(p.draft.model.named_parameters()) for p in (pair, first, again, other)]
    shapes = [{name: weight.shape for name, weight in some.items()} for some in weights]
    assert shapes == shapes[:1] * 4
    name = "model.embed_tokens.weight"
    assert torch.equal(weights[1][name], weights[2][name])
    assert not torch.equal(weights[1][name], weights[3][name])
    assert not torch.equal(weights[1][name], weights[0][name])
    with pytest.raises(ConfigError, match="give --draft"):
        untrained(Pair(pair.target.model, None, pair.tokenizer), 3)


@pytest.fixture
def sweep(pair: Pair, prompt_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict]:
    """The command on the tiny pair, with a profile that names a chain at temperature 1."""
    choices = {0.0: Method(), 1.0: Method(method="chain", shape="2")}
    profile = Profile(path=tmp_path / "profile.json", profile_key={}, choices=choices)
    tuned = Pair(pair.target.model, pair.draft.model, pair.tokenizer, profile=profile)
    monkeypatch.setattr("draftwood.api.load", lambda target, draft, options: tuned)

    def run(*options: str, code: int = 0) -> dict:
        done = call(
            "sweep", "--prompts", prompt_file, "--max-new-tokens", 4, "--output", tmp_path / "out", *options, code=code
        )
        return {**json.loads((tmp_path / "out" / "sweep.json").read_text()), "stdout": done.stdout}

    return run


def test_every_setting_is_measured_and_the_best_again(sweep: Callable[..., dict], pair: Pair) -> None:
    found = sweep("--repeats", "1", "--temperatures", "0.6")
    assert not found["partial"]
    assert {r["setting"] for r in found["results"]} >= {"auto", *(s.name for s in fixed())}
    assert {r["setting"] for r in found["untrained"]} == {"ar", "auto", "chain 4"}
    assert all(len(r["repeats"]) == 1 and r["temperature"] == 0.6 for r in found["results"])
    assert all(len(r["repeats"]) == MORE for r in found["final"] + found["untrained"])
    first_seeds = [{r["repeats"][0]["first_seed"] for r in found[run]} for run in ("results", "final")]
    assert first_seeds[0].isdisjoint(first_seeds[1])


def test_the_verdict_follows_from_the_raw_repeats_and_names_what_auto_is(sweep: Callable[..., dict]) -> None:
    found = sweep("--repeats", "2", "--temperatures", "1")
    [judged] = found["auto"]
    assert (judged["method"]["method"], judged["method"]["shape"]) == ("chain", "2")
    free = {"adaptive", "shared-noise as it pays"}
    first, final = (
        {r["setting"]: [sum(c["new_tokens"]) / sum(c["seconds"]) for c in r["repeats"]] for r in found[run]
         if r["setting"] not in free} for run in ("results", "final")
    )  # fmt: skip
    del first["auto"]
    best = sorted(first, key=lambda name: -sum(first[name]))[:FINALISTS]
    assert set(final) == {"auto", "ar", *best}
    assert judged["best"] == best[0]
    for name in ("best", "fastest"):
        ratios = [a / b for a, b in zip(final["auto"], final[judged[name]], strict=True)]
        assert judged[f"over_{name}"]["median"] == pytest.approx(median(ratios))
        assert judged[f"over_{name}"]["min"] == pytest.approx(min(ratios))
    assert judged["fastest"] == max(best, key=lambda name: median(final[name]))
    report = markdown(found)
    assert report in found["stdout"]
    assert f"| 1 | chain 2 + recursive (profile) | {median(final['auto']):.1f} (" in report


def test_an_interrupted_sweep_keeps_what_it_has(
    sweep: Callable[..., dict], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = 3 + len(list(fixed()))  # auto and what drafts as it pays
    # After warming up, one repeat of two prompts and one prompt of the next repeat.
    monkeypatch.setattr(bench_run, "measure", interrupted(bench_run.measure, 4 * cases))
    found = sweep("--repeats", "2", "--temperatures", "1", code=130)
    assert found["partial"]
    assert all([len(c["seconds"]) for c in r["repeats"]] == [2, 1] for r in found["results"])
    assert found["final"] == found["untrained"] == found["auto"] == []
    assert "interrupted" in markdown(found).splitlines()[0]
