"""The sweep: ``auto`` beside fixed settings."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest

from benchmarks.sweep import FINALISTS, MORE, fixed
from benchmarks.sweep_report import markdown
from draftwood.api import Pair
from draftwood.core.settings import Method
from draftwood.loading.profile import Profile
from tests.benchmarks.tiny import call


def test_the_verdict_follows_from_the_raw_repeats_and_names_what_auto_is(
    pair: Pair, prompt_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choices = {0.0: Method(), 1.0: Method(method="chain", shape="2")}
    profile = Profile(path=tmp_path / "profile.json", profile_key={}, choices=choices)
    tuned = Pair(pair.target.model, pair.draft.model, pair.tokenizer, profile=profile)
    monkeypatch.setattr("draftwood.api.load", lambda target, draft, options: tuned)
    size = "--max-new-tokens", 4, "--repeats", 2, "--temperatures", 1
    done = call("sweep", "--prompts", prompt_file, *size, "--output", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert not found["partial"]
    assert {r["setting"] for r in found["results"]} >= {"auto", *(s.name for s in fixed())}
    assert {len(r["repeats"]) for r in found["results"]} == {2}
    assert {len(r["repeats"]) for r in found["final"]} == {2 * MORE}
    first_seeds = [{r["repeats"][0]["first_seed"] for r in found[run]} for run in ("results", "final")]
    assert first_seeds[0].isdisjoint(first_seeds[1])
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
    assert report in done.stdout
    assert f"| 1 | chain 2 + recursive (profile) | {median(final['auto']):.1f} (" in report
