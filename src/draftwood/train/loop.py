"""Training: the settings of a run, the loop, resumption after a stop, and records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from time import monotonic
from typing import Any, Final, TypeAlias, final

import torch
import transformers
from torch import Tensor, nn

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file, replacing
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.number_format import number_format

Loss: TypeAlias = Callable[[Any, dict[str, Tensor]], Tensor]
"""From a model and a batch to the loss."""
Report: TypeAlias = Callable[[Any], dict[str, Any]]
"""From a model to named figures."""
_LOGGED: Final = 50  # steps between two losses that are printed, at most

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


def write_json(path: Any, value: object) -> None:
    """Write readable JSON in one step."""
    replace_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def device() -> torch.device:
    """Where training runs: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def learning_rate(config: DrafterConfig, step: int, steps: int, left: float) -> float:
    """The rate of a step, counted from 0: it rises for ``warmup`` steps, and falls to zero at the last one.

    With a time limit, of which the share ``left`` remains, it falls at least as fast as linearly in time.
    """
    rising, falling = (step + 1) / max(1, config.warmup), (steps - step) / max(1, steps - config.warmup)
    return config.learning_rate * min(1.0, rising, falling, left)


@final
class Run:
    """The training of a model with AdamW. What it knows is in its checkpoint, from which a stopped run goes on.

    A run with a time limit cannot be repeated exactly. Its metrics hold the number of steps.

    Attributes:
        step: steps that were done.
        history: reports and losses with their steps and seconds.
    """

    def __init__(self, config: DrafterConfig, model: nn.Module) -> None:
        self._config, self._model, self._file = config, model.to(device()), config.out / "checkpoint.pt"
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        groups = [
            {"params": [weight for weight in trained if weight.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [weight for weight in trained if weight.ndim <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, config.learning_rate, (0.9, config.beta2))
        self.step, self.history = 0, list[dict[str, Any]]()
        self._losses: list[Tensor] = []
        self._began, self._before = monotonic(), 0.0
        if self._file.is_file():
            found = torch.load(self._file, map_location=device(), weights_only=True)
            model.load_state_dict(found["model"])
            self._optimizer.load_state_dict(found["optimizer"])
            self.step, self.history, self._before = found["step"], found["history"], found["seconds"]

    @property
    def seconds(self) -> float:
        """Those of training, with the runs before a stop."""
        return round(self._before + monotonic() - self._began, 1)

    def left(self) -> float:
        """The share of the time limit that remains, from 1 to 0; 1 without one."""
        limit = self._config.minutes
        return 1.0 if limit is None else max(0.0, 1 - (monotonic() - self._began) / (60 * limit))

    def update(self, batch: dict[str, Tensor], loss: Loss, rate: float) -> None:
        """One step."""
        value = loss(self._model, {name: part.to(device()) for name, part in batch.items()})
        self._optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._model.parameters(), self._config.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self.step += 1
        self._losses.append(value.detach())

    def report(self, report: Report) -> None:
        """Add and print held-out figures."""
        figures = measured(self._model, report)
        self.history.append({"step": self.step, "seconds": self.seconds, "report": figures})
        show(f"step {self.step:,}", figures)

    def log(self, steps: int) -> None:
        """Add and print the mean loss since the last time; ``steps`` are those of the whole run."""
        loss = float(torch.stack(self._losses).mean())
        self._losses = []
        self.history.append({"step": self.step, "seconds": self.seconds, "loss": loss})
        print(f"step {self.step:,} of {steps:,}: loss {loss:.4g}, {self.seconds:.0f} s", flush=True)

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        parts: dict[str, Any] = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}
        state = parts | {"step": self.step, "history": self.history, "seconds": self.seconds}
        with replacing(self._file) as part:
            torch.save(state, part)


def fit(config: DrafterConfig, model: nn.Module, batches: Any, report: Report, loss: Loss) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; returns steps, seconds, tokens per second and history.

    Args:
        batches: a sequence with one for every step; a batch depends on its number alone.
    """
    run, steps, logged = Run(config, model), len(batches), min(_LOGGED, config.report_every)
    if run.step == 0:
        run.report(report)
    model.train()
    while run.step < steps and (left := run.left()) > 0:
        run.update(batches[run.step], loss, learning_rate(config, run.step, steps, left))
        if run.step % logged == 0:
            run.log(steps)
        if run.step % config.report_every == 0 and run.step < steps:
            run.report(report)
        if run.step % config.save_every == 0:
            run.save()
    tokens = run.step * config.batch * config.anchors
    return {
        "steps": run.step,
        "tokens_seen": tokens,
        "seconds": run.seconds,
        "tokens_per_second": round(tokens / max(run.seconds, 1e-9), 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "history": run.history,
    }


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
