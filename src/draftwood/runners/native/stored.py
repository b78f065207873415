"""A causal model that is read from its files: the model of ``transformers`` is built only if somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.runners.context import rotary_settings, unknown_sizes
from draftwood.runners.native.rotary import Rotary, head_size
from draftwood.runners.native.weights import Weight, rounded
from draftwood.runners.plain_config import PlainConfig
from draftwood.runners.support import attention_problem
from draftwood.runners.windows import Window, sliding_window


class Stored(NamedTuple):
    """What the class of a model type in ``transformers`` holds, and which settings it reads.

    Attributes:
        name: of the class.
        norms: those of a layer.
        head_norms: queries and keys have norms: of each head, or ``"joint"`` of all heads together.
        fused: the projections of queries, keys and values are one, and so are the two before the activation.
        biases: the setting that gives matrices with such names a bias; empty if they always have one.
        windows: settings of sliding attention.
        scale: the setting of the attention's scale, and its power; the size of a head if empty.
        scaled: the embedding is multiplied by the square root of its width, and ``hidden_activation`` counts.
    """

    name: str
    norms: tuple[str, ...] = ("input", "post_attention")
    head_norms: str = ""
    fused: bool = False
    biases: Mapping[str, str] = {}
    windows: tuple[str, ...] = ()
    scale: tuple[str, float] = ("", -0.5)
    scaled: bool = False


_ATTENTION: Final = {"self_attn.": "attention_bias"}
_BOTH: Final = {**_ATTENTION, "mlp.": "mlp_bias"}
_LAYERS: Final = ("sliding_window", "layer_types")
_GEMMA: Final = Stored(
    "Gemma2ForCausalLM", ("input", "post_attention", "pre_feedforward", "post_feedforward"), biases=_ATTENTION,
    windows=_LAYERS, scale=("query_pre_attn_scalar", -0.5), scaled=True,
)  # fmt: skip
FAMILIES: Final = {
    "llama": Stored("LlamaForCausalLM", biases=_BOTH),
    "mistral": Stored("MistralForCausalLM", windows=("sliding_window",)),
    "qwen2": Stored(
        "Qwen2ForCausalLM", biases=dict.fromkeys(("self_attn.q", "self_attn.k", "self_attn.v"), ""), windows=_LAYERS
    ),
    "qwen3": Stored("Qwen3ForCausalLM", head_norms="each", biases=_ATTENTION, windows=_LAYERS),
    "smollm3": Stored("SmolLM3ForCausalLM", biases=_BOTH, windows=_LAYERS),
    "olmo2": Stored("Olmo2ForCausalLM", ("post_attention", "post_feedforward"), "joint", biases=_ATTENTION),
    "granite": Stored("GraniteForCausalLM", biases=_BOTH, scale=("attention_multiplier", 1.0)),
    "phi3": Stored("Phi3ForCausalLM", fused=True, windows=("sliding_window",)),
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA._replace(name="Gemma3ForCausalLM", head_norms="each"),
}
"""Model types that are read from files."""
ACTIVATIONS: Final = {"silu": 0, "swish": 0, "gelu_pytorch_tanh": 1}  # ``draftwood::Facts::gelu``
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_FACTORS: Final = (
    "embedding_multiplier", "residual_multiplier", "logits_scaling", "final_logit_softcapping", "attn_logit_softcapping",
)  # fmt: skip
_ROTARY: Final = ("default", "linear", "llama3", "yarn", "longrope")


def why_not_stored(config: Any) -> str | None:
    """Why a model of this configuration is not read from its files; None if it is."""
    own = FAMILIES.get(config.model_type)
    if own is None or own.name not in (config.architectures or [own.name]):
        return f"model type {config.model_type!r}"
    for rotary in rotary_settings(config):
        partial = rotary.get("partial_rotary_factor", 1.0) != 1.0 and config.model_type != "phi3"
        if partial or rotary.get("rope_type", "default") not in _ROTARY:
            return "its rotary embedding"
    if (activation := config.hidden_activation if own.scaled else config.hidden_act) not in ACTIVATIONS:
        return f"activation {activation!r}"
    if (factor := zero_factor(config)) is not None:
        return f"a {factor} of 0"
    if config.model_type == "smollm3" and len(config.no_rope_layers) != config.num_hidden_layers:
        return "the number of its no_rope_layers"
    if getattr(config, "quantization_config", None) is not None:
        return "a quantized checkpoint"
    strange = {name for name in _LAYERS if getattr(config, name, None)} - set(own.windows)
    if strange or unknown_sizes(config) or attention_problem(config) or getattr(config, "use_bidirectional_attention", None):
        return "a size of its attention"
    return None


def zero_factor(config: Any) -> str | None:
    """A factor or a cap of 0, which the engine takes as none; None if there is none."""
    return next((name for name in _FACTORS if getattr(config, name, None) == 0), None)


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of such a model, with a head of its own."""
    width, inner, head = config.hidden_size, config.intermediate_size, head_size(config)
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    own = FAMILIES[config.model_type]
    outputs = {
        "self_attn.q_proj": queries, "self_attn.k_proj": keys, "self_attn.v_proj": keys, "mlp.gate_proj": inner,
        "mlp.up_proj": inner,
    }  # fmt: skip
    if own.fused:
        outputs = {"self_attn.qkv_proj": queries + 2 * keys, "mlp.gate_up_proj": 2 * inner}
    matrices = {"self_attn.o_proj": (width, queries), "mlp.down_proj": (width, inner)}
    matrices |= {name: (size, width) for name, size in outputs.items()}
    biased = tuple(part for part, setting in own.biases.items() if not setting or getattr(config, setting, False))
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in matrices.items()}
    layer |= {f"{name}.bias": shape[:1] for name, shape in matrices.items() if name.startswith(biased)}
    if own.head_norms:
        sizes = (queries, keys) if own.head_norms == "joint" else (head, head)
        layer |= {f"self_attn.{name}_norm.weight": (size,) for name, size in zip("qk", sizes, strict=True)}
    layer |= {f"{name}_layernorm.weight": (width,) for name in own.norms}
    whole = {EMBEDDING: (config.vocab_size, width), "model.norm.weight": (width,), HEAD: (config.vocab_size, width)}
    layers = range(config.num_hidden_layers)
    return whole | {f"model.layers.{number}.{name}": shape for number in layers for name, shape in layer.items()}


