"""What drafters of hidden states have in common: a vocabulary, weights that the target may lend, and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftwood.runners.hidden.layers import rotation, target_embedding, target_head


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
