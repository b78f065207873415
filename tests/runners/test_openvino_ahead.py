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
    """For each compilation, whether it was in the loading thread. A model was loaded once; before, the cache was empty."""
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
    loaded()
    assert found == [True]
    found.clear()
    return found


def small():
    return tiny("gpt2", dtype=torch.float32)


def loaded(label: str = "a model", model=None) -> OpenVinoRunner:
    with store.loading(label):
        return OpenVinoRunner(model or small())


def is_right(runner, model) -> bool:
    begin(runner, [[1, 2, 3]])
    scores = runner.extend(torch.tensor([[4]]), torch.tensor([[0]]), torch.ones(1, 1, 1, dtype=torch.bool)).logits
    return torch.allclose(scores[0, -1], plain_scores(model, [1, 2, 3, 4]), atol=1e-4)


def record():
    return store.store_folder() / ahead._RECORD


def loaded_without_a_graph():
    with store.loading("a model"):
        pass


def failed_load():
    with pytest.raises(KeyError), store.loading("a model"):
        raise KeyError("the load failed")


def replaced(old: str, new: str):
    return lambda: record().write_text(record().read_text().replace(old, new))


CHANGES = {
    "nothing": (lambda: None, [False]),
    "a load that failed": (failed_load, [False]),
    "a load that used no graph": (loaded_without_a_graph, [True]),
    "a stored graph that is gone": (lambda: next(store.store_folder().glob("*/model.bin")).unlink(), [True]),
    "settings that cannot be compiled": (replaced('"NUM_STREAMS": 1', '"NUM_STREAMS": "many"'), [False, True]),
    "a device that is not there": (replaced('"CPU"', '"NOWHERE"'), [False, True]),
    **{
        f"the record {text!r}": (lambda text=text: record().write_text(text), [True])
        for text in ("", "[1", "[]", '{"a model": 3}', '{"a model": [["folder"]]}', '{"a model": [["f", "CPU", 1]]}')
    },
}


@pytest.mark.parametrize(("change", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_a_later_load_compiles_in_a_thread_what_the_last_one_used(change, expected, compiling):
    change()
    compiling.clear()
    assert is_right(loaded(), small())
    assert compiling == expected
    compiling.clear()
    loaded()
    assert compiling == [False]  # what was damaged is as before


def test_without_a_record_of_these_models_or_memory_nothing_is_compiled_ahead(compiling, monkeypatch):
    loaded(label="another model")
    monkeypatch.setattr(ahead, "available_memory", lambda: 1000)
    loaded()
    assert compiling == [True, True]


def test_a_graph_of_other_weights_is_not_used(compiling):
    changed = small()
    with torch.no_grad():
        changed.get_output_embeddings().weight.mul_(-1)
    runner = loaded(model=changed)
    assert sorted(compiling) == [False, True]
    assert is_right(runner, changed)
    assert not is_right(runner, small())
    compiling.clear()
    loaded(model=changed)
    assert compiling == [False]


def test_a_graph_for_another_number_of_threads_is_compiled_for_the_present_one(compiling):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            loaded()
        assert compiling == [False, False]
    finally:
        torch.set_num_threads(before)
    [[(_, _, settings)]] = json.loads(record().read_text()).values()
    assert settings[ahead.THREADS] == 2


def test_the_record_stays_short(compiling, monkeypatch):
    monkeypatch.setattr(ahead, "_LABELS", 2)
    for label in "abc":
        loaded(label=label)
    assert list(json.loads(record().read_text())) == ["b", "c"]
