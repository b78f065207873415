"""A tiny pair that writes nonsense quickly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks.config import BenchConfig
from benchmarks.document import Writer
from benchmarks.run import Bench, Log
from benchmarks.settings import Setting
from draftwood.api import Pair
from tests.benchmarks.tiny import PROMPTS, Letters, tiny_llama


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A target and a draft that is the target with a little noise, so that some drafts are accepted."""
    target, draft = tiny_llama(0.4), tiny_llama(0.4)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return Pair(target, draft, Letters())


@pytest.fixture
def prompt_file(pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two prompts of two sources; commands load the tiny pair."""
    monkeypatch.setattr("draftwood.api.load", lambda target, draft, options: pair)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "ab", "source": "x"}\n{"prompt": "cde", "source": "y"}\n')
    return path


@pytest.fixture(scope="session")
def measured(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A small complete run: its log, its writer and its document; not to be changed."""
    settings = [
        Setting(method="ar"),
        Setting(method="chain", shape="2", nodes=2, comparisons=(("length", 2),)),
        Setting(method="rsd-s", shape="2x2", nodes=4, comparisons=(("length", 2),)),
        Setting(method="rsd-s", shape="3x2", nodes=6, comparisons=(("length", 2),)),
        Setting(method="generate"),
        Setting(method="assisted", shape="2", nodes=2),
    ]
    cases = [(s, t) for t in (0.0, 1.0) for s in settings]
    bench = Bench(pair=pair, cases=cases, prompts=PROMPTS, repeats=2, max_new_tokens=6, seed=5)
    log, steps, repeats = Log(cases=cases), [], []
    bench.run(log, lambda: steps.append(1), lambda: repeats.append(1))
    config = BenchConfig(repeats=2, max_new_tokens=6, temperatures="0,1", output=tmp_path_factory.mktemp("bench"), seed=5)
    writer = Writer(config=config, pair=pair, prompts=PROMPTS, log=log, load_before=0.0)
    return SimpleNamespace(
        bench=bench, log=log, steps=len(steps), ends=len(repeats), writer=writer, document=writer.write(partial=False)
    )
