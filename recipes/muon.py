"""Muon for a network's inner weight matrices, AdamW for the rest; it reaches a loss with fewer tokens than AdamW alone.

Sources: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (coefficients of the iteration);
Liu et al. 2025, arXiv 2502.16982 (weight decay, and the scale by which both parts share one learning rate).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from draftwood.train.number_format import number_format


class MuonAdamW(torch.optim.AdamW):
    """Muon on 2-D weights other than embeddings, AdamW on embeddings, norms and biases."""

    def __init__(self, model: nn.Module, lr: float, weight_decay: float, betas: tuple[float, float]) -> None:
        embedded = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
        named = [p for p in model.parameters() if p.requires_grad]
        matrices = [p for p in named if p.ndim == 2 and id(p) not in embedded]
        embeddings = [p for p in named if id(p) in embedded]
        vectors = [p for p in named if p.ndim != 2 and id(p) not in embedded]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "muon": True, "weight_decay": weight_decay},
            {"params": embeddings, "muon": False, "weight_decay": weight_decay},
            {"params": vectors, "muon": False, "weight_decay": 0.0},
        ]
        super().__init__([g for g in groups if g["params"]], lr=lr, betas=betas)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient; the gradients of Muon's are taken away."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"] if group["muon"] else ():
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update = _muon(self.state[parameter], parameter.grad, group["betas"][1])
                    parameter.add_(update, alpha=-group["lr"])
                    parameter.grad = None
        super().step()
        return loss


def _muon(state: dict[str, Any], grad: Tensor, beta: float) -> Tensor:
    """Orthogonalised Nesterov momentum, scaled to the root mean square of an AdamW update."""
    if not state:
        state |= {"step": torch.zeros(()), "momentum": torch.zeros_like(grad)}  # AdamW expects a step in every state
    momentum: Tensor = state["momentum"]
    momentum.mul_(beta).add_(grad)
    return orthogonal(grad.add(momentum, alpha=beta)) * (0.2 * math.sqrt(max(grad.shape)))


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """``matrix`` with its singular values replaced by values near 1, by a quintic Newton-Schulz iteration."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x = (matrix if wide else matrix.T).to(number_format(matrix.device.type))
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    result: Tensor = x if wide else x.T
    return result.to(matrix.dtype)
