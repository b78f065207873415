"""Texts begin while their keys and values fit in memory; what never fits is refused with numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwood import ConfigError, Pair
from draftwood.serve.admission import Admission
from draftwood.serve.settings import ServeOptions
from tests.helpers import hidden_pair, published_pair, tiny_gpt
from tests.serve import shapes
from tests.serve.conftest import completion, loaded, make_service, metric, serving

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def served(folders: tuple[Path, Path]) -> Pair:
    return loaded(folders)


def room(pair: Pair, tokens: int) -> float:
    """GiB for the keys and values of so many tokens."""
    return (tokens + 0.5) * Admission(pair, 1, 1.0).token / 2**30


def test_bytes_of_a_token_are_those_of_the_memory_that_the_models_keep(served: Pair) -> None:
    from transformers import DynamicCache

    kept = 0
    for runner in (served.target, served.draft):
        assert runner is not None
        memory = DynamicCache()
        ids = served.target.another().model.dummy_inputs["input_ids"][:1, :4]
        runner.model(ids % 200, past_key_values=memory)  # type: ignore[attr-defined]
        kept += sum(layer.keys.nbytes + layer.values.nbytes for layer in memory.layers) // ids.shape[1]
    assert Admission(served, 1, 1.0).token == kept > 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "own"])
def test_the_memory_of_drafters_of_hidden_states_counts_too(kind: str) -> None:
    model = tiny_gpt(12, 1, dtype=torch.float32)
    draft = (hidden_pair(model) if kind == "own" else published_pair(model, kind))[1]
    config = draft.model.config  # type: ignore[attr-defined]
    wanted = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4
    assert draft.token_bytes == wanted > 0  # type: ignore[attr-defined]


def test_texts_wait_for_memory_and_are_the_same(served: Pair) -> None:
    body = completion(n=4)
    with serving(make_service(served)) as client:
        assert 0 <= metric(client, "kv_cache_usage_perc") < 1
        free = client.post(COMPLETIONS, json=body).json()["choices"]
    length = len(served.encode("the fox ran")) + 16
    service = make_service(served, max_memory=room(served, 2 * length))
    most = 0
    rows = service.scheduler._rows
    step = rows.step

    def watched() -> None:
        nonlocal most
        step()
        most = max(most, rows.running)
        assert rows.memory <= 1

    rows.step = watched  # type: ignore[method-assign]
    with serving(service) as client:
        assert client.post(COMPLETIONS, json=body).json()["choices"] == free
        assert metric(client, "kv_cache_usage_perc") == 0
    assert most == 2


def test_a_text_that_never_fits_is_refused_with_numbers(served: Pair) -> None:
    length = len(served.encode("the fox ran")) + 16
    with serving(make_service(served, max_memory=room(served, length))) as client:
        assert client.post(COMPLETIONS, json=completion()).status_code == 200
        response = client.post(COMPLETIONS, json=completion(max_tokens=17))
        assert response.status_code == 400
        shapes.check_error(response.json())
        assert "up to 17 more" in response.json()["error"]["message"]


def test_texts_that_wait_for_memory_end_with_the_server(served: Pair) -> None:
    service = make_service(served, max_memory=room(served, 420))
    with serving(service) as client:
        rows = service.scheduler._rows
        step = rows.step

        def cut() -> None:
            step()
            rows.step = step  # type: ignore[method-assign]
            service.scheduler.cut()

        rows.step = cut  # type: ignore[method-assign]
        found = client.post(COMPLETIONS, json=completion(n=3, max_tokens=400, ignore_eos=True)).json()
    assert [choice["finish_reason"] for choice in found["choices"]] == ["length"] * 3
    assert sum(bool(choice["text"]) for choice in found["choices"]) <= 1


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_memory_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="max_memory"):
        ServeOptions(max_memory=value)
