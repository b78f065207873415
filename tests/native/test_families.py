"""The scores of every family are those of its own model, and each of its settings counts."""

import re

import pytest
import torch

from draftwood.core.errors import ModelError
from draftwood.runners.native import experts, sources, stored
from draftwood.runners.native.rotary import Rotary
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.rows import Row
from tests.differences import difference
from tests.runners.zoo import NATIVE, VOCAB, tiny

TEXT = torch.randint(VOCAB, (1, 60), generator=torch.Generator().manual_seed(0))
HEADS = {"hidden_size": 48, "num_attention_heads": 6}
FULL = {"layer_types": ["full_attention"] * 2}
CHANGES = [
    ("smollm3", {"no_rope_layers": [1, 1]}),
    ("smollm3", FULL),
    ("granite", {"embedding_multiplier": 1.0}),
    ("granite", {"residual_multiplier": 1.0}),
    ("granite", {"attention_multiplier": 1.0}),
    ("granite", {"logits_scaling": 1.0}),
    ("phi3", {"sliding_window": None}),
    ("mixtral", {"num_experts_per_tok": 3}),
    ("qwen3_moe", {"norm_topk_prob": True}),
    ("qwen3_moe", {"mlp_only_layers": []}),
    ("qwen3_next", {"norm_topk_prob": True}),
    ("gpt_oss", {"num_experts_per_tok": 2}),
    ("gpt_oss", {"swiglu_limit": 7.0}),
    ("gpt_oss", {"swiglu_alpha": 1.7}),
    ("gpt_oss", {"rope_parameters": {**NATIVE["gpt_oss"]["rope_parameters"], "truncate": True}}),
    ("gpt_oss", FULL),
    ("ministral3", {"rope_parameters": {**NATIVE["ministral3"]["rope_parameters"], "llama_4_scaling_beta": 0.1}}),
    ("granitemoe", {"num_experts_per_tok": 2}),
    ("granitemoehybrid", {"position_embedding_type": None}),
    ("granitemoehybrid", {"num_local_experts": 0}),
    ("gemma2", {"attn_logit_softcapping": None}),
    ("gemma2", {"final_logit_softcapping": None}),
    ("gemma2", {"hidden_activation": "silu"}),
    ("gemma2", FULL),
    ("gemma3_text", {"query_pre_attn_scalar": 99}),
    ("gemma3_text", {"final_logit_softcapping": None}),
    ("gemma3_text", FULL),
    ("gemma4_text", {"attention_k_eq_v": False}),
    ("gemma4_text", {"enable_moe_block": False}),
    ("gemma4_text", {"top_k_experts": 4}),
    ("gemma4_text", {"num_global_key_value_heads": 2}),
    ("gemma4_text", {"num_kv_shared_layers": 0}),
    ("gemma4_text", {"use_double_wide_mlp": False}),
    ("gemma4_text", {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
    ("gemma4_text", {"final_logit_softcapping": None}),
    ("gemma4_text", {"layer_types": ["sliding_attention", *["full_attention"] * 4]}),
]
"""Models that differ in one setting."""


def model_of(kind, dtype, **settings):
    """A model with random norms and biases: those of a new model are all alike."""
    model = tiny(kind, 1, dtype=dtype, **{**HEADS, **NATIVE[kind], **settings})
    scalars = [(name, scalar) for name, scalar in model.named_buffers() if name.endswith("layer_scalar")]
    for name, weight in (*model.named_parameters(), *scalars):
        if "norm" in name or name.endswith(("scalar", "r.scale", "t_scale")) or ("bias" in name and "dt_" not in name):
            weight.data += 0.5 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name)))
    return model


def native(model):
    """Scores and hidden states after each token of the text."""
    layers = tuple(range(model.config.num_hidden_layers + 1))
    runner, size = NativeRunner(model, hidden_layers=layers), TEXT.shape[1]
    runner.set_rows([Row(tokens=TEXT[0, :1].tolist())])
    found = runner.extend(TEXT, torch.arange(size).unsqueeze(0), torch.ones(1, size, size, dtype=torch.bool).tril())
    assert found.hidden is not None
    return found.logits[0].double(), found.hidden[0].double()


@torch.no_grad()
def plain(model):
    """The same of the model itself."""
    found = model(input_ids=TEXT, use_cache=False, output_hidden_states=True)
    return found.logits[0].double(), torch.cat(found.hidden_states, dim=-1)[0].double()


@pytest.mark.parametrize("kind", NATIVE)
def test_a_family_is_computed_as_by_its_model_and_rounded_less(kind):
    model = model_of(kind, torch.float32)
    for mine, wanted in zip(native(model), plain(model), strict=True):
        assert difference(mine, wanted) < 1e-5 * wanted.abs().max()
    rounded = model.to(torch.bfloat16)
    mine, own = native(rounded), plain(rounded)
    for mine_is, own_is, wanted in zip(mine, own, plain(rounded.float()), strict=True):
        assert (mine_is - wanted).abs().mean() < (own_is - wanted).abs().mean()


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_control_the_text_shows_every_setting(kind, change):
    (scores, _), (others, _) = plain(model_of(kind, torch.float32)), plain(model_of(kind, torch.float32, **change))
    assert difference(scores, others) > 0.05
    mine, _ = native(model_of(kind, torch.float32, **change))
    assert difference(mine, others) < 1e-5 * others.abs().max()


