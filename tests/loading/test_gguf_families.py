"""Every family in a GGUF file, as llama.cpp's converter writes it, is the model of ``transformers`` that was written."""

import math

import gguf
import numpy as np
import pytest
import torch

import draftwood
from draftwood.core.errors import DraftwoodError, ModelError
from draftwood.loading import names
from draftwood.loading.gguf_header import read_header
from draftwood.runners.native import facts, families
from draftwood.runners.native.family import Family, Gguf
from draftwood.runners.native.stored import StoredModel
from draftwood.runners.native.weights import Weight
from draftwood.runners.support import score_tree
from tests.differences import difference
from tests.helpers import with_experts_together
from tests.loading.gguf_files import F32, Q8_0, logits, source, write_gguf
from tests.native.test_mtp import random_head
from tests.runners.zoo import tiny

KINDS = {"F": "full_attention", "S": "sliding_attention"}
THETA = {"rope_type": "default", "rope_theta": 500.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.5, 2.0] * 2, "long_factor": [2.0] * 6,
    "partial_rotary_factor": 0.75, "original_max_position_embeddings": 96, "attention_factor": 1.2,
}  # fmt: skip
GEMMA3 = {KINDS["F"]: {**THETA, "rope_type": "linear", "factor": 4.0}, KINDS["S"]: {**THETA, "rope_theta": 10000.0}}
GEMMA4 = {
    "num_hidden_layers": 5, "layer_types": [KINDS[one] for one in "SFSSF"], "sliding_window": 8, "global_head_dim": 32,
    "hidden_size_per_layer_input": 0, "final_logit_softcapping": 3.0, "rope_parameters": {
        KINDS["F"]: {**THETA, "rope_type": "proportional", "partial_rotary_factor": 0.25}, KINDS["S"]: THETA}}  # fmt: skip
