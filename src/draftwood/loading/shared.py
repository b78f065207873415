"""A target that several processes share: which models can be, and the loading of this process's part."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch

from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.hardware.threads import loading_threads
from draftwood.loading.checkpoint import cannot_load
from draftwood.loading.models import choose_device, choose_dtype, load_model
from draftwood.runners.parallel import Leader, follow
from draftwood.runners.processes import joined


def join() -> None:
    """Join the processes of ``torchrun``. Only the one of rank 0 returns; the others follow it to its end, and end.

    Raises:
        ConfigError: ``torchrun`` did not start this process, or there are GPUs but none for this process.
        ModelError: the processes do not find each other; or, above rank 0, that of rank 0 has ended without a word.
    """
    if (group := joined()).rank:
        follow(group, _load_part)


def load_shared(name: str | Path, options: LoadOptions, *, whole: bool) -> Any:
    """A target in evaluation mode of which each process has loaded its part, after :func:`join`.

    The parts of the vocabulary stay ``whole`` for a drafter that reads them.

    Raises:
        ConfigError: a device or number format that cannot be used.
        ModelError: the model cannot be loaded, or not be divided among so many processes.
    """
    return _leader().load(name, options, whole)


@cache
def _leader() -> Leader:
    return Leader(joined(), _load_part)


def _load_part(name: str | Path, options: LoadOptions, whole: bool) -> Any:
    with loading_threads(options.threads):
        device = choose_device(options.device)
        shards = _shards(name, options, joined().size, whole)
        return load_model(name, options, device, choose_dtype(options.dtype, device), spread={"distributed_config": shards})


def _shards(name: str | Path, options: LoadOptions, size: int, whole: bool) -> Any:
    """How ``transformers`` divides a model among processes; raises a ConfigError or a ModelError if it cannot."""
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        from transformers.distributed import DistributedConfig
    except ImportError as error:
        raise ConfigError("tensor_parallel needs a newer transformers: install version 5.24 or later") from error
    try:
        config = AutoConfig.from_pretrained(str(name), trust_remote_code=options.trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=options.trust_remote_code)
    except Exception as error:
        raise ModelError(cannot_load("model", name, error)) from error
    text = config.get_text_config()
    if not any("*" in rule for rule in model.tp_plan or ()):
        raise ModelError(
            f"model type {config.model_type!r} cannot be shared by processes: transformers has no plan for its layers. "
            "Leave tensor_parallel out"
        )
    for what in ("num_attention_heads", "num_key_value_heads"):
        if (heads := getattr(text, what, None)) and heads % size:
            raise ModelError(
                f"{size} processes cannot share this model: its configuration says {what}={heads}. Start a number of "
                "processes that divides it"
            )
    parts = (model.get_input_embeddings(), model.get_output_embeddings()) if whole else ()
    kept = {path: "replicate" for path, module in model.named_modules() if any(module is part for part in parts)}
    return DistributedConfig(tp_size=size, tp_plan=kept or None)
