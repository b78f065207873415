"""A causal model by its weights, as the native engine takes it: those of files, or of a live model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.native.library import Facts, LayerSource
from draftwood.runners.context import SLIDING, sliding_window
from draftwood.runners.native.experts import outputs_first
from draftwood.runners.native.facts import facts_of, rotates
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.family import EMBEDDING, HEAD
from draftwood.runners.native.layers import (
    LAYER_TABLE,
    input_size,
    kinds_of,
    lender_of,
    of_layer,
)
from draftwood.runners.native.layouts import for_transformers
from draftwood.runners.native.rotary import Rotary
from draftwood.runners.native.sources import Held, factor, layer_source
from draftwood.runners.native.weights import Weight, rounded
from draftwood.runners.plain_config import PlainConfig


@final
class StoredModel:
    """What a model of ``transformers`` says of itself, and its weights as they lie in files, or in a live model.

    Anything else, such as a call or ``generate``, is that of :attr:`module`, which is built only if somebody asks for it.
    Raises a KeyError or a TypeError for settings of the rotary embedding that ``transformers`` would complete.

    Args:
        config, generation_config: its configurations.
        weights: by name; no head if it is tied to the embedding. Of a live model the buffers too.
        dtype: float32 or bfloat16: the format that it computes in.
        coded: codes stay codes in memory. ``activations`` are the bits of the inputs of products with them, 8 or 16.

    Attributes:
        mtp: the weights of an MTP head in the same files, by their names in it; empty without one.
        rotary: its rotations.
    """

    device, training = torch.device("cpu"), False

    def __init__(
        self, config: Any, generation_config: Any, weights: Mapping[str, Any], dtype: torch.dtype, *, coded: bool = False
    ) -> None:
        self.config, self.weights, self.dtype, self.coded = config, weights, dtype, coded
        self.rounded, self.activations = "", 16
        self.mtp: dict[str, Weight] = {}
        self.rotary = Rotary(config, weights)
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

        exact = FAMILIES[self.config.model_type].names.get("router_bias", "no weight")
        formats = {name: torch.float32 if name.endswith(exact) else self.dtype for name in self.weights}
        tensors = {name: weight.tensor(formats[name]) for name, weight in self.weights.items()}
        tensors = for_transformers(self.config, tensors)
        config = transformers.AutoConfig.for_model(**self.config.to_dict())
        config.tie_word_embeddings = HEAD not in tensors
        with torch.device("meta"):
            model = getattr(transformers, FAMILIES[config.model_type].name)(config)
        for name in ("rotary_emb", "pos_emb"):  # whose numbers are not among the weights
            if (rotary := getattr(model.model, name, None)) is not None:
                setattr(model.model, name, type(rotary)(config))
        if FAMILIES[config.model_type].scaled:
            model.model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5, dtype=torch.float32)
        if size := input_size(config):
            model.model.embed_tokens_per_layer.embed_scale = torch.tensor(size**0.5, dtype=torch.float32)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        if isinstance(self.generation_config, PlainConfig):
            self.generation_config = transformers.GenerationConfig(**self.generation_config.to_diff_dict())
        model.generation_config, model.name_or_path = self.generation_config, self.name_or_path
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
    def head(self) -> Any:
        """The output weights, which may be those of the embedding."""
        return self.weights.get(HEAD, self.weights[EMBEDDING])

    def facts(self) -> Facts:
        """The facts of the model."""
        return facts_of(
            self.config,
            bfloat16=self.dtype == torch.bfloat16,
            activations=8 if self.integers else 16,
            vocab=self.head.shape[0],
            tokens=self.weights[EMBEDDING].shape[0],
            **({"embedding_scale": scale} if (scale := self.embedding_scale()) else {}),
        )

    def embedding_scale(self, table: str = EMBEDDING) -> float:
        """What rows of a table are multiplied by, as it is rounded; 0 for nothing. A live model may have rounded it."""
        width = self.config.hidden_size if table == EMBEDDING else input_size(self.config)
        scale = torch.tensor(width**0.5 if FAMILIES[self.config.model_type].scaled else 0.0)
        return float(self.weights.get(f"{table[:-6]}embed_scale", scale).to(self.dtype))

    def norm(self) -> Any:
        """What the norm before the head multiplies by."""
        own = FAMILIES[self.config.model_type]
        return factor(self.weights[own.last_norm()], own, self.dtype)

    def layers(self, facts: Facts) -> Iterator[LayerSource]:
        """The weights of the layers; the memory of one lives until the next one is taken."""
        config, own = self.config, FAMILIES[self.config.model_type]
        window, tables = sliding_window(config) if own.windows else None, self.rotary.layer_types
        for number, kind in enumerate(kinds_of(config)):
            slides = window is not None and (window.everywhere or kind == SLIDING)
            held = Held(self.dtype, coded=self.coded)
            yield layer_source(
                self.weights, f"model.layers.{number}.", held, of_layer(config, number, facts), own,
                window=window.size if window is not None and slides else 0,
                states=own.states.get(kind),
                lender=lender_of(config, number),
                rotary=-1 if not rotates(config, number) else tables.index(kind) if kind in tables else 0,
            )  # fmt: skip

    def sizes(self) -> Iterator[tuple[int, int]]:
        """Numbers of each weight, and their bytes in memory."""
        for weight in self.weights.values():
            count = int(torch.Size(weight.shape).numel())
            yield count, weight.nbytes if self.coded and weight.coded else count * self.dtype.itemsize

    def round_to(self, bits: int) -> None:
        """Round all matrices to codes: that is another model. Embeddings and head keep eight bits.

        A matrix stays as it is where 32 does not divide its inputs.
        """
        self.weights = {
            name: rounded(weight.tensor(torch.float32), 8 if name in (EMBEDDING, HEAD, LAYER_TABLE) else bits)
            if len(weight.shape) > 1 and weight.shape[-1] % 32 == 0
            else weight
            for name, weight in self.weights.items()
        }
        self.coded, self.rounded = True, f"int{bits}"


def source_of(model: Any) -> StoredModel:
    """A causal model for the engine: one of ``transformers`` that :func:`why_not` does not refuse, or a stored one."""
    if isinstance(model, StoredModel):
        return model
    weights = outputs_first(FAMILIES[model.config.model_type], {**dict(model.named_buffers()), **model.state_dict()})
    return StoredModel(model.config, None, weights, model.dtype)


def embedded(model: Any, tokens: Int[Tensor, "token"]) -> Float[Tensor, "token width"]:
    """The embeddings of tokens in a model."""
    if not isinstance(model, StoredModel):
        found: Tensor = model.get_input_embeddings()(tokens)
        return found
    rows = model.weights[EMBEDDING].rows(tokens.tolist()).tensor(model.dtype)
    scale = model.embedding_scale()
    return rows * torch.tensor(scale, dtype=model.dtype) if scale else rows


def scales_embedding(model: Any) -> bool:
    """Whether a model does more with embeddings than to look them up."""
    if isinstance(model, StoredModel):
        return FAMILIES[model.config.model_type].scaled
    return type(model.get_input_embeddings()) is not nn.Embedding


def head_rows(model: Any, tokens: Int[Tensor, "token"]) -> Float[Tensor, "token width"]:
    """A model's output weights of tokens."""
    if isinstance(model, StoredModel):
        return model.head.rows(tokens.tolist()).tensor(model.dtype)
    found: Tensor = model.get_output_embeddings().weight[tokens]
    return found


def is_model(given: Any) -> bool:
    """Whether this is a model, of ``transformers`` or stored."""
    return isinstance(given, nn.Module | StoredModel)


def is_stored(model: Any) -> bool:
    """Whether a model was read from its files by :mod:`draftwood.loading`, which has compared them with its family."""
    return isinstance(model, StoredModel)


def weight_sizes(model: Any) -> Iterator[tuple[int, int]]:
    """Numbers of each weight of a model, and their bytes in memory."""
    if isinstance(model, StoredModel):
        return model.sizes()
    return ((weight.numel(), weight.numel() * weight.element_size()) for weight in model.parameters())


def whole(model: Any) -> Any:
    """The model of ``transformers``, if this is a stored one."""
    return model.module if isinstance(model, StoredModel) else model
