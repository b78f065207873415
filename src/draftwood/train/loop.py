"""Training runs: settings, steps, records, and resumption after a stop."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file, replacing
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.reports import Report, measured, show

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
        self._began = time.monotonic()
        self._start = self._began - max((entry["seconds"] for entry in self.history), default=0.0)

    @property
    def seconds(self) -> float:
        """The length of the run so far, without pauses."""
        return round(time.monotonic() - self._start, 1)

    def left(self) -> float:
        """The share of the time that is left, 0 after the last step. A run with a time limit cannot be repeated exactly."""
        if self.step >= self._steps:
            return 0.0
        minutes = math.inf if self._config.minutes is None else self._config.minutes
        return max(0.0, 1 - (time.monotonic() - self._began) / (60 * minutes))

    def advance(self, loss: Tensor, left: float) -> None:
        """Make a step; the learning rate falls at least as fast as the share of the time that is ``left``."""
        config, done = self._config, self.step - self._config.warmup
        share = self.step / config.warmup if done < 0 else 1 - done / max(1, self._steps - config.warmup)
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate * min(share, left)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._model.parameters(), config.clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._losses.append(loss.detach())
        self.step += 1

    def note(self, report: Report) -> None:
        """Print and write what is due after a step."""
        config = self._config
        if self.step % min(50, config.report_every) == 0:
            self._log()
        if self.step % config.report_every == 0 and self.step < self._steps:
            self.report(report)
        if self.step % config.save_every == 0 or self.step == self._steps:
            self._save()

    def _log(self) -> None:
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

    def _save(self) -> None:
        """Write a checkpoint in the place of the last one."""
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._file) as part:
            torch.save({**state, "step": self.step, "history": self.history}, part)


def parameters(model: nn.Module) -> int:
    """The number of trained parameters, without duplicates of tied ones."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