GEMMA4_SAID = {
    "attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16,
    "attention.value_length_swa": 16, "rope.dimension_count": 32, "rope.dimension_count_swa": 16,
    "rope.freq_base_swa": 500.0, "attention.sliding_window": 8,
    "attention.sliding_window_pattern": [True, False, True, True, False], "final_logit_softcapping": 3.0,
    "embedding_length_per_layer_input": 0, "attention.shared_kv_layers": 0,
}  # fmt: skip
SOFT = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
RULE = {
    "layer_types": ["linear_attention", KINDS["F"]], "linear_num_key_heads": 2, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "rope_parameters": {**THETA, "partial_rotary_factor": 0.5},
}  # fmt: skip
SAID = {
    "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "rope.dimension_count": 8,
    "rope.dimension_sections": [11, 11, 10, 0],
}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
COUNTS = {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
YARN = {
    **THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24, "beta_fast": 32.0, "beta_slow": 1.0,
    "truncate": False,
}  # fmt: skip
TEMPERED = {
    **{name: value for name, value in YARN.items() if name != "truncate"}, "llama_4_scaling_beta": 0.3, "mscale": 1.0,
    "mscale_all_dim": 1.0,
}  # fmt: skip
FACTORS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 0.6}
FACTORS_SAID = {"embedding_scale": 3.0, "residual_scale": 0.22, "attention.scale": 0.1, "logit_scale": 0.6}
MAMBA = {
    **FACTORS, "layer_types": ["linear_attention", KINDS["F"], "linear_attention"], "num_hidden_layers": 3,
    "mamba_n_heads": 4, "mamba_d_state": 32, "mamba_n_groups": 2, "shared_intermediate_size": 64,
}  # fmt: skip
SSM_SAID = {
    "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128,
}  # fmt: skip
MAMBA_SAID = {**FACTORS_SAID, **SSM_SAID, "attention.head_count_kv": [0, 2, 0]}
CASES = {
    "llama": ("llama", {}, {}),
    "llama, untied": ("llama", {"tie_word_embeddings": False, "num_key_value_heads": 1}, {}),
    "gemma2": (
        "gemma2", {**SOFT, "query_pre_attn_scalar": 16, "sliding_window": 8}, {**SOFT, "attention.sliding_window": 8}
    ),
    "gemma3": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16, "sliding_window": 8, "rope_parameters": GEMMA3, "num_hidden_layers": 6,
            "layer_types": [KINDS[one] for one in "SSSSSF"],
        },
        {"attention.sliding_window": 8, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "gemma3, full": ("gemma3_text", {
        "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0, "layer_types": [KINDS["F"]] * 2,
        "rope_parameters": dict.fromkeys(KINDS.values(), THETA)}, {"final_logit_softcapping": 3.0}),
    "gemma4": ("gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size": 128}, {
        **GEMMA4_SAID, "attention.key_length": None, "attention.head_count_kv": [2, 1, 2, 2, 1]}),
    "gemma4, small": ("gemma4_text", {
        **GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32}, {
        **GEMMA4_SAID, "attention.shared_kv_layers": 2, "feed_forward_length": [96] * 3 + [192] * 2,
        "embedding_length_per_layer_input": 32}),
    "gemma4, experts": ("gemma4_text", {
        **GEMMA4, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32,
        "written_joined": True, "attention_k_eq_v": True, "num_global_key_value_heads": 1}, {
        **GEMMA4_SAID, **COUNTS, "attention.head_count_kv": [2, 1, 2, 2, 1]}),
    "phi3": ("phi3", {"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}, "sliding_window": None}, {
        "rope.dimension_count": 8}),
    "phi3, long": ("phi3", {"rope_parameters": LONG, "sliding_window": 8}, {
        "rope.dimension_count": 12, "rope.scaling.original_context_length": 96, "rope.scaling.attn_factor": 1.2,
        "attention.sliding_window": 8}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 1, 0, 1], "num_hidden_layers": 5}, {}),
    "granite": ("granite", FACTORS, FACTORS_SAID),
    "granite, plain": ("granite", {"attention_multiplier": 0.25, "logits_scaling": 0.6}, {"logit_scale": 0.6}),
    "granite, of Granite 4": ("granite", FACTORS, {
        **FACTORS_SAID, **SSM_SAID, "attention.head_count_kv": [2, 2], "expert_count": 0, "expert_used_count": 0,
        "expert_shared_feed_forward_length": 96, "rope.scaling.finetuned": True}),
    "llama, fused": ("llama", {"attention_bias": True, "written_fused": True}, {}),
    "granitemoe": ("granitemoe", {
        **FACTORS, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32}, {
        **FACTORS_SAID, "expert_count": 6, "expert_used_count": 2}),
    "granitemoe, shared": ("granitemoehybrid", {
        **FACTORS, "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "mamba_n_heads": 4,
        "shared_intermediate_size": 64, "layer_types": [KINDS["F"]] * 2, "position_embedding_type": "rope"}, {
        **FACTORS_SAID, **COUNTS, **SSM_SAID, "expert_shared_feed_forward_length": 64, "rope.scaling.finetuned": True}),
    "granitehybrid": ("granitemoehybrid", {**MAMBA, "num_local_experts": 0}, {
        **MAMBA_SAID, "rope.scaling.finetuned": False, "feed_forward_length": 64}),
    "granitehybrid, experts": ("granitemoehybrid", {
        **MAMBA, "num_local_experts": 6, "num_experts_per_tok": 2, "position_embedding_type": "rope"}, {
        **MAMBA_SAID, "expert_count": 6, "expert_used_count": 2, "expert_shared_feed_forward_length": 64}),
    "mistral3": ("ministral3", {"rope_parameters": TEMPERED, "sliding_window": None}, {
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 24,
        "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.3}),
    "mistral3, plain": ("ministral3", {
        "rope_parameters": {**TEMPERED, "rope_type": "default", "llama_4_scaling_beta": 0.0}, "sliding_window": None}, {}),
    "olmo2": ("olmo2", {}, {}),
    "exaone4": (
        "exaone4",
        {"sliding_window": 8, "layer_types": [KINDS[one] for one in "SSF"], "num_hidden_layers": 3},
        {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True, True, False]},
    ),
    "exaone4, sliding": ("exaone4", {"sliding_window": 8, "layer_types": [KINDS["S"]] * 2}, {
        "attention.sliding_window": 8, "attention.sliding_window_pattern": 0}),
    "exaone4, full": ("exaone4", {"sliding_window": None, "layer_types": [KINDS["F"]] * 2}, {}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}, {}),
    "qwen35": ("qwen3_5_text", {**RULE, "linear_num_value_heads": 6}, {
        **SAID, "ssm.time_step_rank": 6, "ssm.inner_size": 192, "full_attention_interval": 2}),
    "qwen35, ahead": ("qwen3_5_text", {**RULE, "linear_num_value_heads": 2}, {
        **SAID, "ssm.time_step_rank": 2, "ssm.inner_size": 64, "attention.recurrent_layers": [True, False],
        "block_count": 3, "nextn_predict_layers": 1}),
    "qwen35moe": ("qwen3_5_moe_text", {
        **RULE, **EXPERTS, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 64,
        "written_joined": True}, {
        **SAID, **COUNTS, "ssm.time_step_rank": 4, "ssm.inner_size": 128, "full_attention_interval": 2,
        "expert_shared_feed_forward_length": 64}),
    "qwen35moe, ahead": ("qwen3_5_moe_text", {
        **RULE, **EXPERTS, "linear_num_value_heads": 2, "shared_expert_intermediate_size": 64}, {
        **SAID, **COUNTS, "ssm.time_step_rank": 2, "ssm.inner_size": 64, "full_attention_interval": 2,
        "expert_shared_feed_forward_length": 64, "block_count": 3, "nextn_predict_layers": 1}),
    "qwen3next": ("qwen3_next", {
        **RULE, **EXPERTS, "linear_num_value_heads": 6, "shared_expert_intermediate_size": 64}, {
        **SAID, **COUNTS, "ssm.time_step_rank": 6, "ssm.inner_size": 192, "full_attention_interval": 2}),
    "qwen3next, ahead": ("qwen3_next", {
        **RULE, **EXPERTS, "linear_num_value_heads": 2, "shared_expert_intermediate_size": 64}, {
        **SAID, **COUNTS, "ssm.time_step_rank": 2, "ssm.inner_size": 64, "full_attention_interval": 2,
        "expert_shared_feed_forward_length": 64, "block_count": 3, "nextn_predict_layers": 1}),
    "qwen3moe": ("qwen3_moe", {**EXPERTS, "norm_topk_prob": True}, {
        **COUNTS, "expert_feed_forward_length": None, "feed_forward_length": None}),
    "llama, experts": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}, {
        "expert_count": 6, "expert_used_count": 2}),
    "gpt-oss": ("gpt_oss", {
        "num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 8,
        "rope_parameters": YARN}, {
        **COUNTS, "attention.sliding_window": 8, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 24}),
    "llama, experts apart": ("mixtral", {"num_local_experts": 6, "num_experts_per_tok": 2}, {
        "expert_count": 6, "expert_used_count": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", KINDS["F"], "conv"], "num_hidden_layers": 3, "block_multiple_of": 32}, {
        "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "feed_forward_length": 64}),
    "lfm2moe": ("lfm2_moe", {
        **EXPERTS, "layer_types": ["conv", KINDS["F"], "conv"], "num_hidden_layers": 3, "num_dense_layers": 1}, {
        **COUNTS, "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "expert_gating_func": 2,
        "leading_dense_block_count": 1}),
    "lfm2moe, sparse": ("lfm2_moe", {
        **EXPERTS, "layer_types": ["conv", KINDS["F"], "conv"], "num_hidden_layers": 3, "num_dense_layers": 0}, {
        **COUNTS, "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "expert_gating_func": 2,
        "feed_forward_length": None}),
}  # fmt: skip
"""Name, model type, settings, and what a file says of them."""
AHEAD = {
    "fc": "nextn.eh_proj", "pre_fc_norm_embedding": "nextn.enorm", "pre_fc_norm_hidden": "nextn.hnorm",
    "norm": "nextn.shared_head_norm", "layers.0.input_layernorm": "attn_norm",
    "layers.0.post_attention_layernorm": "post_attention_norm", "layers.0.self_attn.o_proj": "attn_output",
    **{f"layers.0.self_attn.{name}_proj": f"attn_{name}" for name in "qkv"},
    **{f"layers.0.self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"},
    **{f"layers.0.mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")},
    **{f"layers.0.mlp.experts.{name}_proj": f"ffn_{name}_exps" for name in ("gate", "up", "down")},
    **{f"layers.0.mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "layers.0.mlp.gate": "ffn_gate_inp", "layers.0.mlp.shared_expert_gate": "ffn_gate_inp_shexp",
}  # fmt: skip
IDS = torch.randint(5, 60, (1, 40), generator=torch.Generator().manual_seed(0))[0].tolist()


def written(path, case, kind, more=None):
    """A file, which says ``more`` or does not say what is None there, and the model that it holds."""
    (own, settings, said), arch, tokenizer = CASES[case], case.partition(",")[0], source()[1]
    said = {**said, **(more or {})}
    sizes = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "vocab_size": len(tokenizer)}
    sizes |= {"vocab_size_per_layer_input": len(tokenizer)} if own == "gemma4_text" else {}
    rotary = {"rope_parameters": THETA, "max_position_embeddings": 96}
    model = tiny(own, 1, dtype=torch.float32, **{**sizes, **rotary, **settings})
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if name.endswith(("bias", "A_log", "sinks", ".D", "layer_scalar", "r.scale", "t_scale")) or "norm" in name:
            torch.nn.init.normal_(weight, 0.5, 0.3)
    parts = {name: value for name, value in settings.get("rope_parameters", {}).items() if name.endswith("_factor")}
    extra = {
        f"rope_factors_{name.removesuffix('_factor')}.weight": np.array(value, np.float32)
        for name, value in parts.items() if isinstance(value, list)
    }  # fmt: skip
    if own == "gemma4_text":
        model.config.allow_global_per_layer_attribute_access = True
        extra["rope_freqs.weight"] = np.array([1.0] * 4 + [1e30] * 12, np.float32)
    if said.get("nextn_predict_layers"):
        for name, weight in with_experts_together(random_head(model.config)).items():  # norms are added to one
            stem = AHEAD[name.removesuffix(".weight")]
            weight = (weight + ("norm" in name)).squeeze(0)  # as files of Qwen3-Next have the gate of the shared expert
            extra[f"blk.{model.config.num_hidden_layers}.{stem}.weight"] = weight.numpy()
    model.config.rms_norm_eps = getattr(model.config, "norm_eps", None) or model.config.rms_norm_eps
    model.config.rope_parameters = {**model.config.rope_parameters, **THETA}  # which the helper writes
    metadata = {f"{arch}.{name}": value for name, value in said.items()}
    model.config.written_apart = case.endswith("apart")
    plain = ("gate_inp", *(("ssm_alpha", "ssm_beta") if "ahead" in case else ()))
    return write_gguf(path, model, tokenizer, kind, arch=arch, metadata=metadata, extra=extra, plain=plain), model