def changed(name, change):
    """Something of stored models that changes what it returns."""
    own = getattr(stored.StoredModel, name)
    return stored.StoredModel, name, lambda *given, **more: change(own(*given, **more))


SCALE = stored.StoredModel.embedding_scale
PARTS = [
    ("gpt_oss", sources, "SINKS", "no weight"),
    ("gpt_oss", experts.Matrix, "ALTERNATING", 0),
    ("gpt_oss", sources, "expert_sources",
     lambda *given: {name: one for name, one in experts.expert_sources(*given).items() if "bias" not in name}),
    ("gemma4_text", stored, "lender_of", lambda config, number: {3: 3, 4: 3}.get(number, 0)),  # layer 0 lends to layer 3
    ("gemma4_text", sources, "SCALAR", "no weight"),
    *(("gemma4_text", sources, "ROUTER", {**sources.ROUTER, name: "no weight"}) for name in sources.ROUTER),
    ("gemma4_text", *changed("facts", lambda found: setattr(found, "norm_values", 0) or found)),
    ("gemma4_text", stored.StoredModel, "embedding_scale", lambda self, *table: 0.0 if table else SCALE(self)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "place", "name", "wrong"), PARTS)
def test_control_each_part_of_an_odd_family_counts(kind, place, name, wrong, monkeypatch):
    model = model_of(kind, torch.float32)
    NativeRunner(model)
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(ModelError, match="scores a text differently"):
        NativeRunner(model)


@pytest.mark.parametrize(("kind", "settings", "reason"), [
    ("gemma3_text", {"hidden_activation": "gelu"}, "it has no code for hidden_activation 'gelu'"),
    ("gemma3_text", {"final_logit_softcapping": 0.0}, "its final_logit_softcapping is 0.0"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "its tokens see later ones"),
    ("gemma4_text", {"use_bidirectional_attention": "all"}, "its tokens see later ones"),
    ("gemma4_text", {"vocab_size_per_layer_input": 90}, "it reads 97 tokens, and layers have inputs of 90"),
    ("gemma4_text", {"rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
                                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
     "it has no code for rotary embeddings of type 'linear'"),
    ("granitemoehybrid", {"hidden_act": "gelu_pytorch_tanh"}, "no code for hidden_act 'gelu_pytorch_tanh' in layers with a"),
    *((kind, {setting: value}, f"it has no code for {setting} {value}") for kind, setting, value in [
        ("lfm2", "conv_bias", True), ("lfm2_moe", "use_expert_bias", False), ("lfm2_moe", "routed_scaling_factor", 2.0),
        ("granitemoehybrid", "mamba_proj_bias", True), ("granitemoehybrid", "mamba_conv_bias", False),
        ("granitemoehybrid", "time_step_limit", (0.1, 1.0)),
    ]),
])  # fmt: skip
def test_settings_without_code_are_refused(kind, settings, reason):
    with pytest.raises(ModelError, match=re.escape(reason)):
        NativeRunner(tiny(kind, dtype=torch.float32, **{**NATIVE[kind], **settings}))


@pytest.mark.parametrize(("kind", "said"), [
    *((kind, "which only the native engine scores, of some models") for kind in ("qwen3_5_text", "lfm2", "bamba")),
    *((kind, "heads of several sizes, and some read keys and values of others, which only")
      for kind in ("gemma4_text", "gemma4_unified_text")),
])  # fmt: skip
def test_pytorch_says_which_engine_runs_it(kind, said):
    with pytest.raises(ModelError, match=rf"{said}.*--backend native"):
        TorchRunner(tiny(kind, dtype=torch.float32, **NATIVE[kind]))


def test_factors_of_queries_do_not_depend_on_the_default_format():
    config, found = tiny("ministral3", **NATIVE["ministral3"]).config, []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            found.append(Rotary(config).queries(2000))
        finally:
            torch.set_default_dtype(torch.float32)
    assert found[0] is not None
    assert found[0].dtype == torch.float32
    assert torch.equal(found[0], found[1])


def test_an_embedding_that_does_not_say_its_factors_is_refused():
    rotary = {key: value for key, value in NATIVE["ministral3"]["rope_parameters"].items() if key != "llama_4_scaling_beta"}
    model = tiny("ministral3", dtype=torch.float32, **NATIVE["ministral3"])
    model.config.rope_parameters = rotary
    with pytest.raises(ModelError, match="does not say llama_4_scaling_beta"):
        NativeRunner(model)
