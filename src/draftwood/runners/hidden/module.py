"""What drafters of hidden states have in common with models of ``transformers``, whose modules are slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class DrafterModule(nn.Module):
    """A network with a configuration of ``transformers``.

    Attributes:
        draft_tokens: the target's numbers of the tokens that it can propose.
    """

    draft_tokens: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

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
