"""A training run: its settings, its steps, its records, and its resumption after a stop."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, final

import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file, replacing
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.number_format import number_format
from draftwood.train.reports import Report, measured, show

Loss = Callable[[Any, dict[str, Tensor]], Tensor]
"""From a model and a batch to the loss."""

_MAY_CHANGE = {
    *("steps", "minutes", "save_every", "report_every", "data", "out"),
    *("tokens", "rows", "epochs", "chats"),  # of chats
}
_LOG_EVERY = 50  # steps between losses that are printed, at most


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
class _Run:
    """A run up to some step; what a checkpoint holds of it makes it go on to the same weights."""

    def __init__(self, config: DrafterConfig, model: nn.Module) -> None:
        self.model, self.path = model, config.out / "checkpoint.pt"
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [weight for weight in trained if weight.ndim < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, betas=(0.9, config.beta2), fused=True)
        self.history: list[dict[str, Any]] = []
        self.step = 0
        if self.path.is_file():
            self._load()
        self._began = monotonic() - max((entry["seconds"] for entry in self.history), default=0.0)

    def _load(self) -> None:
        found = torch.load(self.path, map_location=next(self.model.parameters()).device, weights_only=True)
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.history, self.step = found["history"], found["step"]

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        with replacing(self.path) as part:
            model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
            torch.save({"model": model, "optimizer": optimizer, "history": self.history, "step": self.step}, part)

    def note(self, **figures: Any) -> dict[str, Any]:
        """Add figures to the history."""
        self.history.append({"step": self.step, "seconds": round(monotonic() - self._began, 1), **figures})
        return self.history[-1]

    def update(self, rate: float, clip: float) -> None:
        """A step of the optimizer by the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        nn.utils.clip_grad_norm_(self.model.parameters(), clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1


def fit(config: DrafterConfig, model: nn.Module, dataset: Any, report: Report, *, what: str, loss: Loss) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; returns steps, seconds, tokens per second and history.

    The learning rate rises linearly, and falls linearly to zero at the last step. With a time limit it falls at least as
    fast as linearly in time; such a run cannot be repeated exactly.

    Args:
        dataset: batches by number, with ``tokens_until`` from a number of them to that of their tokens.
        what: the size of the data, which is printed.
    """
    print(f"{parameters(model):,} parameters, {what}", flush=True)
    where, steps = device(), len(dataset)
    run, began, left = _Run(config, model.to(where).train()), monotonic(), 1.0
    limit, losses = math.inf if config.minutes is None else 60 * config.minutes, list[Tensor]()
    while run.step < steps and left > 0:
        if run.step % config.report_every == 0:
            show(f"step {run.step:,}", run.note(report=measured(model, report))["report"])
        batch = {name: part.to(where) for name, part in dataset[run.step].items()}
        value = loss(model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        losses.append(value.detach())
        left = max(0.0, 1 - (monotonic() - began) / limit)
        run.update(config.learning_rate * min(left, _schedule(run.step, steps, config.warmup)), config.clip)
        if run.step % min(_LOG_EVERY, config.report_every) == 0:
            entry = run.note(loss=float(torch.stack(losses).mean()))
            losses.clear()
            print(f"step {run.step:,} of {steps:,}: loss {entry['loss']:.4g}, {entry['seconds']:.0f} s", flush=True)
        if run.step % config.save_every == 0:
            run.save()
    seconds, tokens = run.note()["seconds"], dataset.tokens_until(run.step)
    return {
        "steps": run.step,
        "tokens_seen": tokens,
        "seconds": seconds,
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "torch": torch.__version__,
        "history": run.history,
    }


def _schedule(step: int, steps: int, warmup: int) -> float:
    """The share of the peak learning rate before a step."""
    return step / warmup if step < warmup else (steps - step) / max(1, steps - warmup)


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
