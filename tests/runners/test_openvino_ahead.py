"""Graphs that a thread compiles ahead are those that the loaded weights need, and nothing else is used."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from tests.helpers import begin
from tests.runners.zoo import plain_scores, tiny

pytest.importorskip("openvino")
from draftwood.runners.openvino import ahead, store
from draftwood.runners.openvino.runner import OpenVinoRunner


@pytest.fixture
def compiling(monkeypatch, tmp_path) -> list[bool]:
    """For each compilation, whether it was in the loading thread; the cache is empty at first."""
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path / "cache"))
    found: list[bool] = []
    core = ahead.core()

    class Core:
        def compile_model(self, *arguments):
            found.append(threading.current_thread() is threading.main_thread())
            return core.compile_model(*arguments)

        def get_versions(self, device):
            return core.get_versions(device)

    monkeypatch.setattr(ahead, "core", Core)
    return found


def loaded(model, label: str = "a model", **settings) -> OpenVinoRunner:
    with store.loading(label):
        return OpenVinoRunner(model, **settings)


def small(kind: str = "gpt2", **settings):
    return tiny(kind, dtype=torch.float32, **settings)


def is_right(runner, model) -> bool:
    begin(runner, [[1, 2, 3]])
    scores = runner.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits
    return torch.allclose(scores[0, -1], plain_scores(model, [1, 2, 3, 4]), atol=1e-4)


def test_the_second_load_compiles_in_a_thread(compiling):
    assert is_right(loaded(small()), small())
    assert compiling == [True]
    for _ in range(2):
        del compiling[:]
        assert is_right(loaded(small()), small())
        assert compiling == [False]


def test_without_a_record_of_these_models_nothing_is_compiled_ahead(compiling):
    loaded(small())
    del compiling[:]
    loaded(small(), label="another model")
    assert compiling == [True]


def test_a_graph_of_other_weights_is_not_used(compiling):
    loaded(small())
    changed = small()
    with torch.no_grad():
        changed.get_output_embeddings().weight.mul_(-1)
    del compiling[:]
    runner = loaded(changed)
    assert sorted(compiling) == [False, True]
    assert is_right(runner, changed)
    assert not is_right(runner, small())
    del compiling[:]
    loaded(changed)
    assert compiling == [False]


def test_a_graph_for_another_number_of_threads_is_compiled_for_the_present_one(compiling):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        loaded(small())
        torch.set_num_threads(2)
        del compiling[:]
        loaded(small())
        assert compiling == [False]
    finally:
        torch.set_num_threads(before)
    [[(_, _, settings)]] = json.loads(record().read_text()).values()
    assert settings[ahead.THREADS] == 2


def test_graphs_that_are_no_longer_used_leave_the_record(compiling):
    loaded(small())
    with store.loading("a model"):
        pass
    del compiling[:]
    loaded(small())
    assert compiling == [True]


def test_a_stored_graph_that_is_damaged_or_gone_is_made_again(compiling):
    loaded(small())
    [weights] = store.store_folder().glob("*/model.bin")
    weights.unlink()
    del compiling[:]
    assert is_right(loaded(small()), small())
    assert compiling == [True]


@pytest.mark.parametrize(("old", "new"), [('"NUM_STREAMS": 1', '"NUM_STREAMS": "many"'), ('"CPU"', '"NOWHERE"')])
def test_what_the_thread_cannot_compile_is_compiled_by_the_load(compiling, old, new):
    loaded(small())
    record().write_text(record().read_text().replace(old, new))
    del compiling[:]
    assert is_right(loaded(small()), small())
    assert compiling == [False, True]


@pytest.mark.parametrize(
    "text", ["", "[1", "[]", '{"a model": 3}', '{"a model": [["folder"]]}', '{"a model": [["f", "CPU", 1]]}']
)
def test_a_damaged_record_is_replaced(compiling, text):
    loaded(small())
    record().write_text(text)
    del compiling[:]
    loaded(small())
    loaded(small())
    assert compiling == [True, False]


def test_without_memory_nothing_is_compiled_ahead(compiling, monkeypatch):
    loaded(small())
    monkeypatch.setattr(ahead, "available_memory", lambda: 1000)
    del compiling[:]
    loaded(small())
    assert compiling == [True]


def test_the_record_stays_short(compiling, monkeypatch):
    monkeypatch.setattr(ahead, "_LABELS", 2)
    for label in "abc":
        loaded(small(), label=label)
    assert list(json.loads(record().read_text())) == ["b", "c"]


def test_a_failed_load_leaves_the_record(compiling):
    loaded(small())
    before = record().read_text()
    with pytest.raises(KeyError), store.loading("a model"):
        raise KeyError("the load failed")
    assert record().read_text() == before


def record():
    return store.store_folder() / ahead._RECORD
