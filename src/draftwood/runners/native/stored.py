"""A causal model that is read from its files: the model of ``transformers`` is built only if somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftwood.runners.context import unknown_sizes
from draftwood.runners.native.weights import Weight, rounded
from draftwood.runners.plain_config import PlainConfig
from draftwood.runners.support import attention_problem
from draftwood.runners.windows import Window, sliding_window

FAMILIES: Final = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip
"""Model types that are read from files, and their classes in ``transformers``."""
EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"
_ROTARY: Final = ("default", "linear", "llama3", "yarn")


def why_not_stored(config: Any) -> str | None:
    """Why a model of this configuration is not read from its files; None if it is."""
    own = FAMILIES.get(config.model_type)
    if own is None or own not in (config.architectures or [own]):
        return f"model type {config.model_type!r}"
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type", "default") not in _ROTARY or rotary.get("partial_rotary_factor", 1.0) != 1.0:
        return "its rotary embedding"
    if config.hidden_act not in ("silu", "swish"):
        return f"hidden_act {config.hidden_act!r}"
    if getattr(config, "quantization_config", None) is not None:
        return "a quantized checkpoint"
    if (
        unknown_sizes(config)
        or attention_problem(config)
        or (config.model_type == "llama" and sliding_window(config) is not None)
    ):
        return "a size of its attention"
    return None


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights of such a model, with a head of its own."""
    width, inner, head = config.hidden_size, config.intermediate_size, head_size(config)
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    own, attends = config.model_type, "self_attn."
    biased = own == "qwen2" or bool(getattr(config, "attention_bias", False))
    matrices = {
        f"{attends}q_proj": (queries, width), f"{attends}k_proj": (keys, width), f"{attends}v_proj": (keys, width),
        f"{attends}o_proj": (width, queries), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
        "mlp.down_proj": (width, inner),
    }  # fmt: skip
    layer: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in matrices.items()}
    for name, (outputs, _) in matrices.items():
        projects = name.startswith(attends)
        if projects and biased and (own != "qwen2" or not name.endswith("o_proj")):
            layer[f"{name}.bias"] = (outputs,)
        if not projects and own == "llama" and getattr(config, "mlp_bias", False):
            layer[f"{name}.bias"] = (outputs,)
    if own == "qwen3":
        layer |= {f"{attends}{name}_norm.weight": (head,) for name in "qk"}
    layer |= {f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    whole = {EMBEDDING: (config.vocab_size, width), "model.norm.weight": (width,), HEAD: (config.vocab_size, width)}
    layers = range(config.num_hidden_layers)
    return whole | {f"model.layers.{number}.{name}": shape for number in layers for name, shape in layer.items()}


def head_size(config: Any) -> int:
    """Numbers of a head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


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

    Anything else, such as a call or ``generate``, is that of :attr:`module`.

    Args:
        config, generation_config: its configurations.
        weights: by name; no head if it is tied to the embedding.
        dtype: float32 or bfloat16: the format that it computes in.
        coded: codes stay codes in memory.
    """

    device = torch.device("cpu")
    training = False

    def __init__(
        self, config: Any, generation_config: Any, weights: Mapping[str, Weight], dtype: torch.dtype, *, coded: bool = False
    ) -> None:
        self.config, self.weights, self.dtype, self.coded = config, weights, dtype, coded
        self.rounded = ""
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
        name = FAMILIES[self.config.model_type]
        config = getattr(transformers, name.replace("ForCausalLM", "Config"))(**self.config.to_dict())
        config.tie_word_embeddings = HEAD not in tensors
        with torch.device("meta"):
            model = getattr(transformers, name)(config)
        model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its numbers are not among the weights
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        if isinstance(self._generation_config, PlainConfig):
            self._generation_config = transformers.GenerationConfig(**self._generation_config.to_diff_dict())
        model.generation_config, model.name_or_path = self._generation_config, self.name_or_path
        return model.eval()

    def eval(self) -> StoredModel:
        """The model itself, which is never in training mode."""
        return self

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

    def get_input_embeddings(self) -> nn.Embedding:
        """A new module with the numbers of the embedding."""
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
        whole, config = StoredPart(), self.config
        for name, weight in {HEAD: self.head, **self.weights}.items():
            *path, last = name.split(".")
            part = whole
            for step in path:
                part = part.child(step)
            setattr(part, last, weight)
        model: Any = whole.child("model")
        model.layers = [model.child("layers").child(str(number)) for number in range(config.num_hidden_layers)]
        model.norm.variance_epsilon, model.rotary_emb = config.rms_norm_eps, rotary(config)
        for layer in model.layers:
            layer.self_attn.head_dim, layer.self_attn.scaling = head_size(config), head_size(config) ** -0.5
        found: Any = whole
        found.family, found.config, found.dtype = FAMILIES[config.model_type], config, self.dtype
        found.window = sliding_window(config)
        found.get_output_embeddings, found.get_input_embeddings = lambda: found.lm_head, lambda: found.model.embed_tokens
        return found


def rotary(config: Any) -> Callable[..., tuple[Float[Tensor, "1 position dim"], Float[Tensor, "1 position dim"]]]:
    """The rotary embedding of a configuration, called as the module of ``transformers``."""
    frequencies, scale = rotary_frequencies(config)

    def tables(_: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions[..., None].float() * frequencies
        both = torch.cat((angles, angles), -1)
        return both.cos() * scale, both.sin() * scale

    return tables


def rotary_frequencies(config: Any) -> tuple[Float[Tensor, "half"], float]:
    """Angles of the first position, and the factor of cosines and sines."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        from transformers import PretrainedConfig
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        config = PretrainedConfig(**config.to_dict()) if isinstance(config, PlainConfig) else config
        found, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return found, float(scale)
    head = head_size(config)
    steps = torch.arange(0, head, 2, dtype=torch.int64).float() / head
    return 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0


def weight_sizes(model: Any) -> Iterator[tuple[int, int]]:
    """Numbers of each weight of a model, and their bytes in memory."""
    if isinstance(model, StoredModel):
        yield from model.sizes()
    else:
        yield from ((weight.numel(), weight.numel() * weight.element_size()) for weight in model.parameters())


def whole(model: Any) -> Any:
    """The model of ``transformers``, if this is a stored one."""
    return model.module if isinstance(model, StoredModel) else model
