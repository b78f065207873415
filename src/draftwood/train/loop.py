"""Shared parts of all training runs: settings, the Trainer, its reports and time limit, records, resumption after a stop."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import get_last_checkpoint

from draftwood.core.errors import ConfigError, needs
from draftwood.core.files import replace_file
from draftwood.train.config import ChatsConfig, DrafterConfig
from draftwood.train.number_format import number_format

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


Loss = Callable[[Any, dict[str, Tensor], TrainerState], Tensor]
"""From a model, a batch and the state of the training to the loss."""

_MAY_CHANGE = {
    *("steps", "minutes", "save_every", "report_every", "out"),
    *("tokens", "rows", "epochs", "chats"),  # of chats
}


def require_accelerate() -> None:
    """Check that the package ``accelerate`` is installed, without which nothing is trained."""
    if importlib.util.find_spec("accelerate") is None:
        raise ConfigError(needs("training", "accelerate", "train"))


def claim(config: DrafterConfig | ChatsConfig) -> None:
    """Create the output folder and record the settings in it."""
    if isinstance(config, DrafterConfig):
        require_accelerate()
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


class LossTrainer(Trainer):  # type: ignore[misc]
    """A Trainer with a loss of its own."""

    def __init__(self, *, loss: Loss, **settings: Any) -> None:
        super().__init__(**settings)
        self.loss = loss

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any) -> Any:
        """See Trainer."""
        loss = self.loss(model, inputs, self.state)
        return (loss, {}) if return_outputs else loss


def device() -> torch.device:
    """Where training runs: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments(config: DrafterConfig, steps: int) -> TrainingArguments:
    """Trainer settings: float32 weights, products in the faster number format, on a GPU if there is one."""
    return TrainingArguments(
        output_dir=str(config.out / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=1,
        train_sampling_strategy="sequential",
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        adam_beta1=0.9,
        adam_beta2=config.beta2,
        max_grad_norm=config.clip,
        seed=config.seed,
        bf16=number_format(device().type) is torch.bfloat16,
        use_cpu=device().type == "cpu",
        save_steps=config.save_every,
        save_total_limit=2,
        logging_steps=min(50, config.report_every),
        report_to=[],
        remove_unused_columns=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=device().type == "cuda",
    )


def fit(config: DrafterConfig, model: nn.Module, dataset: Any, report: Report, *, what: str, loss: Loss) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; returns steps, seconds, tokens per second and history.

    Args:
        dataset: a Dataset whose items are batches, with ``tokens_until`` from a number of them to that of their tokens.
        what: the size of the data, which is printed.
    """
    settings = arguments(config, len(dataset))
    trainer = LossTrainer(
        loss=loss,
        model=model,
        args=settings,
        data_collator=_the_batch,
        train_dataset=dataset,
        callbacks=[Reporter(config.report_every, report), Deadline(config.minutes, config.learning_rate)],
    )
    for printer in (PrinterCallback, ProgressCallback):  # they print dictionaries
        trainer.remove_callback(printer)
    print(f"{parameters(model):,} parameters, {what}", flush=True)
    folder = settings.output_dir
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if Path(folder).is_dir() else None)
    history, steps = trainer.state.log_history, trainer.state.global_step
    seconds = max((entry.get("seconds", 0.0) for entry in history), default=0.0)
    tokens = dataset.tokens_until(steps)
    return {
        "steps": steps,
        "tokens_seen": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "history": [{k: e[k] for k in ("step", "seconds", "loss", "report") if k in e} for e in history],
    }


def _the_batch(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The single item of a data loader's batch, which is a complete batch itself."""
    (item,) = items
    return item


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
