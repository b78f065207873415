"""One tiny random model of every supported type, texts that are not constant, and the plain way to score a path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from draftwood.runners.native.refusals import why_not
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.torch_runner import TorchRunner

VOCAB = 97
PAD, EOS = 0, 3

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.3,
    "bos_token_id": 1, "eos_token_id": EOS, "pad_token_id": PAD,
}  # fmt: skip
_OF_TYPE: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "dropout": 0.0},
    "gemma2": {"sliding_window": 64, "query_pre_attn_scalar": 8},
    "gemma3_text": {
        "sliding_window": 64,
        "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "mistral": {"sliding_window": None},
    "gpt_neox": {"rotary_pct": 0.5},
}
SUPPORTED = ["llama", "gpt2", "qwen3", "qwen2", "opt", "gpt_neox", "mistral", "phi", "gemma"]
SLIDING = ["gemma2", "gemma3_text"]
BY_ENGINE = pytest.mark.parametrize("engine", ["torch", "native"])
WINDOW = 8
WINDOWED: dict[str, dict[str, Any]] = {  # all layers slide, or one of two
    "mistral": {},
    "phi3": {},
    "qwen2": {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]},
    # Tied embeddings would make these two repeat one token.
    "gemma2": {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False},
    "gemma3_text": {"initializer_range": 0.5, "tie_word_embeddings": False},
    "cohere2": {"layer_types": ["full_attention", "sliding_attention"]},
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    },
}

_SHORT = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA = {**_SHORT, "tie_word_embeddings": False, "query_pre_attn_scalar": 11, "final_logit_softcapping": 3.0}
_YARN = {"rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False}
_MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0}
_FACTORS = {"embedding_multiplier": 3.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1, "logits_scaling": 0.6}
_RULE = {
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
_GEMMA4 = {  # as E2B, with values that are keys as of 31B and a mixture as of 26B
    "enable_moe_block": True, "num_experts": 6, "top_k_experts": 5, "moe_intermediate_size": 24,
    "num_hidden_layers": 5, "layer_types": [f"{'full' if number in (1, 4) else 'sliding'}_attention" for number in range(5)],
    "sliding_window": WINDOW, "head_dim": 12, "global_head_dim": 40, "num_global_key_value_heads": 1,
    "attention_k_eq_v": True, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 10,
    "vocab_size_per_layer_input": VOCAB, "final_logit_softcapping": 3.0, "tie_word_embeddings": False,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
    },
}  # fmt: skip
_OF_GEMMA4_ALONE = (
    "enable_moe_block", "num_experts", "top_k_experts", "moe_intermediate_size", "hidden_size_per_layer_input",
    "vocab_size_per_layer_input",
)  # fmt: skip
_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 56}
NATIVE: dict[str, dict[str, Any]] = {  # what the native engine runs, with settings that matter in short texts
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 20},
    "mistral": {"sliding_window": WINDOW},
    "smollm3": {**_SHORT, "use_sliding_window": True, "no_rope_layers": [0, 1]},
    "olmo2": {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}},
    "granite": _FACTORS,
    "phi3": {
        "sliding_window": WINDOW,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    },
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 2.0},
    "gemma3_text": _GEMMA,
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": {name: value for name, value in _GEMMA4.items() if name not in _OF_GEMMA4_ALONE},
    "exaone4": _SHORT,
    "ernie4_5": {"use_bias": True},
    "mixtral": {"sliding_window": WINDOW, "num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 40, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "mlp_only_layers": [0]},
    "gpt_oss": {
        **_SHORT,
        "rope_parameters": {**_YARN, "rope_type": "yarn", "original_max_position_embeddings": 64},
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 0.7,
        "swiglu_alpha": 1.3,
    },
    "ministral3": {
        "sliding_window": None,
        "rope_parameters": {**_YARN, "rope_type": "yarn", "truncate": True, "llama_4_scaling_beta": 0.5, **_MSCALE},
    },
    "granitemoe": {**_FACTORS, "num_local_experts": 6, "num_experts_per_tok": 3},
    "granitemoehybrid": {
        **_FACTORS,
        "residual_multiplier": 0.5,
        "logits_scaling": 1.5,
        "layer_types": ["linear_attention", "full_attention"],
        "position_embedding_type": "rope",
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 40,
        "mamba_n_heads": 4,
        "mamba_d_state": 12,
        "mamba_n_groups": 2,
    },
    "bamba": {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2, "mlp_bias": True},
    "qwen3_5_text": _RULE,
    "qwen3_5_moe_text": {**_RULE, **_EXPERTS},
    "qwen3_next": {**_RULE, **_EXPERTS, "norm_topk_prob": False},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], **_EXPERTS, "num_dense_layers": 1},
}


def tiny(kind: str, seed: int = 0, *, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    """A model of this type with random weights."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**_COMMON, **_OF_TYPE.get(kind, {}), **settings})
    return AutoModelForCausalLM.from_config(config).to(dtype).eval()


def windowed(kind: str, seed: int = 0, *, window: int = WINDOW, **settings: Any) -> Any:
    """A model of :data:`WINDOWED` in float32."""
    return tiny(kind, seed, dtype=torch.float32, **{"sliding_window": window, **WINDOWED[kind], **settings})


def runner_of(engine: str, model: Any, **options: Any) -> Any:
    """A runner of this engine; a test of a type for which ``native`` has no code is skipped."""
    if engine == "torch":
        return TorchRunner(model, **options)
    if (reason := why_not(model)) is not None:
        pytest.skip(reason)
    return NativeRunner(model, **options)


def cached(runner: Any) -> list[int]:
    """How many tokens of each row's text are in the runner's memory."""
    found: list[int] = list(map(len, runner._rows.parts)) if isinstance(runner, NativeRunner) else runner._rows.parts
    return found


def read_tokens(named: dict[str, Any]) -> int:
    """How many tokens of each row a call of a network reads, given its arguments."""
    return int(named["input_ids"].shape[1]) + max(map(len, named.get("pending", [[]])))


@torch.no_grad()
def plain_scores(model: Any, text: Sequence[int]) -> torch.Tensor:
    """Scores after the last token of one text: an ordinary forward without cache, mask or positions."""
    return model(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0, -1]