@pytest.mark.parametrize("case", CASES)
def test_a_family_in_a_file_is_the_model_that_was_written(tmp_path, case):
    path, model = written(tmp_path / "fox.gguf", case, F32)
    pair = draftwood.load(path, options={"backend": "native", "dtype": "float32"})
    assert isinstance(pair.model, StoredModel)
    wanted = logits(model, IDS)[0]
    assert difference(logits(pair.model.module, IDS)[0], wanted) < 1e-5 * wanted.abs().max()
    found = score_tree(pair.target, IDS[20:], [list(range(i + 1)) for i in range(20)], prefix=IDS[:20])
    assert difference(found, wanted[20:].double()) < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_its_codes_are_computed_as_the_numbers_that_they_stand_for(tmp_path, case):
    path, _ = written(tmp_path / "fox.gguf", case, Q8_0)
    texts = {16: set(), 8: set()}
    for dtype, activations in (("auto", 16), ("bfloat16", 16), ("auto", 8)):
        pair = draftwood.load(path, options={"backend": "native", "dtype": dtype, "activations": activations})
        for method in ("ar", "ngram"):
            found = pair.generate(IDS, max_new_tokens=20, temperature=1, seed=1, method=method).token_ids
            texts[activations].add(tuple(found))
        assert (pair.model.coded, pair.model.dtype) == (dtype == "auto", torch.bfloat16)
        assert "module" not in vars(pair.model), "the model of transformers was built"
    assert len(texts[16]) == len(texts[8]) == 1


