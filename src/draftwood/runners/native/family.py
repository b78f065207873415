"""What a row of the table of model types says, and the names of weights that all of them have; without PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from draftwood.native.library import LayerSource

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
NORM: Final = "model.norm.weight"
MTP: Final = "mtp."
"""What names of weights of an MTP head begin with."""
TILED: Final = "tiled_value_heads"
"""The setting of a model from a GGUF file of llama.cpp, in which value heads take turns with key heads."""
NAMES: Final = {
    "query": ("self_attn.q_proj", "attn_q"), "key": ("self_attn.k_proj", "attn_k"), "value": ("self_attn.v_proj", "attn_v"),
    "out": ("self_attn.o_proj", "attn_output"), "gate": ("mlp.gate_proj", "ffn_gate"), "up": ("mlp.up_proj", "ffn_up"),
    "down": ("mlp.down_proj", "ffn_down"), "query_norm": ("self_attn.q_norm", "attn_q_norm"),
    "key_norm": ("self_attn.k_norm", "attn_k_norm"), "input_gate": ("per_layer_input_gate", "inp_gate"),
    "input_projection": ("per_layer_projection", "proj"), "sinks": ("self_attn.sinks", "attn_sinks.weight"),
    "scalar": ("layer_scalar", "layer_output_scale.weight"), "router": ("mlp.gate.weight", "ffn_gate_inp.weight"),
    "router_bias": ("mlp.router.bias", "ffn_gate_inp.bias"), "router_norm": ("router.scale", "ffn_gate_inp.scale"),
    "expert_scales": ("router.per_expert_scale", "ffn_down_exps.scale"),
    "shared_gate": ("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
    "experts_gate_up": ("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    "experts_gate_up_bias": ("mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias"),
    "experts_down": ("mlp.experts.down_proj", "ffn_down_exps.weight"),
    "experts_down_bias": ("mlp.experts.down_proj_bias", "ffn_down_exps.bias"),
}  # fmt: skip
"""Names in a layer of ``transformers`` and in GGUF files, by the engine's name; a row may have others."""
_OF_NORMS: Final = {
    "norm": "attn_norm", "ffn_norm": "ffn_norm", "out_norm": "post_attention_norm", "down_norm": "post_ffw_norm",
    "input_norm": "post_norm", "dense_norm": "post_ffw_norm_1", "mixture_norm": "post_ffw_norm_2",
    "experts_norm": "pre_ffw_norm_2", "last_norm": "output_norm",
}  # fmt: skip
"""Names of norms in GGUF files, by the engine's name."""
FUSED: Final = {"self_attn.qkv_proj": ("query", "key", "value"), "mlp.gate_up_proj": ("gate", "up")}
_FUSED_STEMS: Final = dict(zip(FUSED, ("attn_qkv", "ffn_up"), strict=True))


def _modules(*names: str) -> dict[str, str]:
    return {name: NAMES[name][0] for name in names}


PRODUCTS: Final = _modules(*LayerSource.WEIGHTS)
INPUTS: Final = _modules(*LayerSource.INPUTS)
EXPERTS: Final = _modules("router", "experts_gate_up", "experts_down", "shared_gate")
BIASES: Final = _modules("router_bias", "experts_gate_up_bias", "experts_down_bias")
ROUTER: Final = _modules("router_norm", "expert_scales")
HEAD_NORMS: Final = _modules("query_norm", "key_norm")
SINKS, SCALAR = _modules("sinks", "scalar").values()


class StateLayer(NamedTuple):
    """A kind of layers that keep a running state in place of keys and values.

    Attributes:
        kind: the engine's number.
        facts: settings of the configuration, by the engine's name.
        weights: their names in a layer of ``transformers`` and in GGUF files, by the engine's name.
        parts: the same of those that files may have in place of ``mixed_joined``.
        taps: the key of GGUF files that says the taps of the convolution.
    """

    kind: int
    facts: Mapping[str, str]
    weights: Mapping[str, tuple[str, str]]
    parts: Mapping[str, tuple[str, str]] = {}
    taps: str = "ssm.conv_kernel"

    def modules(self) -> dict[str, str]:
        """Names of the weights in a layer, by the engine's name."""
        return {name: module for name, (module, _) in self.weights.items()}


