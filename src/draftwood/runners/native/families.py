"""What a model is: a row for each model type, which the engine, folders and GGUF files are read by."""

from __future__ import annotations

from typing import Any, Final

from draftwood.native.library import LayerSource
from draftwood.runners.native.family import FUSED, MTP, TILED, Family, Gguf, StateLayer

DELTA_RULE: Final = StateLayer(
    LayerSource.DELTA_RULE,
    {
        "taps_of_convolution": "linear_conv_kernel_dim", "key_heads": "linear_num_key_heads",
        "value_heads": "linear_num_value_heads", "key_size": "linear_key_head_dim", "value_size": "linear_value_head_dim",
    },
    {
        "mixed": ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
        "mixed_gate": ("linear_attn.in_proj_z.weight", "attn_gate.weight"),
        "share": ("linear_attn.in_proj_b.weight", "ssm_beta.weight"),
        "decay": ("linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
        "out": ("linear_attn.out_proj.weight", "ssm_out.weight"),
        "convolution": ("linear_attn.conv1d.weight", "ssm_conv1d.weight"), "decay_rate": ("linear_attn.A_log", "ssm_a"),
        "decay_bias": ("linear_attn.dt_bias", "ssm_dt.bias"), "state_norm": ("linear_attn.norm.weight", "ssm_norm.weight"),
    },
)  # fmt: skip
_JOINED: Final = {
    "mixed_joined": ("linear_attn.in_proj_qkvz.weight", "ssm_in.weight"),
    "share_decay": ("linear_attn.in_proj_ba.weight", "ssm_ba.weight"),
}
JOINED_RULE: Final = DELTA_RULE._replace(
    weights={**_JOINED, **{name: both for name, both in DELTA_RULE.weights.items() if name not in LayerSource.MIXED}},
    parts={name: DELTA_RULE.weights[name] for name in ("mixed", "mixed_gate")},
)
SHORT_CONVOLUTION: Final = StateLayer(
    LayerSource.SHORT_CONVOLUTION,
    {"taps_of_convolution": "conv_L_cache"},
    {
        "mixed": ("conv.in_proj.weight", "shortconv.in_proj.weight"),
        "out": ("conv.out_proj.weight", "shortconv.out_proj.weight"),
        "convolution": ("conv.conv.weight", "shortconv.conv.weight"),
    },
    taps="shortconv.l_cache",
)
MAMBA: Final = StateLayer(
    LayerSource.MAMBA,
    {
        "taps_of_convolution": "mamba_d_conv", "key_heads": "mamba_n_groups", "value_heads": "mamba_n_heads",
        "key_size": "mamba_d_state", "value_size": "mamba_d_head",
    },
    {
        "mixed": ("mamba.in_proj.weight", "ssm_in.weight"), "out": ("mamba.out_proj.weight", "ssm_out.weight"),
        "convolution": ("mamba.conv1d.weight", "ssm_conv1d.weight"),
        "convolution_bias": ("mamba.conv1d.bias", "ssm_conv1d.bias"), "decay_rate": ("mamba.A_log", "ssm_a"),
        "decay_bias": ("mamba.dt_bias", "ssm_dt.bias"), "state_norm": ("mamba.norm.weight", "ssm_norm.weight"),
        "skip": ("mamba.D", "ssm_d"),
    },
)  # fmt: skip
_AFTER: Final = {"out_norm": "post_attention_layernorm", "down_norm": "post_feedforward_layernorm"}
_AROUND: Final = {**_AFTER, "norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
_ATTENTION: Final = {"self_attn.": "attention_bias"}
_BOTH: Final = {**_ATTENTION, "mlp.": "mlp_bias"}
LAYERS: Final = ("sliding_window", "layer_types")
WINDOW, PATTERN = "attention.sliding_window", "attention.sliding_window_pattern"  # keys of GGUF files
ROTATES: Final = "rope.scaling.finetuned"  # as Granite's files mean it
SWIGLU: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""Settings of clamped SwiGLU, and their values in versions of ``transformers`` without them."""
ACTIVATIONS: Final = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}  # ``draftwood::Facts::gelu``
COUNTS: Final = ("expert_count", "expert_used_count", "expert_feed_forward_length")
_IN_LOCAL: Final = dict(zip(("num_local_experts", "num_experts_per_tok"), COUNTS[:2], strict=True))
_IN_SPARSE: Final = dict(zip(("num_experts", "num_experts_per_tok", "moe_intermediate_size"), COUNTS, strict=True))
_EVERY: Final = {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}  # layer is a mixture
SHARED_INNER: Final = "expert_shared_feed_forward_length"
_LOCAL: Final[dict[str, str | bool]] = {
    "experts": "num_local_experts", "expert_inner": "intermediate_size", "normalise_experts": True,
}  # fmt: skip
_NORMALISED: Final[dict[str, str | bool]] = {
    "experts": "num_experts", "expert_inner": "moe_intermediate_size", "normalise_experts": "norm_topk_prob",
}  # fmt: skip
_LOGIT_CAP: Final = {"logit_cap": "final_logit_softcapping"}
_CAPS: Final = {**_LOGIT_CAP, "attention_cap": "attn_logit_softcapping"}
_TANH: Final = {"hidden_activation": "gelu_pytorch_tanh"}
_GEMMA: Final = Family(
    "Gemma2ForCausalLM", _AROUND, plus_one=True, biases=_ATTENTION, windows=LAYERS, scale=("query_pre_attn_scalar", -0.5),
    scaled=True, activation="hidden_activation", factors=_CAPS,
    gguf=Gguf(
        fixed=_TANH, settings={name: (name, cap) for name, cap in zip(_CAPS.values(), (30.0, 50.0), strict=True)},
        period=2, window=4096, wide=46,
    ),
)  # fmt: skip
_GEMMA4: Final = _GEMMA._replace(
    name="Gemma4ForCausalLM", norms={
        **_AROUND, "input_norm": "post_per_layer_input_norm", "dense_norm": "post_feedforward_layernorm_1",
        "mixture_norm": "post_feedforward_layernorm_2", "experts_norm": "pre_feedforward_layernorm_2",
    },
    head_norms="each", plus_one=False, scale=("", 0.0), factors=_LOGIT_CAP, varied=True,
    experts={
        "experts": "num_experts", "experts_per_token": "top_k_experts", "expert_inner": "moe_intermediate_size",
        "normalise_experts": True,
    },
    names={
        "router": "router.proj.weight", "experts_gate_up": "experts.gate_up_proj",
        "experts_down": "experts.down_proj",
    },
    gguf=Gguf(
        "gemma4", "gemma4", ends=("<eos>", "<turn|>", "<|tool_response>"), fixed=_TANH, needs=(WINDOW, PATTERN), period=6,
        settings={
            **dict(zip(("num_experts", "top_k_experts", "moe_intermediate_size"), COUNTS, strict=True)),
            "final_logit_softcapping": ("final_logit_softcapping", None),
        },
        rotary={"rope_type": "proportional"}, apart=True,
    ),
    whole="gemma4", others=("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
)  # fmt: skip
_GRANITE: Final = {
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "logit_divisor": "logits_scaling",
}  # fmt: skip
_IN_GRANITE: Final[dict[str, str | tuple[str, Any]]] = {
    "embedding_multiplier": ("embedding_scale", 1.0), "residual_multiplier": ("residual_scale", 1.0),
    "attention_multiplier": ("attention.scale", None), "logits_scaling": ("logit_scale", 1.0),
}  # fmt: skip
_GRANITE_MOE: Final = Family(
    "GraniteMoeForCausalLM", biases=_ATTENTION, scale=("attention_multiplier", 1.0), factors=_GRANITE, experts=_LOCAL,
    names={
        "router": "block_sparse_moe.router.weight", "experts_gate_up": "block_sparse_moe.experts.gate_up_proj",
        "experts_down": "block_sparse_moe.experts.down_proj",
    },
    published={
        "moe.router.layer.": "moe.router.", "moe.input_linear.weight": "moe.experts.gate_up_proj",
        "moe.output_linear.weight": "moe.experts.down_proj",
    },
    gguf=Gguf(turned=True, settings={**_IN_GRANITE, **_IN_LOCAL}, same={ROTATES: True}),
)  # fmt: skip
_MISTRAL: Final = Family(
    "MistralForCausalLM", windows=("sliding_window",), stated=("sliding_window",), gguf=None, whole="mistral3",
    others=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)  # fmt: skip
_IN_QWEN35: Final = Gguf("qwen35", stems={"ffn_norm": "post_attention_norm"}, fixed={TILED: True}, interval=4)
_IN_QWEN35_MOE: Final = _IN_QWEN35._replace(
    architecture="qwen35moe", fixed={**_EVERY, TILED: True},
    settings={**_IN_SPARSE, "shared_expert_intermediate_size": SHARED_INNER},
)  # fmt: skip
_QWEN35: Final = Family(
    "Qwen3_5ForCausalLM", head_norms="each", plus_one=True, biases=_ATTENTION, windows=("layer_types",), gated=True,
    states={"linear_attention": DELTA_RULE}, whole="qwen3_5", others=(MTP, "model.visual."), partly=True,
    gguf=_IN_QWEN35,
)  # fmt: skip
_QWEN35_MOE: Final = _QWEN35._replace(
    name="Qwen3_5MoeForCausalLM", experts={**_NORMALISED, "normalise_experts": True}, whole="qwen3_5_moe",
    shared="shared_expert_intermediate_size",
    names={part: f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
    gguf=_IN_QWEN35_MOE,
)  # fmt: skip
_IN_LFM2: Final[dict[str, Any]] = {"conv_bias": False, "block_auto_adjust_ff_dim": False}
_LFM2: Final = Family(
    "Lfm2ForCausalLM", {"norm": "operator_norm", "ffn_norm": "ffn_norm"}, "each", windows=("layer_types",),
    activation="", states={"conv": SHORT_CONVOLUTION}, epsilon="norm_eps",
    names={
        "out": "self_attn.out_proj", "gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2",
        "query_norm": "self_attn.q_layernorm", "key_norm": "self_attn.k_layernorm", "last_norm": "model.embedding_norm",
    },
    gguf=Gguf(stems={"last_norm": "token_embd_norm"}, fixed=_IN_LFM2),
)  # fmt: skip
FAMILIES: Final = {
    "llama": Family("LlamaForCausalLM", biases=_BOTH, stated=(), gguf=Gguf(turned=True)),
    "mistral": _MISTRAL,
    "ministral3": _MISTRAL._replace(
        name="Ministral3ForCausalLM", stated=None, tempered=True,
        gguf=Gguf("mistral3", turned=True, period=0, yarn=True, rotary={"mscale": 1.0, "mscale_all_dim": 1.0}),
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM", biases=dict.fromkeys(("self_attn.q", "self_attn.k", "self_attn.v"), ""), windows=LAYERS,
        stated=(),
    ),
    "qwen3": Family("Qwen3ForCausalLM", head_norms="each", biases=_ATTENTION, windows=LAYERS, stated=()),
    "smollm3": Family(
        "SmolLM3ForCausalLM", biases=_BOTH, windows=LAYERS,
        gguf=Gguf(turned=True, fixed=dict.fromkeys(LAYERS), unrotated=4),
    ),
    "olmo2": Family("Olmo2ForCausalLM", _AFTER, "joint", biases=_ATTENTION, stated=()),
    "granite": Family(
        "GraniteForCausalLM", biases=_BOTH, scale=("attention_multiplier", 1.0), factors=_GRANITE,
        stated=(*_GRANITE.values(), "attention_multiplier"),
        gguf=Gguf(turned=True, settings=_IN_GRANITE, same={ROTATES: True}),
    ),
    "granitemoe": _GRANITE_MOE,
    "granitemoehybrid": _GRANITE_MOE._replace(
        name="GraniteMoeHybridForCausalLM", windows=("layer_types",), shared="shared_intermediate_size", ungated=True,
        rotary="position_embedding_type", fused={"shared_mlp.input_linear": ("gate", "up")},
        states=dict.fromkeys(("linear_attention", "mamba"), MAMBA),
        names={
            **_GRANITE_MOE.names, "gate": "shared_mlp.gate_proj", "up": "shared_mlp.up_proj",
            "down": "shared_mlp.output_linear",
        },
        gguf=Gguf(
            "granitemoe", "granitehybrid", turned=True,
            settings={**_IN_GRANITE, **_IN_LOCAL, "shared_intermediate_size": SHARED_INNER},
        ),
    ),
    "bamba": Family(
        "BambaForCausalLM", {"norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm"}, windows=("layer_types",),
        biases={**_ATTENTION, "feed_forward.": "mlp_bias"}, partly=True, states={"linear_attention": MAMBA}, gguf=None,
        names={
            **{part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}, "last_norm": "model.final_layernorm",
        },
    ),
    "phi3": Family("Phi3ForCausalLM", fused=FUSED, windows=("sliding_window",), partly=True, gguf=Gguf(period=0)),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA._replace(
        name="Gemma3ForCausalLM", head_norms="each", factors=_LOGIT_CAP, gguf=Gguf(
            "gemma3", fixed=_TANH, settings={name: (name, None) for name in _LOGIT_CAP.values()},
            period=6, wide=62, apart=True,
        ),
        whole="gemma3", others=_MISTRAL.others,
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4._replace(
        name="Gemma4UnifiedForCausalLM", norms=_AROUND, experts={}, gguf=None, whole="gemma4_unified",
        others=("model.vision_embedder.", "model.embed_vision.", "model.embed_audio."),
    ),
    "exaone4": Family("Exaone4ForCausalLM", _AFTER, "each", windows=LAYERS, full_unrotated=True, gguf=Gguf(period=4)),
    "ernie4_5": Family("Ernie4_5ForCausalLM", biases={"self_attn.": "use_bias", "mlp.": "use_bias"}, interleaved=True),
    "mixtral": Family(
        "MixtralForCausalLM", windows=("sliding_window",), experts=_LOCAL, published={"block_sparse_moe.": "mlp."},
        gguf=Gguf("llama", turned=True, settings=_IN_LOCAL, fixed={"sliding_window": None}),
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM", head_norms="each", biases=_ATTENTION, windows=LAYERS, experts=_NORMALISED,
        gguf=Gguf("qwen3moe", settings=_IN_SPARSE, fixed=_EVERY),
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM", biases=_ATTENTION, windows=LAYERS, factors={name: name for name in SWIGLU}, sinks=True,
        experts=_LOCAL, alternating=True, names={"router": "mlp.router.weight"},
        gguf=Gguf(
            "gpt-oss", stems={"ffn_norm": "post_attention_norm"}, ends=("<|return|>", "<|call|>", "<|endoftext|>"),
            settings={**_IN_LOCAL, "intermediate_size": COUNTS[2]}, fixed=SWIGLU, needs=(WINDOW,), period=2, yarn=True,
            rotary={"truncate": False},  # as it was trained: llama.cpp rounds the ends of the ramp to whole numbers
        ),
    ),
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN35_MOE._replace(
        name="Qwen3NextForCausalLM", states={"linear_attention": JOINED_RULE}, experts=_NORMALISED, whole="",
        gguf=_IN_QWEN35_MOE._replace(architecture="qwen3next", fixed={**_EVERY, TILED: False}),
    ),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2._replace(
        name="Lfm2MoeForCausalLM", experts={**_NORMALISED, "sigmoid_routing": True},
        names={
            **_LFM2.names, "router": "feed_forward.gate.weight", "router_bias": "feed_forward.expert_bias",
            "experts_gate_up": "feed_forward.experts.gate_up_proj", "experts_down": "feed_forward.experts.down_proj",
        },
        gguf=Gguf(
            "lfm2moe", stems={"last_norm": "token_embd_norm", "router_bias": "exp_probs_b.bias"},
            settings={**_IN_SPARSE, "num_dense_layers": ("leading_dense_block_count", 0)},
            fixed={**_IN_LFM2, **_EVERY, "use_expert_bias": True, "routed_scaling_factor": 1.0},
            needs=("expert_gating_func",), same={"expert_gating_func": 2},  # the sigmoid
        ),
    ),
}  # fmt: skip
"""By model type."""


def family_named(model_type: str | None) -> Family | None:
    """The row of a model type, or of the text of models of several parts; None of others."""
    return next((own for kind, own in FAMILIES.items() if model_type in (kind, own.whole or kind)), None)


def with_head(name: str | None) -> bool:
    """Whether MTP heads of models of a type, or of an architecture of GGUF files, are run."""
    architectures = {own.gguf.architecture: own for own in FAMILIES.values() if own.gguf is not None}
    own = family_named(name) or architectures.get(name or "")
    return own is not None and MTP in own.others