@pytest.mark.parametrize("case", ["qwen35, ahead", "qwen35moe, ahead", "qwen3next, ahead"])
def test_the_head_of_a_file_is_the_one_that_was_written_and_drafts(tmp_path, case, monkeypatch):
    path, model = written(tmp_path / "fox.gguf", case, F32)
    pair, none = (draftwood.load(path, draft, options={"backend": "native"}) for draft in (None, "none"))
    assert (pair.draft is None, none.draft is None) == (False, True)
    for name, weight in with_experts_together(random_head(model.config)).items():
        own = pair.draft_model.weights()[name]
        assert difference(own.tensor(torch.float32) if isinstance(own, Weight) else own, weight) < 1e-6, name
    texts = [
        one.generate(IDS, method=method, max_new_tokens=30, temperature=0.0).token_ids
        for one, method in ((pair, "rsd-s"), (none, "ar"))
    ]
    assert texts[0] == texts[1]
    coded, _ = written(tmp_path / "codes.gguf", case, Q8_0)
    monkeypatch.setattr(names, "locate", lambda name: coded)  # downloads it
    assert "MtpDrafter" in repr(draftwood.load("owner/fox-GGUF", options={"backend": "native"}))


@pytest.mark.parametrize(("case", "said", "words"), [
    ("qwen35", {"ssm.inner_size": 100}, "qwen35.ssm.inner_size 100"),
    ("qwen35", {"full_attention_interval": 0}, "qwen35.full_attention_interval 0"),
    ("qwen35", {"full_attention_interval": 3}, "lacks tensor 'blk.1.attn_qkv.weight'"),
    ("qwen35", {"rope.dimension_sections": [1, 0, 0, 3]}, r"qwen35.rope.dimension_sections \[1, 0, 0, 3\]"),
    ("qwen35", {"ssm.a_key_of_tomorrow": 1}, "qwen35.ssm.a_key_of_tomorrow 1, which is not read"),
    ("granitehybrid", {"ssm.group_count": 0}, "granitehybrid.ssm.group_count 0"),
    ("granitehybrid", {"ssm.state_size": 0}, "granitehybrid.ssm.state_size 0"),
    ("mistral3", {"rope.scaling.yarn_log_multiplier": None}, "does not say mistral3.rope.scaling.yarn_log_multiplier"),
    ("granitehybrid", {"ssm.state_size": None}, "does not say granitehybrid.ssm.state_size"),
    ("granite", {"attention.layer_norm_rms_epsilon": None}, "does not say granite.attention.layer_norm_rms_epsilon"),
    ("gpt-oss", {"attention.sliding_window": None}, "does not say gpt-oss.attention.sliding_window"),
    ("gpt-oss", {"rope.scaling.type": "dynamic"}, "gpt-oss.rope.scaling.type 'dynamic'"),
    ("gpt-oss", {"rope.scaling.yarn_ext_factor": 0.5}, "gpt-oss.rope.scaling.yarn_ext_factor 0.5"),
    ("granite", {"rope.scaling.finetuned": False}, "granite.rope.scaling.finetuned False"),
    ("mistral3", {"rope.scaling.yarn_log_multiplier": 0.1}, "mistral3.rope.scaling.yarn_log_multiplier 0.1"),
    ("mistral3", {"attention.temperature_length": 48}, "mistral3.attention.temperature_length 48"),
    ("qwen3moe", {"expert_gating_func": 2}, "qwen3moe.expert_gating_func 2, which is not read"),
    ("qwen3moe", {"expert_weights_norm": False}, "qwen3moe.expert_weights_norm False, but True is computed"),
    ("qwen3moe", {"expert_count": 7}, "'blk.0.ffn_gate_inp.weight' as 6 x 64, but its metadata make it 7 x 64"),
    ("lfm2moe", {"expert_gating_func": 1}, "lfm2moe.expert_gating_func 1, but 2 is computed"),
    ("gemma4", {"attention.value_length_swa": 8}, "gemma4.attention.value_length_swa 8, but 16 is computed"),
    ("gemma4", {"rope.dimension_count": 16}, "gemma4.rope.dimension_count 16, but 32 is computed"),
    ("gemma4", {"attention.head_count_kv": [2, 1, 2, 1, 1]}, "gemma4.attention.head_count_kv .* is not read"),
    ("gemma4", {"attention.sliding_window_pattern": [True] * 5}, "gemma4.attention.sliding_window_pattern True"),
    ("gemma4", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "gemma4.rope.scaling.type 'yarn'"),
    ("gemma4, small", {"feed_forward_length": [96] * 4 + [192]}, "gemma4.feed_forward_length .* is not read"),
    ("gemma4, small", {"embedding_length_per_layer_input": 64}, "'per_layer_token_embd.weight' as 280 x 160"),
    ("lfm2", {"attention.head_count_kv": [0, 2, 1]}, r"lfm2.attention.head_count_kv \[0, 2, 1\]"),
    ("lfm2", {"attention.head_count_kv": [0, 2]}, r"lfm2.attention.head_count_kv \[0, 2\]"),
])  # fmt: skip
def test_layers_that_a_file_does_not_describe_are_refused_by_the_key(tmp_path, case, said, words):
    path, _ = written(tmp_path / "fox.gguf", case, F32, said)
    with pytest.raises(ModelError, match=words):
        draftwood.load(path, options={"backend": "native"})


