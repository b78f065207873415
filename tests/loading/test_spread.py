"""A target on several devices: here the CPU and the disk, from which accelerate reads weights for each forward."""

import json
import sys

import pytest
import torch
from click.testing import CliRunner

import draftwood
from draftwood import Limits, LoadOptions, Method, Request
from draftwood.cli import main
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.methods import METHODS
from draftwood.core.verifiers import VERIFIERS
from draftwood.runners.cache import TreeCache
from draftwood.sampling.settings import Sampling
from tests.helpers import chunks, rest_of, tiny_hidden
from tests.tiny_chat import save_chat

REST = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
SPLIT = {**REST, "model.layers.0": "cpu", "model.layers.1": "disk", "model.layers.2": "cpu"}
PROMPTS = ["the fox", "a hen and a cow and", "an owl", "the the the a the the the a", "b"]
CHAT = [{"role": "user", "content": "the fox"}]


def loaded(folder, draft="draft", **more):
    options = {"dtype": "float64", "backend": "torch", "profile": "none", "threads": 1, **more}
    return draftwood.load(folder / "target", folder / draft, options=LoadOptions(**options))


def texts(pair):
    """Token ids by what made them."""
    found = {}
    for name in ("chain", "rsd-s", "adaptive"):
        drawn = [one for one in METHODS[name].verifiers if not VERIFIERS[one].greedy_only]
        for verifier, temperature in [("auto", 0.0), *((verifier, 1.0) for verifier in drawn)]:
            method = Method(method=name, verifier=verifier)
            made = pair.generate(PROMPTS[0], method=method, seed=3, temperature=temperature, max_new_tokens=7)
            found[f"{name} {verifier} {temperature}"] = made.token_ids
    for method in (Method(method="rsd-s", shape="2x3"), Method(method="shared-noise", nodes=6)):
        results = pair.generate(PROMPTS, method=method, seed=5, temperature=1.0, max_new_tokens=7)
        found[f"batch {method.method}"] = [one.token_ids for one in results]
    return found | come_and_go(pair)


def come_and_go(pair):
    """Rows that end at different times, and prompts that are read in parts while others go on; chats; a prompt's scores."""
    prompts = [pair.encode(text * (20 if i == 2 else 1)) for i, text in enumerate(PROMPTS)]
    requests = [Request(prompt=ids, seed=i, limits=Limits(max_new_tokens=3 + 4 * i)) for i, ids in enumerate(prompts)]
    decoder = pair.decoder(Method(method="chain", shape="3"), temperature=1.0)
    with chunks(8), decoder.batch(rows=2) as batch:
        for request in requests:
            batch.add(request, Sampling(temperature=1.0))
        written = rest_of(batch)
    chat, answers = list(CHAT), []
    for _ in range(2):
        answers.append(pair.chat(chat, max_new_tokens=8, temperature=0.0, method="adaptive"))
        chat += [{"role": "assistant", "content": answers[-1].text}, *CHAT]
    scores = [one.logprob for one in pair.prompt_logprobs("a hen and a cow") if one is not None]
    with pytest.raises(CacheError) as refused:
        pair.generate("the fox " * 300, max_new_tokens=4)
    return {
        "rows": [written[row] for row in sorted(written)],
        "chats": [one.token_ids for one in answers],
        "scores": [round(score, 6) for score in scores],
        "refused": str(refused.value),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    save_chat(folder / "target", num_attention_heads=4, hidden_size=32, num_key_value_heads=2, layers=3)
    save_chat(folder / "draft", layers=1, seed=1)
    return folder


@pytest.fixture(scope="module")
def alone(folder):
    return texts(loaded(folder))


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
    assert texts(pair) == alone


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
