"""A tiny pair that writes nonsense quickly."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks import settings
from benchmarks.settings import Setting
from draftwood.api import Pair
from tests.benchmarks.tiny import Letters, call, tiny_llama


@pytest.fixture(scope="session")
def pair():
    """A target and a draft that is the target with a little noise, so that some drafts are accepted."""
    target, draft = tiny_llama(0.4), tiny_llama(0.4)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            weight += 0.02 * torch.randn_like(weight)
    return Pair(target, draft, Letters())


@pytest.fixture
def prompt_file(pair, monkeypatch, tmp_path):
    """Two prompts of two sources; commands load the tiny pair."""
    monkeypatch.setattr("draftwood.api.load", lambda target, draft, options: pair)
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "ab", "source": "x"}\n{"prompt": "cde", "source": "y"}\n')
    return path


@pytest.fixture(scope="session")
def measured(pair, tmp_path_factory):
    """The document and the report of a small complete run; not to be changed."""
    few = [
        Setting(method="ar"),
        Setting(method="chain", shape="2", nodes=2),
        Setting(method="rsd-s", shape="2x2", nodes=4),
        Setting(method="rsd-s", shape="3x2", nodes=6),
        Setting(method="generate"),
        Setting(method="assisted", shape="2", nodes=2),
    ]
    folder = tmp_path_factory.mktemp("bench")
    lines = [json.dumps({"prompt": text, "source": source}) for text, source in (("abc", "a"), ("de", "b"), ("ghij", "a"))]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.api.load", lambda target, draft, options: pair)
        patch.setattr(settings, "plan", lambda methods, has_draft: few)
        options = "--repeats", 2, "--max-new-tokens", 6, "--seed", 5, "--output", folder
        call("generate", *options, "--prompts", folder / "prompts.jsonl")
    document = json.loads((folder / "bench.json").read_text())
    return SimpleNamespace(document=document, report=(folder / "bench.md").read_text())
