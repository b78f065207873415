"""What drafters of hidden states have in common: a vocabulary, weights that the target may lend, and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.errors import PairingError
from draftwood.runners.context import layer_count
from draftwood.runners.native.stored import StoredModel


class DrafterModule(nn.Module):
    """The base of the networks, with what the rooms above ask of a model of ``transformers``.

    The configuration has ``target_layers, target_size, vocab_size, hidden_size, draft_vocab_size, own_embedding, own_head,
    rope_frequencies, rope_scale``. Hidden states of ``target_layers``, numbered as in ``output_hidden_states``, have
    ``target_size`` numbers each. ``vocab_size`` is the target's.

    Attributes:
        draft_tokens: the target's numbers of the tokens that it can propose.
    """

    draft_tokens: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.own_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("draft_tokens", torch.arange(config.draft_vocab_size))

    def embedding(self, target: Any) -> nn.Module:
        """The embedding of tokens: the drafter's, or else the target's."""
        found: nn.Module = self.embed_tokens if self.config.own_embedding else target.get_input_embeddings()
        return found

    def head(self, target: Any) -> Float[Tensor, "draft_vocab width"]:
        """The output weights: the drafter's, or else rows of the target's."""
        if isinstance(target, StoredModel) and not self.config.own_head:
            return target.head.rows(self.draft_tokens.tolist()).tensor(target.dtype)
        own = self.config.own_head
        found: Tensor = self.lm_head.weight if own else target.get_output_embeddings().weight[self.draft_tokens.long()]
        return found

    def rotation(self, positions: Int[Tensor, "row token"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [row, 1, token, dim / 2] of rotary embeddings."""
        frequencies = torch.tensor(self.config.rope_frequencies, device=positions.device)
        angles = positions[:, None, :, None].float() * frequencies
        return angles.cos() * self.config.rope_scale, angles.sin() * self.config.rope_scale

    @property
    def dtype(self) -> torch.dtype:
        """The number format of its weights."""
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return next(self.parameters()).device

    def can_generate(self) -> bool:
        """Whether it writes texts without its target: no."""
        return False

    def save_pretrained(self, folder: str | Path) -> None:
        """Write configuration and weights, as ``transformers`` does."""
        from safetensors.torch import save_file

        self.config.architectures, self.config.dtype = [type(self).__name__], self.dtype
        self.config.save_pretrained(folder)
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})


class PublishedDrafter(DrafterModule):
    """The base of published drafters. Names of the weights are those of the checkpoints."""

    def check_target(self, target: Any) -> None:
        """Raise a PairingError if hidden states, vocabulary or shared weights of a target do not fit; names both numbers."""
        own, (vocabulary, width) = self.config, target.get_output_embeddings().weight.shape
        _equal("reads hidden states of width", own.target_size, "the target's have", width)
        _equal("has a vocabulary of size", own.vocab_size, "the target's has", vocabulary)
        deepest, layers = max(own.target_layers), layer_count(target.config)
        if deepest >= layers:
            raise PairingError(
                f"the drafter reads the output of layer {deepest} before the final norm, and of this target layers 0 to "
                f"{layers - 1} can be read so: give the drafter's own target"
            )
        if own.own_embedding and own.own_head:
            return
        _equal("has hidden states of width", own.hidden_size, "and shares weights of the target, whose width is", width)
        if not own.own_embedding and type(target.get_input_embeddings()) is not nn.Embedding:
            raise PairingError(
                "the drafter shares the target's embeddings, which this target scales "
                f"({type(target.get_input_embeddings()).__name__}): take a drafter with embed_tokens of its own"
            )
        if not own.own_head and target.get_output_embeddings().bias is not None:
            raise PairingError(
                "the drafter shares the target's output weights, which have a bias here: take a drafter with an lm_head"
            )


def _equal(what: str, own: int, other: str, found: int) -> None:
    if own != found:
        raise PairingError(f"the drafter {what} {own}, {other} {found}: give the drafter's own target")
