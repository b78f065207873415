"""Models that are read from their files: facts, weights and scores of every family are those of ``transformers``."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from draftwood.loading.causal import stored_folder
from draftwood.runners.native.facts import shapes_of
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import HEAD
from draftwood.runners.native.refusals import why_not_config
from draftwood.runners.native.rotary import Rotary
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.native.stored import StoredModel, source_of
from draftwood.runners.native.weights import FLOATS, Weight
from draftwood.runners.plain_config import PlainConfig
from draftwood.sampling.rows import Row
from tests.native.test_bits import FORMATS, PARENTS, TEXT, score
from tests.runners.zoo import NATIVE, WINDOWED, tiny

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LESS = {name: value for name, value in YARN.items() if name != "original_max_position_embeddings"}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.5, 2.0] * 2, "long_factor": [2.0] * 6,
    "original_max_position_embeddings": 256, "partial_rotary_factor": 0.75,
}  # fmt: skip
GEMMA = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
PLAIN = "llama mistral ministral3 qwen2 qwen3 smollm3 olmo2 granite phi3 gemma2 gemma3_text exaone4 ernie4_5"
DENSE = {**NATIVE["granitemoehybrid"], "layer_types": ["full_attention"] * 2, "num_local_experts": 0}
CASES = {
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "llama, yarn": ("llama", {"rope_parameters": YARN}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral, full": ("mistral", {"sliding_window": None}),
    "granitemoehybrid, dense": ("granitemoehybrid", DENSE),
    "granitemoehybrid, dense, unrotated": ("granitemoehybrid", {**DENSE, "position_embedding_type": None}),
    "qwen2, sliding": ("qwen2", {**WINDOWED["qwen2"], "sliding_window": 7}),
    "qwen3, biases, tied": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    **{kind: (kind, NATIVE[kind]) for kind in PLAIN.split()},
    "smollm3, biases": ("smollm3", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "olmo2, biases": ("olmo2", {"attention_bias": True, "head_dim": 20}),
    "granite, biases, tied": ("granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "phi3, longrope": ("phi3", {"head_dim": 16, "rope_parameters": LONGROPE, "max_position_embeddings": 1024}),
    "gemma2, biases, tied": ("gemma2", {"hidden_size": 96, "attention_bias": True}),
    "gemma3_text, linear": ("gemma3_text", {"hidden_size": 96, "rope_parameters": GEMMA}),
}
FILLED = ("ministral3", "granitemoehybrid", "qwen2, sliding", "smollm3", "phi3", "gemma", "exaone4", "ernie4_5")
"""Families and cases whose classes of ``transformers`` add to their configurations."""


def stored(model, *, coded=False, kind=None):
    """A live model as if it were read from a file, in its number format or in that of GGML's number ``kind``."""
    weights, kind = {}, {torch.float32: 0, torch.bfloat16: 30}[model.dtype] if kind is None else kind
    for name, weight in model.named_parameters():
        data = weight.detach().to(FLOATS[kind]).contiguous().view(-1).view(torch.uint8).numpy()
        weights[name] = Weight(data=data, kind=kind, shape=tuple(weight.shape))
    return StoredModel(model.config, model.generation_config, weights, model.dtype, coded=coded)


def scores(model, *, check=True):
    runner = NativeRunner(model, check=check, hidden_layers=(0, 1, 2))  # the check compares a live model with itself
    runner.set_rows([Row(tokens=TEXT[:70])])
    return score(runner, [[TEXT[69], *range(1, len(PARENTS))]], PARENTS)


def saved(model, folder):
    """A model after it was written to a folder, and read by ``transformers``."""
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, dtype=model.dtype).eval()


def check_read(folder, model, *, check=True):
    """A folder is read without the model of ``transformers``, whose scores it has; returns what was read."""
    found = stored_folder(folder)
    assert found is not None
    found.dtype = model.dtype
    assert torch.equal(scores(found, check=check), scores(model, check=check))
    assert "module" not in vars(found)
    return found


def check_module(found, model):
    """Also as a model of ``transformers`` it is the same."""
    ids = torch.tensor([TEXT[:9]])
    assert torch.equal(found.get_input_embeddings()(ids), model.get_input_embeddings()(ids))
    assert torch.equal(found(ids).logits, model(ids).logits)


def write_as_before_version_5(path):
    """Rewrite a configuration: its rotary settings are named as they were, and false flags are left out."""
    raw = json.loads(path.read_text())
    scaling = raw.pop("rope_parameters")
    raw["rope_theta"] = scaling.pop("rope_theta")
    raw["rope_scaling"] = scaling if scaling["rope_type"] != "default" else None
    path.write_text(json.dumps({name: value for name, value in raw.items() if value is not False}))


def same_rotation(found, model):
    """Check cosines and sines against those of the model's own module."""
    module = model.model.rotary_emb
    kinds = [[kind] for kind in Rotary(model.config).layer_types] or [[]]
    theirs = [module(torch.zeros(1), torch.arange(200).unsqueeze(0), *kind) for kind in kinds]
    for ours, wanted in zip(Rotary(found.config)(200), zip(*theirs, strict=True), strict=True):
        assert torch.equal(ours, torch.cat(wanted)[..., : ours.shape[-1]])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_family_is_read_from_its_files_as_transformers_reads_it(tmp_path, case, dtype):
    kind, settings = CASES[case]
    model = tiny(kind, 1, dtype=dtype, **{"hidden_size": 64, **settings})
    for name, weight in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    if dtype == torch.bfloat16 and kind not in ("phi3", "gemma3_text", "ministral3"):
        write_as_before_version_5(tmp_path / "config.json")
    model = type(model).from_pretrained(tmp_path, dtype=dtype).eval()
    found = check_read(tmp_path, model)
    assert isinstance(found.config, PlainConfig) != case.startswith(FILLED)
    names = dict(model.named_parameters())
    assert found.weights.keys() == names.keys()
    assert shapes_of(found.config) | {HEAD: found.head.shape} == {
        HEAD: model.lm_head.weight.shape, **{name: weight.shape for name, weight in names.items()},
    }  # fmt: skip
    assert source_of(found).facts().scale == torch.tensor(model.model.layers[0].self_attn.scaling).item()
    if "unrotated" not in case:
        same_rotation(found, model)
    check_module(found, model)
    assert said(found.generation_config) == said(model.generation_config)


