"""Reports of training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

Report = Callable[[Any], dict[str, Any]]
"""From a model to named figures."""


def measured(model: nn.Module, report: Report) -> dict[str, Any]:
    """The figures of a model in evaluation mode; its mode is restored."""
    training = model.training
    model.eval()
    with torch.no_grad():
        figures = report(model)
    model.train(training)
    return figures


def show(when: str, figures: Mapping[str, Any]) -> None:
    """Print figures on held-out text, groups of them on lines of their own."""
    groups = [f"{name}: {_words(value)}" for name, value in figures.items() if isinstance(value, Mapping)]
    print(f"{when}, on held-out text:", *(groups or [_words(figures)]), sep="\n  ", flush=True)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items())
    if isinstance(value, list):
        return " ".join(map(_words, value))
    return f"{value:.4g}"
