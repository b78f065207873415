"""A target on several devices: here the CPU and the disk, from which accelerate reads weights for each forward."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner

import draftwood
from draftwood import LoadOptions
from draftwood.cli import main
from draftwood.core.errors import ConfigError
from draftwood.runners.cache import TreeCache
from tests.helpers import tiny_hidden
from tests.runners.shared_cases import SOME, loaded, texts
from tests.tiny_chat import save_chat

REST = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
SPLIT = {**REST, "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    save_chat(folder / "target", num_attention_heads=4, hidden_size=32, num_key_value_heads=2, layers=3)
    save_chat(folder / "draft", layers=1, seed=1)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return texts(loaded(folder), SOME)


@pytest.mark.parametrize(
    ("device_map", "engine"),
    [
        (SPLIT, "torch (cpu, disk)"),
        (json.dumps({**REST, "model.layers": "disk"}), "torch (cpu, disk)"),
        ({"": "cpu"}, "torch"),
    ],
)
def test_texts_are_those_of_one_device(folder, alone, device_map, engine):
    pair = loaded(folder, backend="auto", device_map=device_map)
    assert (pair.target.engine, pair.draft.engine) == (engine, "torch")
    assert texts(pair, SOME) == alone


@pytest.mark.parametrize("split", [False, True])
def test_each_layer_keeps_its_entries_on_its_device(split):
    devices = ["cpu", "meta"] if split else ["cpu", "cpu"]

    def states(layer, rows):
        return torch.arange(rows * 6.0).reshape(rows, 1, 6, 1).to(devices[layer])

    cache, other = TreeCache(2, split=split), TreeCache(2, split=split)
    for one, rows in ((cache, 2), (other, 1)):
        for layer in (0, 1):
            keys, values = one.update(states(layer, rows), states(layer, rows), layer)
            assert {str(keys.device), str(values.device)} == {devices[layer]}
    cache.reserve(300)
    cache.compact([[0, 4], [3, 5]], [2, 1])
    cache.copy_row(other, 0, 6)
    cache.drop([0])
    cache.compact([[3]], [0])
    begun = cache.another()
    begun.copy_row(cache, 1, 3)
    begun.compact([[2]], [0])
    entries = begun.buffers[0][0][0]
    assert entries[0, 0, :3, 0].tolist() == [2, 1, 2]
    assert cache.buffers[0][0][0, 0, 0, :6, 0].tolist() == [9, 9, 11, 9, 10, 11]
    assert [str(part[0].device) for part in cache.buffers.values()] == (devices if split else ["cpu"])


@pytest.mark.parametrize(
    ("device_map", "said"),
    [
        ("nope", "device_map is 'nope': give auto, balanced"),
        (5, "device_map is 5"),
        ("{model", "is not valid JSON"),
        ({"": "cuda:99"}, "device_map names the device 'cuda:99'"),
        ({"": 99}, "device_map names the device 99"),
        ({"": "disk"}, "the whole model on the disk"),
        ({"transformer": "cpu"}, "'transformer', which is no module"),
    ],
)
def test_maps_that_are_refused(folder, device_map, said):
    with pytest.raises(ConfigError, match=said):
        loaded(folder, backend="auto", device_map=device_map)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"backend": "native"}, "backend 'native' is impossible with device_map: PyTorch"),
        ({"device": "cpu"}, "device 'cpu' is impossible with device_map: the map names them"),
        ({"weights": "int8"}, "weights 'int8' are impossible with device_map"),
        ({"tensor_parallel": True}, "device_map is impossible with tensor_parallel"),
    ],
)
def test_options_that_exclude_it(more, said):
    with pytest.raises(ConfigError, match=said):
        LoadOptions(**{"device_map": "auto", **more})


def test_models_that_it_is_not_for(folder, tmp_path, monkeypatch):
    model = loaded(folder).model
    tiny_hidden(model).save_pretrained(folder / "hidden")
    with pytest.raises(ConfigError, match="reads the target's hidden states, which device_map"):
        loaded(folder, "hidden", backend="auto", device_map=SPLIT)
    options = LoadOptions(device_map="auto")
    with pytest.raises(ConfigError, match="device_map 'auto' was given, but it is for causal language models only"):
        draftwood.load_translator(options=options)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ConfigError, match="needs the package accelerate"):
        draftwood.load(folder / "target", options=options)


def test_the_command_takes_a_map_as_json(folder):
    options = ["generate", "--target", str(folder / "target"), "--dtype", "float64", "--profile", "none", "--seed", "5"]
    given = [*options, "--temperature", "1", "--max-new-tokens", "8", "the fox"]
    alone = CliRunner().invoke(main, [*given, "--backend", "torch"])
    spread = CliRunner().invoke(main, [*given, "--device-map", json.dumps(SPLIT)])
    assert (spread.exit_code, spread.stdout) == (0, alone.stdout), spread.output