def test_generate_has_the_generation_config_that_was_set_last():
    found = stored(tiny("llama", 1, dtype=torch.float32, **NATIVE["llama"]))
    for length in (3, 5):  # before and after the model of transformers is built
        found.generation_config = GenerationConfig(max_new_tokens=length, do_sample=False)
        assert found.generate(torch.tensor([TEXT[:4]])).shape == (1, 4 + length)


@pytest.mark.parametrize("kind", ["mistral", "ministral3", "gemma3_text"])
def test_the_text_of_a_model_of_text_and_pictures_is_read(tmp_path, kind):
    model = tiny(kind, 1, dtype=torch.float32, **{**NATIVE[kind], "tie_word_embeddings": False})
    model.save_pretrained(tmp_path)
    own = load_file(tmp_path / "model.safetensors")
    pictures = {"vision_tower.a": torch.ones(1), "multi_modal_projector.b": torch.ones(1)}
    text = model.config.to_diff_dict() if kind == "gemma3_text" else json.loads((tmp_path / "config.json").read_text())
    whole = {"model_type": FAMILIES[kind].whole, "text_config": text, "architectures": ["Mistral3ForConditionalGeneration"]}
    (tmp_path / "config.json").write_text(json.dumps({**whole, "tie_word_embeddings": False}))
    old = {f"language_model.{name}": weight for name, weight in own.items()}
    new = {name.replace("model.", "model.language_model.", 1): weight for name, weight in own.items()}
    for named in (old, new):
        save_file({**named, **pictures}, tmp_path / "model.safetensors")
        check_read(tmp_path, model)


def test_a_stored_model_assists_generate():
    model = tiny("llama", 1, dtype=torch.float32)
    ids, settings = torch.tensor([TEXT[:9]]), {"max_new_tokens": 8, "do_sample": False}
    assisted = stored(model).generate(ids, assistant_model=stored(model), **settings)
    assert torch.equal(assisted, model.generate(ids, **settings))


def said(generation_config):
    """What a generation config sets."""
    values = generation_config.to_dict().items()
    return {name: value for name, value in values if value not in (None, "") and value is not False and name[0] != "_"}


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_numbers_of_another_format_are_converted(tmp_path, family, kind):
    model = tiny(family, 1, dtype=getattr(torch, kind))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(tmp_path)
    for dtype in FORMATS:
        check_read(tmp_path, type(model).from_pretrained(tmp_path, dtype=dtype).eval())


@pytest.mark.parametrize(("kind", "settings"), [
    ("llama", {"hidden_act": "gelu"}), ("llama", {"rope_parameters": {**YARN, "rope_type": "dynamic"}}),
    ("llama", {"sliding_window": 7}), ("llama", {"attention_chunk_size": 64}), ("olmo2", {"sliding_window": 7}),
    ("granite", {"rope_parameters": {**YARN, "partial_rotary_factor": 0.5}}), ("smollm3", {"mlp_bias": True}),
    ("smollm3", {"rope_parameters": {**YARN, "rope_type": "dynamic"}}), ("phi3", {"layer_types": ["full_attention"] * 2}),
    ("granite", {"residual_multiplier": 0.0}), ("gemma2", {"final_logit_softcapping": 0.0}),
    ("llama", {"is_causal": False}), ("smollm3", {"no_rope_layers": [0]}),
    ("gemma2", {"hidden_activation": "gelu"}), ("gemma3_text", {"use_bidirectional_attention": True}),
    ("gemma3_text", {"rope_parameters": {**GEMMA, "full_attention": {**YARN, "rope_type": "dynamic"}}}),
])  # fmt: skip
def test_what_its_facts_do_not_cover_is_left_to_transformers(tmp_path, kind, settings):
    model = tiny(kind, 1, dtype=torch.float32)
    assert why_not_config(model.config) is None
    model.config.update(settings)
    model.save_pretrained(tmp_path)
    assert stored_folder(tmp_path) is None


@pytest.mark.parametrize(("given", "read"), [
    ({"rope_parameters": YARN}, True), ({"rope_parameters": LESS}, False),
    ({"rope_parameters": YARN, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, False),
    ({"rope_parameters": {"type": "linear", "factor": 2.0, "rope_theta": 100.0}}, False),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_theta": 100.0}, False),
    ({"rope_parameters": {"rope_type": "default"}}, False), ({"rope_parameters": None}, False),
    ({"partial_rotary_factor": 0.5}, False),
])  # fmt: skip
def test_a_rotary_setting_that_transformers_completes_is_left_to_it(tmp_path, given, read):
    tiny("llama", 1, dtype=torch.float32).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | given
    (tmp_path / "config.json").write_text(json.dumps(raw))
    found, theirs = stored_folder(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(found and found.config, PlainConfig) == read
    if found:
        same_rotation(found, theirs)


def test_a_tied_head_that_differs_is_used(tmp_path, caplog):
    model = tiny("llama", 1, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(config.replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    found = stored_folder(tmp_path)
    assert found is not None
    assert "two different ones" in caplog.text
    assert np.array_equal(found.head.tensor(torch.float32), model.lm_head.weight.detach())
    assert torch.equal(scores(found), scores(model))
