"""What a model is: a row for each model type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from draftwood.runners.native.states import DELTA_RULE, JOINED_RULE, MAMBA, SHORT_CONVOLUTION, StateLayer

_BEFORE: Final = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_AFTER: Final = {"out_norm": "post_attention_layernorm", "down_norm": "post_feedforward_layernorm"}
_AROUND: Final = {**_AFTER, "norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}
_ATTENTION: Final = {"self_attn.": "attention_bias"}
_BOTH: Final = {**_ATTENTION, "mlp.": "mlp_bias"}
LAYERS: Final = ("sliding_window", "layer_types")
MTP: Final = "mtp."
"""What names of weights of an MTP head begin with."""


class Family(NamedTuple):
    """A model type: what its class in ``transformers`` holds, and which settings it reads.

    Attributes:
        name: of the class.
        norms: those of a layer, by the engine's name.
        head_norms: queries and keys have norms: of each head, or ``"joint"`` of all heads together.
        plus_one: norms multiply by their weight plus one.
        fused: matrices that are several in one, by their names.
        biases: the setting that gives matrices with such names a bias; empty if they always have one.
        windows: settings of sliding attention.
        scale: the setting of the attention's scale, and its power; the size of a head if empty.
        scaled: the embedding is multiplied by the square root of its width.
        activation: the setting that names the activation.
        factors: settings that are facts, by the engine's name.
        experts: settings of a mixture of experts, by the engine's name, or their values.
        stated: what a file must say so that the class adds nothing to it; None if it adds in any case.
        full_unrotated: layers of full attention among others do not rotate queries and keys.
        rotary: the setting that says ``rope`` if any layer does.
        partly: a part of each head is rotated, if the configuration says so.
        tempered: queries are multiplied by a factor that grows with their position.
        interleaved: neighbours in a head are rotated together, not those half a head apart.
        gguf: the architecture in GGUF files, by default the model type; None if they have none of its own.
        hybrid: that of models that are dense or not, where one stands for both.
        stems: names there that others have otherwise, by the engine's name.
        turned: heads of queries and keys are in llama.cpp's order there.
        ends: tokens that end a text, which such files do not all name; then the end of a message is none of them.
        states: layers with a running state, by their type in the configuration.
        gated: the projection of queries makes gates of what each head returns too.
        names: of modules that others name otherwise, by the engine's name; ``last_norm`` is the one before the head.
        epsilon: the setting of the norms' least square.
        shared: the setting of the width of an expert that all tokens have.
        ungated: that expert counts in full.
        sinks: each head has a score that takes its share of the softmax and has no value.
        alternating: experts and their router have biases; of an expert gates and ups take turns, and inputs come first.
        published: parts of names of weights in files, and what ``transformers`` has in their place.
        varied: layers of full attention have heads of other sizes, whose values may be their keys; layers have a scalar, and
            may have inputs of their own; the last ones may read keys and values of earlier ones. Values are normed, and a
            mixture is parallel to the network of all tokens.
        whole: the model type of a model of several parts, of which this one reads the text; weights of the others begin
            with ``others``.
    """

    name: str
    norms: Mapping[str, str] = _BEFORE
    head_norms: str = ""
    plus_one: bool = False
    fused: Mapping[str, tuple[str, ...]] = {}
    biases: Mapping[str, str] = {}
    windows: tuple[str, ...] = ()
    scale: tuple[str, float] = ("", -0.5)
    scaled: bool = False
    activation: str = "hidden_act"
    factors: Mapping[str, str] = {}
    experts: Mapping[str, str | bool] = {}
    stated: tuple[str, ...] | None = None
    full_unrotated: bool = False
    rotary: str = ""
    partly: bool = False
    tempered: bool = False
    interleaved: bool = False
    gguf: str | None = ""
    hybrid: str = ""
    stems: Mapping[str, str] = {}
    turned: bool = False
    ends: tuple[str, ...] = ()
    states: Mapping[str, StateLayer] = {}
    gated: bool = False
    names: Mapping[str, str] = {}
    epsilon: str = "rms_norm_eps"
    shared: str = ""
    ungated: bool = False
    sinks: bool = False
    alternating: bool = False
    published: Mapping[str, str] = {}
    varied: bool = False
    whole: str = ""
    others: tuple[str, ...] = ()

    def modules(self) -> tuple[dict[str, str], dict[str, str]]:
        """Names of the matrices and of the norms of a layer, by the engine's name."""
        matrices = {**PRODUCTS, **(INPUTS if self.varied else {})}
        products, norms = {**matrices, **self.names}, {**self.norms, **HEAD_NORMS, **self.names}
        return {name: products[name] for name in matrices}, {name: norms[name] for name in (*self.norms, *HEAD_NORMS)}

    def mixture(self) -> dict[str, str]:
        """Names of the weights of a mixture in a layer, by the engine's name."""
        gated = self.shared and not self.ungated
        found = {name: self.names.get(name, module) for name, module in EXPERTS.items() if gated or name != "shared_gate"}
        biases = {name for name in BIASES if self.alternating or name in self.names}
        return {**found, **{name: self.names.get(name, module) for name, module in BIASES.items() if name in biases}}

    def halves(self) -> dict[str, str]:
        """The same of gates and ups where they are weights of their own."""
        joined, parts = self.mixture()["experts_gate_up"], [(part, end) for end in ("", "_bias") for part in ("gate", "up")]
        return {f"experts_{part}{end}": joined.replace("gate_up", part) + end for part, end in parts}

    def last_norm(self) -> str:
        """The name of the norm before the head."""
        return f"{self.names['last_norm']}.weight" if "last_norm" in self.names else NORM


