"""A new library that runs models is a runner and an entry of a table."""

from dataclasses import replace

import pytest
import torch

from draftwood import Method, Pair
from draftwood.core.draft_kind import CAUSAL
from draftwood.core.errors import ModelError
from draftwood.runners import backends
from draftwood.runners.backends import BACKENDS, Library
from draftwood.runners.factory import make_runners
from tests.helpers import tiny_gpt
from tests.runners.seq2seq_zoo import tiny as tiny_source
from tests.tables import TableRunner

VOCAB = 6


class ToyRunner(TableRunner):
    """A runner that is no module of ``transformers``."""

    engine, token_bytes, same_bits = "toy", 0, False

    def another(self):
        return ToyRunner(self.table)


def toy(model, **settings):
    generator = torch.Generator().manual_seed(1 + settings.get("drafts", False))
    return ToyRunner(torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))


TOY = Library(name="Toy", runners={CAUSAL: toy}, why_not=lambda device: "it is for tests")


@pytest.fixture
def _in_place_of_native(monkeypatch):
    monkeypatch.setattr(backends, "BACKENDS", {**BACKENDS, "native": TOY})


@pytest.mark.usefixtures("_in_place_of_native")
def test_a_library_is_one_entry():
    model, draft = tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2)
    runners = make_runners(model, draft, backend="native")
    pair = Pair(model, draft, None, runners=runners)
    assert (pair.target.engine, pair.engine.fallback) == ("toy", None)
    plain = pair.generate([1, 2], method="ar", seed=3, max_new_tokens=12)
    drafted = pair.generate([1, 2], method=Method(method="shared-noise", shape="2-2"), seed=3, max_new_tokens=12)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted > 0
    assert len(pair.prompt_logprobs([1, 2, 3])) == 3
    assert "by toy" in repr(pair)


def test_auto_says_why_it_takes_another(monkeypatch):
    native = replace(BACKENDS["native"], why_not=lambda device: "nor is this one")
    monkeypatch.setattr(backends, "BACKENDS", {"toy": TOY, "native": native, "torch": BACKENDS["torch"]})
    monkeypatch.setenv("DRAFTWOOD_BACKEND", "auto")
    found = make_runners(tiny_gpt(VOCAB, 1), None)
    reasons = "Toy does not run the models (it is for tests); the native engine does not run the models (nor is this one)"
    assert (found.target.engine, found.engine.fallback) == ("torch", reasons)


@pytest.mark.usefixtures("_in_place_of_native")
def test_what_a_library_has_no_runner_for_is_refused():
    with pytest.raises(ModelError, match="Toy runs no models of kind 'seq2seq': use --backend torch"):
        make_runners(tiny_source("marian"), None, backend="native")


def test_a_draft_that_cannot_run_is_refused_before_the_target_is_made(monkeypatch):
    made = []

    def causal(model, **settings):
        made.append("draft" if settings.get("drafts") else "target")
        if settings.get("drafts"):
            raise ModelError("it is of an odd make")
        return toy(model, **settings)

    monkeypatch.setattr(backends, "BACKENDS", {**BACKENDS, "native": replace(TOY, runners={CAUSAL: causal})})
    with pytest.raises(ModelError, match="the draft: it is of an odd make"):
        make_runners(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2), backend="native")
    assert made == ["draft"]
