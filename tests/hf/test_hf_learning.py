"""A drafter that learns goes on learning in the next ``generate`` of the same two models, and keeps neither alive."""

import gc
import weakref

import pytest
import torch

from draftwood import hf
from draftwood.core.settings import Method
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.hf import recipe
from tests.hf.test_hf import other, ours, plain, plain_text, ragged, target
from tests.runners.zoo import tiny


def model(seed=0):
    return tiny("llama", seed, dtype=torch.float32, num_hidden_layers=1)


@pytest.fixture
def controllers(monkeypatch):
    """All that were made, in order."""
    made = []
    monkeypatch.setattr(hf, "Controllers", lambda: made.append(Controllers()) or made[-1])
    return made


def test_the_next_generate_begins_with_what_the_last_one_learnt(controllers):
    one, draft = model(), model(1)
    ours(one, recipe(draft))
    [learnt] = controllers
    before = learnt.knowledge
    assert all(one.costs.base > 0 for one in before.by_rows.values())
    assert before.by_rows
    ours(one, recipe(draft))
    made = recipe(draft)
    ours(one, made)
    ours(one, made)
    assert controllers == [learnt]
    assert learnt.knowledge != before


def test_another_model_draft_method_or_temperature_learns_for_itself(controllers):
    one, draft = model(), model(1)
    ours(one, recipe(draft))
    for target_, draft_, method, settings in [
        (model(), draft, Method(), {}),
        (one, model(1), Method(), {}),
        (one, draft, Method(method="shared-noise"), {}),
        (one, draft, Method(), {"do_sample": True}),
    ]:
        before = len(controllers)
        ours(target_, recipe(draft_, method=method), **settings)
        assert len(controllers) == before + 1
    ours(one, recipe(draft))
    assert len(controllers) == 5


@pytest.mark.parametrize("method", [Method(), Method(method="rsd-s"), Method(method="chain")])
def test_what_is_kept_holds_neither_model(method):
    one, draft = model(), model(1)
    ours(one, recipe(draft, method=method))
    kept = weakref.ref(one), weakref.ref(draft)
    del one
    gc.collect()
    assert kept[0]() is None
    one = model()
    ours(one, recipe(draft, method=method))
    del draft
    gc.collect()
    assert kept[1]() is None


def test_texts_stay_those_of_generate_whatever_was_learnt_before():
    draft = other()
    alone = {"input_ids": torch.tensor([[5, 6, 7]])}
    for inputs in (ragged(), alone, ragged(3), ragged()):
        assert torch.equal(ours(target(), recipe(draft), inputs), plain(target(), inputs))


def test_a_generate_inside_another_one_of_the_same_models_disturbs_neither():
    inner = []

    def once(input_ids, scores, **kwargs):
        if not inner:
            inner.append(None)
            inner[0] = ours(target(), recipe(other()))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)

    for _ in range(2):
        inner.clear()
        assert torch.equal(ours(target(), recipe(other()), stopping_criteria=[once]), plain_text("llama"))
        assert torch.equal(inner[0], plain_text("llama"))


def test_an_interrupted_generate_does_not_spoil_the_next():
    def interrupt(input_ids, scores, **kwargs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ours(target(), recipe(other()), stopping_criteria=[interrupt])
    assert torch.equal(ours(target(), recipe(other())), plain_text("llama"))