SWIGLU: Final = {"swiglu_limit": 7.0, "swiglu_alpha": 1.702}
"""Settings of clamped SwiGLU, and their values in versions of ``transformers`` without them."""
FUSED: Final = {"self_attn.qkv_proj": ("query", "key", "value"), "mlp.gate_up_proj": ("gate", "up")}
_GEMMA: Final = Family(
    "Gemma2ForCausalLM", _AROUND, plus_one=True, biases=_ATTENTION, windows=LAYERS, scale=("query_pre_attn_scalar", -0.5),
    scaled=True, activation="hidden_activation",
    factors={"logit_cap": "final_logit_softcapping", "attention_cap": "attn_logit_softcapping"},
)  # fmt: skip
_GEMMA4: Final = _GEMMA._replace(
    name="Gemma4ForCausalLM", norms={
        **_AROUND, "input_norm": "post_per_layer_input_norm", "dense_norm": "post_feedforward_layernorm_1",
        "mixture_norm": "post_feedforward_layernorm_2", "experts_norm": "pre_feedforward_layernorm_2",
    },
    head_norms="each", plus_one=False, scale=("", 0.0), factors={"logit_cap": "final_logit_softcapping"}, varied=True,
    experts={
        "experts": "num_experts", "experts_per_token": "top_k_experts", "expert_inner": "moe_intermediate_size",
        "normalise_experts": True,
    },
    names={
        "router": "router.proj.weight", "experts_gate_up": "experts.gate_up_proj",
        "experts_down": "experts.down_proj",
    },
    gguf="gemma4", hybrid="gemma4", ends=("<eos>", "<turn|>", "<|tool_response>"), whole="gemma4",
    others=("model.vision_tower.", "model.audio_tower.", "model.embed_vision.", "model.embed_audio."),
)  # fmt: skip
_GRANITE: Final = {
    "embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier", "logit_divisor": "logits_scaling",
}  # fmt: skip
_NORMALISED: Final = {
    "experts": "num_experts", "expert_inner": "moe_intermediate_size", "normalise_experts": "norm_topk_prob",
}  # fmt: skip
_MISTRAL: Final = Family(
    "MistralForCausalLM", windows=("sliding_window",), stated=("sliding_window",), gguf=None, whole="mistral3",
    others=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
)  # fmt: skip
_LOCAL: Final[Mapping[str, str | bool]] = {
    "experts": "num_local_experts",
    "expert_inner": "intermediate_size",
    "normalise_experts": True,
}
_QWEN35: Final = Family(
    "Qwen3_5ForCausalLM", head_norms="each", plus_one=True, biases=_ATTENTION, windows=("layer_types",), gated=True,
    states={"linear_attention": DELTA_RULE}, gguf="qwen35", stems={"ffn_norm": "post_attention_norm"}, whole="qwen3_5",
    others=(MTP, "model.visual."), partly=True,
)  # fmt: skip
_QWEN35_MOE: Final = _QWEN35._replace(
    name="Qwen3_5MoeForCausalLM", experts={**_NORMALISED, "normalise_experts": True}, gguf="qwen35moe", whole="qwen3_5_moe",
    shared="shared_expert_intermediate_size",
    names={part: f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
)  # fmt: skip
_LFM2: Final = Family(
    "Lfm2ForCausalLM", {"norm": "operator_norm", "ffn_norm": "ffn_norm"}, "each", windows=("layer_types",),
    activation="", states={"conv": SHORT_CONVOLUTION}, epsilon="norm_eps", stems={"last_norm": "token_embd_norm"},
    names={
        "out": "self_attn.out_proj", "gate": "feed_forward.w1", "up": "feed_forward.w3", "down": "feed_forward.w2",
        "query_norm": "self_attn.q_layernorm", "key_norm": "self_attn.k_layernorm", "last_norm": "model.embedding_norm",
    },
)  # fmt: skip
FAMILIES: Final = {
    "llama": Family("LlamaForCausalLM", biases=_BOTH, stated=(), turned=True),
    "mistral": _MISTRAL,
    "ministral3": _MISTRAL._replace(name="Ministral3ForCausalLM", stated=None, gguf="mistral3", turned=True, tempered=True),
    "qwen2": Family(
        "Qwen2ForCausalLM", biases=dict.fromkeys(("self_attn.q", "self_attn.k", "self_attn.v"), ""), windows=LAYERS,
        stated=(),
    ),
    "qwen3": Family("Qwen3ForCausalLM", head_norms="each", biases=_ATTENTION, windows=LAYERS, stated=()),
    "smollm3": Family("SmolLM3ForCausalLM", biases=_BOTH, windows=LAYERS, turned=True),
    "olmo2": Family("Olmo2ForCausalLM", _AFTER, "joint", biases=_ATTENTION, stated=()),
    "granite": Family(
        "GraniteForCausalLM", biases=_BOTH, scale=("attention_multiplier", 1.0), factors=_GRANITE,
        stated=(*_GRANITE.values(), "attention_multiplier"), turned=True,
    ),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM", biases=_ATTENTION, windows=("layer_types",), scale=("attention_multiplier", 1.0),
        factors=_GRANITE, experts=_LOCAL, shared="shared_intermediate_size", ungated=True, rotary="position_embedding_type",
        fused={"shared_mlp.input_linear": ("gate", "up")}, gguf="granitemoe", hybrid="granitehybrid", turned=True,
        states=dict.fromkeys(("linear_attention", "mamba"), MAMBA),
        names={
            "gate": "shared_mlp.gate_proj", "up": "shared_mlp.up_proj", "down": "shared_mlp.output_linear",
            "router": "block_sparse_moe.router.weight", "experts_gate_up": "block_sparse_moe.experts.gate_up_proj",
            "experts_down": "block_sparse_moe.experts.down_proj",
        },
        published={
            "moe.router.layer.": "moe.router.", "moe.input_linear.weight": "moe.experts.gate_up_proj",
            "moe.output_linear.weight": "moe.experts.down_proj",
        },
    ),
    "bamba": Family(
        "BambaForCausalLM", {"norm": "input_layernorm", "ffn_norm": "pre_ff_layernorm"}, windows=("layer_types",),
        biases={**_ATTENTION, "feed_forward.": "mlp_bias"}, partly=True, states={"linear_attention": MAMBA}, gguf=None,
        names={
            **{part: f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}, "last_norm": "model.final_layernorm",
        },
    ),
    "phi3": Family("Phi3ForCausalLM", fused=FUSED, windows=("sliding_window",), partly=True),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA._replace(
        name="Gemma3ForCausalLM", head_norms="each", factors={"logit_cap": "final_logit_softcapping"}, gguf="gemma3"
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": _GEMMA4._replace(
        name="Gemma4UnifiedForCausalLM", norms=_AROUND, experts={}, gguf=None, hybrid="", whole="gemma4_unified",
        others=("model.vision_embedder.", "model.embed_vision.", "model.embed_audio."),
    ),
    "exaone4": Family("Exaone4ForCausalLM", _AFTER, "each", windows=LAYERS, full_unrotated=True),
    "ernie4_5": Family("Ernie4_5ForCausalLM", biases={"self_attn.": "use_bias", "mlp.": "use_bias"}, interleaved=True),
    "mixtral": Family(
        "MixtralForCausalLM", windows=("sliding_window",), experts=_LOCAL, gguf="llama", turned=True,
        published={"block_sparse_moe.": "mlp."},
    ),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM", head_norms="each", biases=_ATTENTION, windows=LAYERS, experts=_NORMALISED, gguf="qwen3moe"
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM", biases=_ATTENTION, windows=LAYERS, factors={name: name for name in SWIGLU}, sinks=True,
        experts=_LOCAL, alternating=True, names={"router": "mlp.router.weight"}, gguf="gpt-oss",
        stems={"ffn_norm": "post_attention_norm"}, ends=("<|return|>", "<|call|>", "<|endoftext|>"),
    ),
    "qwen3_5_text": _QWEN35,
    "qwen3_5_moe_text": _QWEN35_MOE,
    "qwen3_next": _QWEN35_MOE._replace(
        name="Qwen3NextForCausalLM", states={"linear_attention": JOINED_RULE}, experts=_NORMALISED, gguf="qwen3next",
        whole="",
    ),
    "lfm2": _LFM2,
    "lfm2_moe": _LFM2._replace(
        name="Lfm2MoeForCausalLM", gguf="lfm2moe", stems={**_LFM2.stems, "router_bias": "exp_probs_b.bias"},
        experts={**_NORMALISED, "sigmoid_routing": True},
        names={
            **_LFM2.names, "router": "feed_forward.gate.weight", "router_bias": "feed_forward.expert_bias",
            "experts_gate_up": "feed_forward.experts.gate_up_proj", "experts_down": "feed_forward.experts.down_proj",
        },
    ),
}  # fmt: skip
"""By model type."""
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
NORM: Final = "model.norm.weight"
PRODUCTS: Final = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "out": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
INPUTS: Final = {"input_gate": "per_layer_input_gate", "input_projection": "per_layer_projection"}
EXPERTS: Final = {
    "router": "mlp.gate.weight", "experts_gate_up": "mlp.experts.gate_up_proj", "experts_down": "mlp.experts.down_proj",
    "shared_gate": "mlp.shared_expert_gate.weight",
}  # fmt: skip
BIASES: Final = {
    "router_bias": "mlp.router.bias", "experts_gate_up_bias": "mlp.experts.gate_up_proj_bias",
    "experts_down_bias": "mlp.experts.down_proj_bias",
}  # fmt: skip
SINKS: Final = "self_attn.sinks"
SCALAR: Final = "layer_scalar"
ROUTER: Final = {"router_norm": "router.scale", "expert_scales": "router.per_expert_scale"}
HEAD_NORMS: Final = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}
ACTIVATIONS: Final = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}  # ``draftwood::Facts::gelu``


def with_states(config: Any) -> frozenset[str]:
    """Types of layers with a running state that the engine has code for."""
    own = FAMILIES.get(getattr(config, "model_type", ""))
    return frozenset(own.states if own is not None else ())