class StoredPart:
    """A part of a model, with the names of the modules and weights of ``transformers``. What is not there has no bias."""

    bias = None
    family = ""  # of a whole model: its class in ``transformers``
    window: Window | None = None

    def child(self, name: str) -> StoredPart:
        """The part of this name."""
        found: StoredPart = vars(self).setdefault(name, StoredPart())
        return found


@final
class StoredModel:
    """What a model of ``transformers`` says of itself, and its weights as they lie in files.

    Anything else, such as a call or ``generate``, is that of :attr:`module`. Raises a KeyError or a TypeError for
    settings of the rotary embedding that ``transformers`` would complete.

    Args:
        config, generation_config: its configurations.
        weights: by name; no head if it is tied to the embedding.
        dtype: float32 or bfloat16: the format that it computes in.
        coded: codes stay codes in memory. ``activations`` are the bits of the inputs of products with them, 8 or 16.
    """

    device, training = torch.device("cpu"), False

    def __init__(
        self, config: Any, generation_config: Any, weights: Mapping[str, Weight], dtype: torch.dtype, *, coded: bool = False
    ) -> None:
        self.config, self.weights, self.dtype, self.coded = config, weights, dtype, coded
        self.rounded, self._rotary, self.activations = "", Rotary(config), 16
        self.name_or_path = str(getattr(config, "_name_or_path", ""))
        self._generation_config = generation_config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "weights" not in vars(self):  # of an object that is being made, or copied
            raise AttributeError(name)
        return getattr(self.module, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    @property
    def generation_config(self) -> Any:
        """The defaults of ``generate``."""
        return self._generation_config

    @generation_config.setter
    def generation_config(self, config: Any) -> None:
        self._generation_config = config
        if "module" in vars(self):
            self.module.generation_config = config

    @cached_property
    def module(self) -> Any:
        """The model of ``transformers``, with the same numbers; built at the first use."""
        import transformers

        tensors = {name: weight.tensor(self.dtype) for name, weight in self.weights.items()}
        config = transformers.AutoConfig.for_model(**self.config.to_dict())
        config.tie_word_embeddings = HEAD not in tensors
        with torch.device("meta"):
            model = getattr(transformers, FAMILIES[config.model_type].name)(config)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its numbers are not among the weights
        if FAMILIES[config.model_type].scaled:
            model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        if isinstance(self._generation_config, PlainConfig):
            self._generation_config = transformers.GenerationConfig(**self._generation_config.to_diff_dict())
        model.generation_config, model.name_or_path = self._generation_config, self.name_or_path
        return model.eval()

    def eval(self) -> StoredModel:
        return self  # it is never in training mode

    @property
    def integers(self) -> bool:
        """Whether products with its codes are those of integers."""
        eight = self.coded and self.activations == 8 and self.dtype == torch.bfloat16
        return eight and any(weight.coded for weight in self.weights.values())

    @property
    def vocabulary(self) -> tuple[int, int]:
        """Numbers of tokens that it reads and scores."""
        return self.weights[EMBEDDING].shape[0], self.head.shape[0]

    @property
    def head(self) -> Weight:
        """The output weights, which may be those of the embedding."""
        return self.weights.get(HEAD, self.weights[EMBEDDING])

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Numbers of each weight, and their bytes in memory."""
        for weight in self.weights.values():
            count = int(torch.Size(weight.shape).numel())
            yield count, weight.data.nbytes if self.coded and weight.coded else count * self.dtype.itemsize

    def embedded(self, tokens: Int[Tensor, "*token"]) -> Float[Tensor, "*token width"]:
        """The embeddings of tokens."""
        rows = self.weights[EMBEDDING].rows(tokens.flatten().tolist()).tensor(self.dtype).view(*tokens.shape, -1)
        scale = getattr(self.parts().get_input_embeddings(), "embed_scale", None)
        return rows if scale is None else rows * scale.to(self.dtype)

    def get_input_embeddings(self) -> nn.Embedding:
        """A new module with the numbers of the embedding, or that of :attr:`module` if it does more."""
        if FAMILIES[self.config.model_type].scaled:
            found: nn.Embedding = self.module.get_input_embeddings()
            return found
        table = self.weights[EMBEDDING].tensor(self.dtype)
        return nn.Embedding(table.shape[0], table.shape[1], _weight=table)

    def get_output_embeddings(self) -> nn.Linear:
        """A new module with the output weights."""
        head, (outputs, inputs) = self.head, self.head.shape
        found = nn.Linear(inputs, outputs, bias=False, device="meta")
        found.weight = nn.Parameter(head.tensor(self.dtype), requires_grad=False)
        return found

    def round_to(self, bits: int) -> None:
        """Round all matrices to codes: that is another model. Embedding and head keep eight bits.

        A matrix stays as it is where 32 does not divide its inputs.
        """
        self.weights = {
            name: rounded(weight.tensor(torch.float32), 8 if name in (EMBEDDING, HEAD) else bits)
            if len(weight.shape) > 1 and weight.shape[-1] % 32 == 0
            else weight
            for name, weight in self.weights.items()
        }
        self.coded, self.rounded = True, f"int{bits}"

    def parts(self) -> Any:
        """The model as parts, in which a :class:`Weight` lies where ``transformers`` has a tensor."""
        whole, config, own = StoredPart(), self.config, FAMILIES[self.config.model_type]
        for name, weight in {HEAD: self.head, **self.weights}.items():
            *path, last = name.split(".")
            part = whole
            for step in path:
                part = part.child(step)
            setattr(part, last, weight)
        model: Any = whole.child("model")
        model.layers = [model.child("layers").child(str(number)) for number in range(config.num_hidden_layers)]
        model.norm.variance_epsilon = model.norm.eps = config.rms_norm_eps
        model.rotary_emb = self._rotary
        if own.scaled:
            model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5)
        for number, layer in enumerate(model.layers):
            attention, (setting, power) = layer.self_attn, own.scale
            attention.head_dim, attention.num_key_value_heads = head_size(config), config.num_key_value_heads
            attention.scaling = (getattr(config, setting) if setting else head_size(config)) ** power
            attention.use_rope = config.model_type != "smollm3" or config.no_rope_layers[number]
        found: Any = whole
        found.family, found.config, found.dtype = own.name, config, self.dtype
        found.activations, found.window = 8 if self.integers else 16, sliding_window(config)
        found.get_output_embeddings, found.get_input_embeddings = lambda: found.lm_head, lambda: found.model.embed_tokens
        return found


def weight_sizes(model: Any) -> Iterator[tuple[int, int]]:
    """Numbers of each weight of a model, and their bytes in memory."""
    if isinstance(model, StoredModel):
        return model.sizes()
    return ((weight.numel(), weight.numel() * weight.element_size()) for weight in model.parameters())


def whole(model: Any) -> Any:
    """The model of ``transformers``, if this is a stored one."""
    return model.module if isinstance(model, StoredModel) else model