@pytest.mark.parametrize("value", [0, 2**32 - 1, math.nan, "x"], ids=str)
def test_no_value_of_a_key_is_an_error_of_python_or_a_crash(tmp_path, value):
    path, _ = written(tmp_path / "fox.gguf", "llama, experts", F32)
    keys = [key.removeprefix("llama.") for key in read_header(path).metadata if key.startswith("llama.")]
    refused = 0
    for key in keys:
        file, _ = written(tmp_path / "other.gguf", "llama, experts", F32, {key: value})
        try:
            draftwood.load(file, options={"backend": "native"}).generate(IDS, max_new_tokens=2)
        except DraftwoodError:
            refused += 1
    assert refused > len(keys) / 3


@pytest.mark.parametrize("case", ["gpt-oss", "gemma4"])
def test_a_call_ends_a_text_and_the_end_of_a_message_does_not(tmp_path, case, monkeypatch):
    kind = CASES[case][0]
    own = families.FAMILIES[kind]
    assert own.gguf.ends
    ends = own.gguf._replace(ends=("!", "no token", "#"))  # tokens 1 and 3
    monkeypatch.setitem(families.FAMILIES, kind, own._replace(gguf=ends))
    monkeypatch.setattr(gguf.GGUFWriter, "add_chat_template", lambda writer, _: writer.add_eot_token_id(9))
    path, _ = written(tmp_path / "fox.gguf", case, F32)
    assert draftwood.load(path, options={"backend": "native"}).model.generation_config.eos_token_id == [0, 1, 3]


