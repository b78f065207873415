"""Shared parts of all training runs: settings, the Trainer, reports during a run, and resumption after a stop."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import get_last_checkpoint

from draftwood.core.errors import ConfigError
from draftwood.core.files import replace_file
from draftwood.train.config import ChatsConfig, RunConfig
from draftwood.train.number_format import number_format
from draftwood.train.optim import MuonAdamW

Report = Callable[[Any], dict[str, Any]]
"""From a model to named figures."""

_GONE = {"loss": "kl", "parallel": None, "cuts": None}  # settings of earlier versions, as all runs have them now
_MAY_CHANGE = {
    *("steps", "minutes", "save_every", "report_every", "report_blocks", "report_pairs", "compile", "data", "out"),
    *("tokens", "rows", "epochs", "chats", "dtype"),  # of chats
}


def require(package: str, what: str) -> None:
    """Check that a package of the extra ``train`` is installed, without which ``what`` cannot run.

    Raises:
        ConfigError: it is not; names the extra to install.
    """
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f'{what} needs the package {package}; install it with: pip install "draftwood[train]"')


def claim(config: RunConfig | ChatsConfig) -> None:
    """Create the output folder and record the settings in it.

    Raises:
        ConfigError: the folder holds a run with other settings.
    """
    path = config.out / "run.json"
    wanted = plain(config)
    if path.is_file():
        # Settings may be newer than the record, or may have left since.
        found = _GONE | _defaults(config) | json.loads(path.read_text(encoding="utf-8"))
        now = _GONE | wanted
        differ = sorted(k for k in now.keys() - _MAY_CHANGE if found.get(k) != now[k])
        if differ:
            what = ", ".join(f"{k}={found.get(k)!r} there, {now[k]!r} here" for k in differ)
            raise ConfigError(f"{config.out} holds a run with other settings ({what}); give another folder")
    config.out.mkdir(parents=True, exist_ok=True)
    write_json(path, wanted)


def plain(config: RunConfig | ChatsConfig) -> dict[str, Any]:
    """The settings as JSON values; only the last two parts of each path, so that a record names no machine."""
    return {name: _json_value(value) for name, value in asdict(config).items()}


def _defaults(config: RunConfig | ChatsConfig) -> dict[str, Any]:
    """The settings that have a default, as JSON values."""
    return {one.name: _json_value(one.default) for one in fields(config) if one.default is not MISSING}


def _json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return "/".join(value.parts[-2:])
    return list(value) if isinstance(value, tuple) else value


def write_json(path: Path, value: object) -> None:
    """Write readable JSON in one step."""
    replace_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


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
    """Print figures on held-out text."""
    print(f"{when}, on held-out text:", *_described(figures), sep="\n  ", flush=True)


def _described(figures: Mapping[str, Any]) -> list[str]:
    """Lines of text: one for the figures, and one for each group of figures."""
    groups = {name: value for name, value in figures.items() if isinstance(value, Mapping)}
    own = ", ".join(f"{name} {_shown(value)}" for name, value in figures.items() if name not in groups)
    return [*filter(None, [own]), *(f"{name}: {'; '.join(_described(group))}" for name, group in groups.items())]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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


def callbacks(config: RunConfig, report: Report) -> list[TrainerCallback]:
    """The Trainer callbacks of a run with these settings."""
    return [Reporter(config.report_every, report), Deadline(config.minutes, config.learning_rate)]


def measured(model: nn.Module, report: Report) -> dict[str, Any]:
    """The figures of a model in evaluation mode; its mode is restored."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return report(model)
    finally:
        model.train(training)


def device() -> torch.device:
    """Where training runs: on a GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments(config: RunConfig, steps: int, whole_batches: bool = False) -> TrainingArguments:
    """Trainer settings: float32 weights, products in the faster number format, on a GPU if there is one.

    Args:
        whole_batches: each item of the data is a complete batch, and items are used in order.
    """
    return TrainingArguments(
        output_dir=str(config.out / "checkpoints"),
        max_steps=steps,
        per_device_train_batch_size=1 if whole_batches else config.batch,
        train_sampling_strategy="sequential" if whole_batches else "random",
        learning_rate=config.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=config.warmup,
        weight_decay=config.weight_decay,
        adam_beta1=0.9,
        adam_beta2=config.beta2,
        max_grad_norm=config.clip,
        seed=config.seed,
        bf16=number_format(device().type) is torch.bfloat16,
        torch_compile=config.compile,
        use_cpu=device().type == "cpu",
        save_steps=config.save_every,
        save_total_limit=2,
        logging_steps=min(50, config.report_every),
        report_to=[],
        remove_unused_columns=False,
        dataloader_drop_last=True,
        dataloader_pin_memory=device().type == "cuda",
    )


def optimizers(config: RunConfig, model: nn.Module) -> tuple[MuonAdamW | None, None]:
    """The Trainer's argument ``optimizers``; None leaves AdamW to the Trainer."""
    if config.optimizer == "adamw":
        return None, None
    return MuonAdamW(model, config.learning_rate, config.weight_decay, (0.9, config.beta2)), None


def steps_of(config: RunConfig, blocks: int) -> int:
    """The number of optimizer steps: from the settings, or one pass over the blocks.

    Raises:
        ConfigError: the blocks do not fill a batch.
    """
    steps = blocks // config.batch if config.steps is None else config.steps
    if steps < 1 or blocks < config.batch:
        raise ConfigError(f"{blocks} blocks do not fill a batch of {config.batch}; give more text or a smaller batch")
    return steps


def run(trainer: Trainer, tokens_until: Callable[[int], int]) -> dict[str, Any]:
    """Train, from the last checkpoint if there is one; returns steps, seconds, tokens per second and history.

    Args:
        tokens_until: from a number of steps to the number of tokens in them.
    """
    last = get_last_checkpoint(trainer.args.output_dir) if Path(trainer.args.output_dir).is_dir() else None
    for printer in (PrinterCallback, ProgressCallback):  # they print dictionaries
        trainer.remove_callback(printer)
    trainer.train(resume_from_checkpoint=last)
    history = trainer.state.log_history
    seconds = max((entry.get("seconds", 0.0) for entry in history), default=0.0)
    tokens = tokens_until(trainer.state.global_step)
    return {
        "steps": trainer.state.global_step,
        "tokens_seen": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "history": [{k: e[k] for k in ("step", "seconds", "loss", "report") if k in e} for e in history],
    }


def facts(config: RunConfig, model: nn.Module, held_out_tokens: dict[str, int]) -> dict[str, Any]:
    """The first entries of every run's metrics."""
    return {
        "config": plain(config),
        "parameters": parameters(model),
        "number_format": str(number_format(device().type)).removeprefix("torch."),
        "held_out_tokens": held_out_tokens,
    }


def parameters(model: nn.Module) -> int:
    """The number of trained parameters, without duplicates of tied ones."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Write the model as bfloat16 safetensors with its configuration and tokenizer."""
    model.config.use_cache = True
    save_weights(model, out)
    for machine_bound in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(machine_bound, None)
    tokenizer.save_pretrained(out)


def save_weights(model: Any, out: Path) -> None:
    """Write the model as bfloat16 safetensors with its configuration."""
    model.to(torch.bfloat16).save_pretrained(out)


def batches(blocks: Tensor, size: int, device: torch.device) -> list[Tensor]:
    """Batches of at most ``size`` blocks, on a device."""
    return [blocks[i : i + size].to(device) for i in range(0, len(blocks), size)]
