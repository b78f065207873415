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


class MuonAdamW(torch.optim.Optimizer):
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
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = _muon if group["muon"] else _adam
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update(self.state[parameter], parameter.grad, group["betas"]), alpha=-group["lr"])
        return loss


def _muon(state: dict[str, Any], grad: Tensor, betas: tuple[float, float]) -> Tensor:
    """Orthogonalised Nesterov momentum, scaled to the root mean square of an AdamW update."""
    if not state:
        state["momentum"] = torch.zeros_like(grad)
    momentum: Tensor = state["momentum"]
    momentum.mul_(betas[1]).add_(grad)
    return orthogonal(grad.add(momentum, alpha=betas[1])) * (0.2 * math.sqrt(max(grad.shape)))


def _adam(state: dict[str, Any], grad: Tensor, betas: tuple[float, float]) -> Tensor:
    """The AdamW update without its learning rate (Loshchilov & Hutter, arXiv 1711.05101)."""
    if not state:
        state |= {"step": 0, "mean": torch.zeros_like(grad), "square": torch.zeros_like(grad)}
    state["step"] += 1
    mean: Tensor = state["mean"]
    square: Tensor = state["square"]
    mean.lerp_(grad, 1 - betas[0])
    square.lerp_(grad.square(), 1 - betas[1])
    step = int(state["step"])
    mean_hat, square_hat = mean / (1 - betas[0] ** step), square / (1 - betas[1] ** step)
    return mean_hat / (square_hat.sqrt() + 1e-8)


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
