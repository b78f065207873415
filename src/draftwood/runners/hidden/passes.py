"""What a library does for the runner of a drafter of hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from draftwood.runners.hidden.text import HiddenText


class Passes(ABC):
    """Passes over new entries and nodes of rows, with the table of the entries.

    A pass that scores nodes is the method ``score``, whose arguments depend on the kind of the drafter.

    Args:
        network: makes a pass.
        table: the rows' entries, a :class:`draftwood.runners.slots.SlotTable` or another one with its methods.
        width: numbers of a token's hidden states.
        dtype: of hidden states and scores.
        device: of the same.

    Attributes:
        engine, pads: of the runner.
        shift: of :class:`HiddenText`.
    """

    engine: str
    pads: bool
    shift = 0

    def __init__(self, network: nn.Module, table: Any, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.network: Any = network
        self.table = table
        self.dtype = dtype
        self._nothing = torch.zeros(1, width, dtype=dtype, device=device)

    @abstractmethod
    def read(self, text: HiddenText) -> None:
        """Read what waits of a text, whose entries are the row that comes later."""