def test_a_new_family_is_one_row_for_folders_and_files(tmp_path, monkeypatch):
    monkeypatch.setitem(CASES, "seed_oss", ("seed_oss", {"attention_bias": True}, {}))
    path, model = written(tmp_path / "fox.gguf", "seed_oss", F32)
    model.save_pretrained(tmp_path / "fox")
    source()[1].save_pretrained(tmp_path / "fox")
    for place, words in ((path, "has architecture 'seed_oss'"), (tmp_path / "fox", "no code for model type 'seed_oss'")):
        with pytest.raises(ModelError, match=words):
            draftwood.load(place, options={"backend": "native"})
    biases, stems = {f"self_attn.{one}": "attention_bias" for one in "qkv"}, {"ffn_norm": "post_attention_norm"}
    monkeypatch.setitem(families.FAMILIES, "seed_oss", Family("SeedOssForCausalLM", biases=biases, gguf=Gguf(stems=stems)))
    wanted = logits(model, IDS)[0, 20:].double()
    for place in (path, tmp_path / "fox"):
        pair = draftwood.load(place, options={"backend": "native", "dtype": "float32"})
        assert isinstance(pair.model, StoredModel)
        found = score_tree(pair.target, IDS[20:], [list(range(i + 1)) for i in range(20)], prefix=IDS[:20])
        assert difference(found, wanted) < 1e-4 * wanted.abs().max()


def test_control_value_heads_in_another_order_are_seen(tmp_path, monkeypatch):
    path, model = written(tmp_path / "fox.gguf", "qwen35", F32)
    monkeypatch.setattr(facts, "TILED", "no setting")
    found = draftwood.load(path, options={"backend": "native", "dtype": "float32"}).target
    wanted = logits(model, IDS)[0]
    assert difference(score_tree(found, IDS[-1:], [[0]], prefix=IDS[:-1]), wanted[-1:].double()) > 1e-2 * wanted.abs().max()
