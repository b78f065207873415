"""What published drafters of hidden states have in common: a vocabulary, and weights that the target may lend."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.core.errors import PairingError
from draftwood.runners.context import layer_count
from draftwood.runners.hidden.layers import rotation, target_embedding, target_head
from draftwood.runners.hidden.module import DrafterModule


class PublishedDrafter(DrafterModule):
    """The base of published drafters. Names of the weights are those of the checkpoints.

    The configuration has ``target_layers, target_size, vocab_size, hidden_size, draft_vocab_size, own_embedding, own_head,
    rope_frequencies, rope_scale``. Hidden states of ``target_layers``, numbered as in ``output_hidden_states``, have
    ``target_size`` numbers each. ``vocab_size`` is the target's.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        if config.own_embedding:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.own_head:
            self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("draft_tokens", torch.arange(config.draft_vocab_size))

    def embedding(self, target: Any) -> nn.Module:
        """The embedding of tokens: the drafter's, or else the target's."""
        return self.embed_tokens if self.config.own_embedding else target_embedding(target)

    def head(self, target: Any) -> Float[Tensor, "draft_vocab width"]:
        """The output weights: the drafter's, or else rows of the target's."""
        if self.config.own_head:
            own: Tensor = self.lm_head.weight
            return own
        return target_head(target, self.draft_tokens)

    def rotation(self, positions: Int[Tensor, "row token"]) -> tuple[Tensor, Tensor]:
        """Cosines and sines [row, 1, token, dim / 2] of rotary embeddings."""
        return rotation(positions, self.config.rope_frequencies, self.config.rope_scale)

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
