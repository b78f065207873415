"""Reports and time limits of training runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

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


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Adds held-out figures and seconds to the Trainer's history, which is part of its checkpoints."""

    def __init__(self, every: int, report: Report) -> None:
        self.every, self.report, self.start = every, report, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        before = max((entry.get("seconds", 0.0) for entry in state.log_history), default=0.0)
        self.start = time.monotonic() - before
        if state.global_step == 0:
            self._add(state, model)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        entry = state.log_history[-1]
        entry["seconds"] = round(time.monotonic() - self.start, 1)
        if "loss" in entry:
            print(
                f"step {entry['step']:,} of {state.max_steps:,}: loss {entry['loss']:.4g}, {entry['seconds']:.0f} s",
                flush=True,
            )

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
        if state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._add(state, model)

    def _add(self, state: Any, model: Any) -> None:
        entry = {"step": state.global_step, "report": measured(model, self.report)}
        state.log_history.append(entry | {"seconds": round(time.monotonic() - self.start, 1)})
        show(f"step {state.global_step:,}", entry["report"])


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


class Deadline(TrainerCallback):  # type: ignore[misc]
    """Ends a run after a given time; the learning rate falls to zero at least as fast as linearly in time.

    Such a run cannot be repeated exactly. Its metrics hold the number of steps.
    """

    def __init__(self, minutes: float | None, learning_rate: float) -> None:
        self.seconds = math.inf if minutes is None else 60 * minutes
        self.learning_rate, self.start = learning_rate, time.monotonic()

    def left(self) -> float:
        """The remaining share of the time, from 1 to 0."""
        return max(0.0, 1 - (time.monotonic() - self.start) / self.seconds)

    def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = min(group["lr"], self.learning_rate * self.left())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= self.left() == 0
