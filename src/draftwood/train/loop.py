"""Training runs: settings, steps, records, and resumption after a stop."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file, replacing
from draftwood.hardware.machine import versions
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.number_format import number_format
from draftwood.train.reports import Report, measured, show

Loss = Callable[[Any, dict[str, Tensor]], Tensor]
"""From a model and a batch to the loss."""

_MAY_CHANGE = {
    *("steps", "minutes", "save_every", "report_every", "out"),
    *("tokens", "rows", "epochs", "chats"),  # of chats
}


def claim(config: DrafterConfig | ChatsConfig) -> None:
    """Create the output folder and record the settings in it."""
    path = config.out / "run.json"
    wanted = plain(config)
    if path.is_file():
        found = json.loads(path.read_text(encoding="utf-8"))
        differ = sorted(k for k in wanted.keys() - _MAY_CHANGE if found.get(k) != wanted[k])
        if differ:
            what = ", ".join(f"{k}={found.get(k)!r} there, {wanted[k]!r} here" for k in differ)
            raise ConfigError(f"{config.out} holds a run with other settings ({what}); give another folder")
    config.out.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


def plain(config: DrafterConfig | ChatsConfig) -> dict[str, Any]:
    """The settings as JSON values; only the last two parts of each path, so that a record names no machine."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(config), default=lambda path: "/".join(path.parts[-2:])))
    return found


def write_json(path: Path, value: object) -> None:
    """Write readable JSON in one step."""
    replace_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def device() -> torch.device:
    """Where training runs: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@final
class Deadline:
    """A time limit in minutes, or none. A run with one cannot be repeated exactly; its metrics hold the number of steps."""

    def __init__(self, minutes: float | None) -> None:
        self._seconds, self._start = math.inf if minutes is None else 60 * minutes, time.monotonic()

    def left(self) -> float:
        """The remaining share of the time, from 1 to 0."""
        return max(0.0, 1 - (time.monotonic() - self._start) / self._seconds)


@final
class Run:
    """A training run with AdamW on float32 weights; it begins where a stopped one in the same folder left a checkpoint.

    Args:
        config: its settings.
        model: what is trained.
        steps: their number at the end.

    Attributes:
        step: the number of steps so far.
        history: losses and reports, with their steps and seconds.
    """

    def __init__(self, config: DrafterConfig, model: Any, steps: int) -> None:
        self._config, self._model, self._steps = config, model, steps
        self._file, self._losses = config.out / "checkpoint.pt", list[Tensor]()
        matrices, others = ([p for p in model.parameters() if (p.ndim > 1) is wide] for wide in (True, False))
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, config.beta2))
        saved: dict[str, Any] = torch.load(self._file, model.device) if self._file.is_file() else {}
        if saved:
            model.load_state_dict(saved["model"])
            self._optimizer.load_state_dict(saved["optimizer"])
        self.step, self.history = int(saved.get("step", 0)), list[dict[str, Any]](saved.get("history", ()))
        self._start = time.monotonic() - max((entry["seconds"] for entry in self.history), default=0.0)

    @property
    def seconds(self) -> float:
        """The length of the run so far."""
        return round(time.monotonic() - self._start, 1)

    def advance(self, loss: Loss, batch: dict[str, Tensor], left: float) -> None:
        """Make a step; the learning rate falls at least as fast as the share of the time that is ``left``."""
        config, done = self._config, self.step - self._config.warmup
        share = self.step / config.warmup if done < 0 else 1 - done / max(1, self._steps - config.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate * min(share, left)
        found = loss(self._model, {name: part.to(self._model.device) for name, part in batch.items()})
        torch.autograd.backward(found)
        nn.utils.clip_grad_norm_(self._model.parameters(), config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._losses.append(found.detach())
        self.step += 1

    def log(self) -> None:
        """Print the mean loss since the last time."""
        mean, seconds = float(torch.stack(self._losses).mean()), self.seconds
        self.history.append({"step": self.step, "seconds": seconds, "loss": mean})
        print(f"step {self.step:,} of {self._steps:,}: loss {mean:.4g}, {seconds:.0f} s", flush=True)
        self._losses.clear()

    def report(self, report: Report) -> None:
        """Print figures on held-out text."""
        found = measured(self._model, report)
        self.history.append({"step": self.step, "seconds": self.seconds, "report": found})
        show(f"step {self.step:,}", found)

    def save(self) -> None:
        """Write a checkpoint in the place of the last one."""
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._file) as part:
            torch.save({**state, "step": self.step, "history": self.history}, part)


def fit(config: DrafterConfig, model: nn.Module, dataset: Any, report: Report, *, what: str, loss: Loss) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; returns steps, seconds, tokens per second and history.

    Args:
        dataset: batches by their numbers, with ``tokens_until`` from a number of them to that of their tokens.
        what: the size of the data, which is printed.
    """
    deadline, steps = Deadline(config.minutes), len(dataset)
    run = Run(config, model.to(device()).train(), steps)
    print(f"{parameters(model):,} parameters, {what}", flush=True)
    if not run.step:
        run.report(report)
    while run.step < steps and (left := deadline.left()):
        run.advance(loss, dataset[run.step], left)
        if run.step % min(50, config.report_every) == 0:
            run.log()
        if run.step % config.report_every == 0 and run.step < steps:
            run.report(report)
        if run.step % config.save_every == 0 or run.step == steps:
            run.save()
    tokens, seconds = dataset.tokens_until(run.step), run.seconds
    return {
        "steps": run.step,
        "tokens_seen": tokens,
        "seconds": seconds,
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        **versions(),
        "history": run.history,
    }


def record(
    config: DrafterConfig, model: nn.Module, held_out_tokens: dict[str, int], figures: dict[str, Any]
) -> dict[str, Any]:
    """Write ``metrics.json``: the settings, facts of the model, and these figures; returns its contents."""
    metrics = {
        "config": plain(config),
        "parameters": parameters(model),
        "number_format": str(number_format(device().type)).removeprefix("torch."),
        "held_out_tokens": held_out_tokens,
        **figures,
    }
    write_json(config.out / "metrics.json", metrics)
    return metrics


def parameters(model: nn.Module) -> int:
    """The number of trained parameters, without duplicates of tied ones."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def save_weights(model: Any, out: Path) -> None:
    """Write the model as bfloat16 safetensors with its configuration."""
    model.to(torch.bfloat16).save_pretrained(out)
