"""What drafters of hidden states have in common: a vocabulary, weights that the target may lend, positions; and a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.draft_kind import draft_kind
from draftwood.core.errors import PairingError
from draftwood.runners.context import layer_count, vocabulary
from draftwood.runners.hidden.layers import HiddenLayer
from draftwood.runners.native.stored import head_rows, is_stored, scales_embedding


class DrafterModule(nn.Module):
    """The base of the networks, with what the rooms above ask of a model of ``transformers``.

    The configuration has ``target_layers, target_size, vocab_size, hidden_size, draft_vocab_size, own_embedding, own_head,
    rope_frequencies, rope_scale``. Hidden states of ``target_layers``, numbered as in ``output_hidden_states``, have
    ``target_size`` numbers each. ``vocab_size`` is the target's.

    Attributes:
        draft_tokens: the target's numbers of the tokens that it can propose.
        kind: what it is as a draft.
        family: the model type whose layers it has.
    """

    draft_tokens: Tensor
    embed_tokens: Any
    lm_head: Any
    family = "llama"

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.kind = draft_kind(self)
        self.register_buffer("draft_tokens", torch.tensor(range(config.draft_vocab_size)))  # arange would import sympy

    def embedding(self, target: Any) -> Any:
        """The embedding of tokens: the drafter's, or else the target's."""
        return self.embed_tokens if self.config.own_embedding else target.get_input_embeddings()

    def head(self, target: Any) -> Float[Tensor, "output width"]:
        """The output weights of all draft tokens: the drafter's, or else rows of the target's."""
        return self.lm_head.weight if self.config.own_head else head_rows(target, self.draft_tokens.long())

    def rotation(self, positions: Int[Tensor, "row token"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [row, 1, token, dim / 2] of rotary embeddings."""
        frequencies = torch.tensor(self.config.rope_frequencies, device=positions.device)
        angles = positions[:, None, :, None].float() * frequencies
        return angles.cos() * self.config.rope_scale, angles.sin() * self.config.rope_scale

    def weights(self) -> Mapping[str, Any]:
        """The weights as the native engine takes them, by name."""
        return self.state_dict()

    @property
    def every_token(self) -> bool:
        """Whether it can propose all of the target's tokens, in their order."""
        return torch.equal(self.draft_tokens.long().cpu(), torch.arange(self.config.vocab_size))

    @property
    def whole_head(self) -> bool:
        """Whether its output weights are all of the target's."""
        return not self.config.own_head and self.every_token

    @property
    def hidden_width(self) -> int:
        """Numbers of the hidden states that it reads of a token."""
        return len(self.config.target_layers) * int(self.config.target_size)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of its weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.parameters()).device

    def save_pretrained(self, folder: str | Path) -> None:
        """Write configuration and weights, as ``transformers`` does."""
        from safetensors.torch import save_file

        self.config.architectures, self.config.dtype = [type(self).__name__], self.dtype
        self.config.save_pretrained(folder)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


class PublishedDrafter(DrafterModule):
    """The base of published drafters."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.own_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)

    def check_target(self, target: Any) -> None:
        """Raise a PairingError if hidden states, vocabulary or shared weights of a target do not fit; names both numbers."""
        own, width = self.config, target.config.get_text_config().hidden_size
        _equal("reads hidden states of width", own.target_size, "the target's have", width)
        _equal("has a vocabulary of size", own.vocab_size, "the target's has", vocabulary(target)[1])
        deepest, layers = max(own.target_layers), layer_count(target.config)
        if deepest >= layers:
            raise PairingError(
                f"the drafter reads the output of layer {deepest} before the final norm, and of this target layers 0 to "
                f"{layers - 1} can be read so: give the drafter's own target"
            )
        if own.own_embedding and own.own_head:
            return
        _equal("has hidden states of width", own.hidden_size, "and shares weights of the target, whose width is", width)
        if not own.own_embedding and scales_embedding(target):
            raise PairingError(
                "the drafter shares the target's embeddings, which are scaled here: take a drafter with an embed_tokens"
            )
        if not own.own_head and not is_stored(target) and target.get_output_embeddings().bias is not None:
            raise PairingError(
                "the drafter shares the target's output weights, which have a bias here: take a drafter with an lm_head"
            )


def _equal(what: str, own: int, other: str, found: int) -> None:
    if own != found:
        raise PairingError(f"the drafter {what} {own}, {other} {found}: give the drafter's own target")


class BlockDrafter(DrafterModule, ABC):
    """The base of block drafters.

    The configuration also has the shape of the layers as in Llama, ``slots, block``: the number of tokens of the block, and
    that of the depths that the last of them score; and ``markov_rank`` of the Markov head, 0 without one.

    Args:
        config: the configuration.
        bias, norms: of the layers' attention.

    Attributes:
        causal: tokens of the block do not see later ones.
        norms_sources: hidden states of each layer of the target are normed first.
    """

    causal: bool
    norms_sources: bool

    def __init__(self, config: Any, *, bias: bool = False, norms: bool = False) -> None:
        super().__init__(config)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(len(config.target_layers) * config.target_size, width, bias=False)
        self.hidden_norm = nn.RMSNorm(width, eps=eps)
        self.layers = nn.ModuleList(HiddenLayer(config, bias=bias, norms=norms) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(width, eps=eps)
        if config.markov_rank:
            vocab, rank = config.vocab_size, config.markov_rank
            self.markov_in = nn.Embedding(vocab, rank, _weight=torch.empty(vocab, rank))
            self.markov_out = nn.Linear(rank, config.draft_vocab_size, bias=False)

    @abstractmethod
    def mask_embedding(self, target: Any) -> Float[Tensor, "width"]:
        """The input of every token of the block but the root."""

    def memory(
        self, hidden: Float[Tensor, "row token taps_width"], positions: Int[Tensor, "row token"]
    ) -> Float[Tensor, "layer part row kv_head token dim"]:
        """Keys and values of all layers (parts 0 and 1) for hidden states of committed tokens."""
        if self.norms_sources:
            taps = hidden.unflatten(-1, (len(self.config.target_layers), -1))
            hidden = nn.functional.rms_norm(taps, taps.shape[-1:]).flatten(-2)
        features, angles = self.hidden_norm(self.fc(hidden)), self.rotation(positions)
        layers: Any = self.layers
        return torch.stack([torch.stack(layer.self_attn.memory(features, angles)) for layer in layers])

    def states(
        self,
        x: Float[Tensor, "row token width"],
        positions: Int[Tensor, "row token"],
        memory: Sequence[Any] | Float[Tensor, "layer part row kv_head text dim"],
        mask: Float[Tensor, "row 1 token seen"] | None,
    ) -> Float[Tensor, "row token width"]:
        """Normed states of block tokens, given the text's keys and values by layer; the mask is over text, then block."""
        angles = self.rotation(positions)
        for layer, (keys, values) in zip(self.layers, memory, strict=True):
            x = layer(x, angles, keys, values, mask)
        return self.norm(x)

    def markov(self, tokens: Int[Tensor, "*node"]) -> Float[Tensor, "*node draft_vocab"]:
        """What a node's own token adds to the scores of its children."""
        if self.config.markov_rank:
            return self.markov_out(self.markov_in(tokens))
        return torch.zeros((), dtype=self.dtype, device=self.device).expand(*tokens.shape, self.config.draft_vocab_size)