class Gguf(NamedTuple):
    """What GGUF files of a model type say in their own way, or leave to the program that reads them.

    Attributes:
        architecture: there; the model type if empty.
        hybrid: that of models that are dense or not, where one stands for both.
        stems: names of weights that others have otherwise, by the engine's name.
        turned: heads of queries and keys are in llama.cpp's order there.
        ends: tokens that end a text, which such files do not all name; then the end of a message is none of them.
        settings: of the configuration, by the key that says them, with a default where a file may lack it.
        fixed: settings that no key says.
        same: keys that have this value, or are not there.
        needs: keys that must be there, which nothing else needs.
        period: all but the last of each so many layers slide, unless the file says which; 0: all of them; None: none.
        window: tokens that they see, where no key says it.
        wide: the number of layers of the one model whose attention is scaled by the width for each head, not by its size.
        unrotated: each layer of this number does not rotate queries and keys; 0: all of them do.
        rotary: settings of the rotary embedding that no key says.
        yarn: it may be that of YaRN.
        apart: layers of sliding attention have a rotary embedding of their own.
        interval: one of each so many layers has attention, where no key says it; 0: those that have heads.
    """

    architecture: str = ""
    hybrid: str = ""
    stems: Mapping[str, str] = {}
    turned: bool = False
    ends: tuple[str, ...] = ()
    settings: Mapping[str, str | tuple[str, Any]] = {}
    fixed: Mapping[str, Any] = {}
    same: Mapping[str, Any] = {}
    needs: tuple[str, ...] = ()
    period: int | None = None
    window: int = 0
    wide: int = 0
    unrotated: int = 0
    rotary: Mapping[str, Any] = {}
    yarn: bool = False
    apart: bool = False
    interval: int = 0


_BEFORE: Final = {"norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


class Family(NamedTuple):
    """A model type: what its class in ``transformers`` holds, which settings it reads, and how files have it.

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
        gguf: what GGUF files say of it; None if there are none of its own.
        states: layers with a running state, by their type in the configuration; the last one is that of GGUF files.
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
            with ``others``. An MTP head is one of these.
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
    gguf: Gguf | None = Gguf()
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
        names = [name for name in EXPERTS if name != "shared_gate" or (self.shared and not self.ungated)]
        names += [name for name in BIASES if self.alternating or name in self.names]
        return {name: self.names.get(name, NAMES[name][0]) for name in names}

    def halves(self) -> dict[str, str]:
        """The same of gates and ups where they are weights of their own."""
        joined, parts = self.mixture()["experts_gate_up"], [(part, end) for end in ("", "_bias") for part in ("gate", "up")]
        return {f"experts_{part}{end}": joined.replace("gate_up", part) + end for part, end in parts}

    def last_norm(self) -> str:
        """The name of the norm before the head."""
        return f"{self.names['last_norm']}.weight" if "last_norm" in self.names else NORM

    def in_gguf(self) -> dict[str, str]:
        """Names in GGUF files of the modules of a layer, and of weights of experts and of running states."""
        own, (products, norms) = self.gguf or Gguf(), self.modules()
        stems = {**{name: stem for name, (_, stem) in NAMES.items()}, **_OF_NORMS}
        stems |= {f"experts_{part}{end}": f"ffn_{part}_exps.{end[1:] or 'weight'}"
                  for part in ("gate", "up") for end in ("", "_bias")}  # fmt: skip
        if self.shared:
            stems |= {part: f"ffn_{part}_shexp" for part in ("gate", "up", "down")}
        modules = {**products, **norms, "last_norm": self.last_norm().removesuffix(".weight")}
        modules |= {**self.mixture(), **self.halves(), **_modules("sinks", "scalar", *ROUTER)}
        found = {module: own.stems.get(name, stems[name]) for name, module in modules.items()}
        for layer in self.states.values():
            found |= dict([*layer.weights.values(), *layer.parts.values()])
        return found | {module: _FUSED_STEMS.get(module, module) for module in self.fused}
