"""Loading of models and tokenizers from folders or a hub; choice of device and number format; checks of tokenizers."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from draftwood.core.checks import short_repr
from draftwood.core.draft_kind import MASKED_BLOCK, SEQ2SEQ, DraftKind
from draftwood.core.errors import ConfigError, ModelError
from draftwood.core.settings import LoadOptions
from draftwood.loading.checkpoint import (
    CONFIG,
    folder_of,
    forget_default_end,
    loading_errors,
    note_untied_head,
    refuse_gaps,
)
from draftwood.loading.gguf_config import stored_config
from draftwood.loading.gguf_header import header_of
from draftwood.loading.gguf_model import stored_file
from draftwood.loading.gguf_tokenizer import tokenizer_of
from draftwood.loading.stored_tokenizer import kept_tokenizer
from draftwood.runners.native.families import FAMILIES
from draftwood.runners.native.stored import is_model

_DTYPES = {n: getattr(torch, n) for n in ("float32", "bfloat16", "float16", "float64")}


def choose_device(name: str) -> torch.device:
    """The PyTorch device of this name. ``auto`` is CUDA if available, otherwise the CPU.

    Raises:
        ConfigError: a device that cannot be used.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.split(":")[0] == "mps":
        raise ConfigError("device 'mps' has no float64, which the noise needs: use --device cpu")
    if name == "meta":
        raise ConfigError("device 'meta' holds no numbers: use --device auto or cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ConfigError(f"device {name!r} cannot be used here ({first}): use --device auto or cpu") from error
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """The number format of this name. ``auto`` is bfloat16 on accelerators and float32 on the CPU.

    Raises:
        ConfigError: an unknown name.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if name not in _DTYPES:
        raise ConfigError(f"dtype is {name!r}: choose one of auto, {', '.join(_DTYPES)}")
    dtype: torch.dtype = _DTYPES[name]
    return dtype


def load_model(
    name: str | Path,
    options: LoadOptions,
    device: torch.device,
    dtype: torch.dtype,
    cls: type[Any] | None = None,
    device_map: str | Mapping[str, str | int] | None = None,
) -> Any:
    """A model of ``transformers`` in evaluation mode on ``device``; that of a GGUF file holds its numbers.

    Args:
        cls: a class with ``from_pretrained``; a causal language model by default.
        device_map: how accelerate spreads it over devices; by default all of it is on ``device``.

    Raises:
        ModelError: the model cannot be loaded, or its files do not hold exactly its tensors; names source and reason.
    """
    if (header := header_of(name)) is not None:
        exact = dtype if dtype == torch.bfloat16 else torch.float32
        return stored_file(header, exact).module.to(device=device, dtype=dtype)
    from transformers import AutoModelForCausalLM

    with loading_errors("model", name), without_bars():
        model, found = (cls or AutoModelForCausalLM).from_pretrained(
            str(name),
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
            device_map=device_map,
        )
    refuse_gaps(name, found)
    head = model.get_output_embeddings() if getattr(model.config, "tie_word_embeddings", False) else None
    if head is not None and head.weight is not model.get_input_embeddings().weight:
        note_untied_head(name)
    forget_default_end(name, model, raw_config(name, options))
    return model.eval().to(device) if device_map is None else model.eval()


@contextmanager
def without_bars() -> Iterator[None]:
    """A context without progress bars of ``transformers``, which write a line a step into a log. Those of downloads stay."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as theirs

    shown, downloads = theirs.is_progress_bar_enabled(), not are_progress_bars_disabled()
    theirs.disable_progress_bar()  # and those of downloads
    if downloads:
        enable_progress_bars()
    try:
        yield
    finally:
        if shown:
            theirs.enable_progress_bar()
        if not downloads:
            disable_progress_bars()


def raw_config(name: str | Path, options: LoadOptions) -> dict[str, Any]:
    """A model's ``config.json``. Its ``model_type`` is one of ``transformers``, such as ``marian``, or Draftwood's own.

    Raises:
        ModelError: no configuration was found, or its ``model_type`` is no text.
    """
    if (header := header_of(name)) is not None:
        return stored_config(header)
    with loading_errors("configuration", name):
        if Path(name).is_dir():
            found = dict(json.loads((Path(name) / CONFIG).read_text(encoding="utf-8")))
        else:
            from transformers import PretrainedConfig

            found, _ = PretrainedConfig.get_config_dict(str(name), trust_remote_code=options.trust_remote_code)
        for setting, kind in (("model_type", str), ("architectures", list)):
            if not isinstance(value := found.get(setting), kind | None):
                raise TypeError(f"its {setting} is {value!r}")
    return dict(found)


def class_of(kind: DraftKind) -> Any:
    """The class that loads a model of a kind, which is slow to import; None for causal models."""
    if kind is MASKED_BLOCK:
        return import_module("draftwood.runners.blocks.masked_block").MaskedBlockDrafter
    return import_module("transformers").AutoModelForSeq2SeqLM if kind is SEQ2SEQ else None


def is_encoder_decoder(name: str | Path, options: LoadOptions) -> bool:
    """Whether a model of ``transformers`` has an encoder.

    Raises:
        ModelError: no configuration was found, or its type is unknown.
    """
    if header_of(name) is not None or raw_config(name, options).get("model_type") in FAMILIES:
        return False
    from transformers import AutoConfig

    with loading_errors("configuration", name):
        return bool(AutoConfig.from_pretrained(str(name), trust_remote_code=options.trust_remote_code).is_encoder_decoder)


def load_tokenizer(name: str | Path, options: LoadOptions) -> Any:
    """The tokenizer of a folder or a hub model.

    Raises:
        ModelError: the tokenizer cannot be loaded; names the source and the reason.
    """
    if (header := header_of(name)) is not None:
        return tokenizer_of(header)

    def load() -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(name), trust_remote_code=options.trust_remote_code)

    folder = None if options.trust_remote_code else folder_of(name)
    with loading_errors("tokenizer", name):
        return load() if folder is None else kept_tokenizer(folder, load)


@final
class _Notes(logging.Handler):
    """Prints this package's log messages on the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"Note: {record.getMessage()}.", file=sys.stderr)


def quiet_loading() -> None:
    """For command lines: switch off loading bars and advice of transformers; downloads still show their progress.
    Notes of this package go to standard error."""
    own = logging.getLogger("draftwood")
    if not any(isinstance(handler, _Notes) for handler in own.handlers):
        own.addHandler(_Notes(logging.INFO))
        own.setLevel(logging.INFO)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it is slow to import
    if "transformers" in sys.modules:
        from transformers.utils import logging as theirs

        theirs.set_verbosity_error()


def token_difference(target: Any, draft: Any) -> str | None:
    """The first token id that does not mean the same to both models; None if all do."""
    ours, theirs = target.get_vocab(), draft.get_vocab()
    for token, index in sorted(theirs.items(), key=lambda item: item[1]):
        if ours.get(token, index) != index or (token not in ours and index < len(ours)):
            return f"token {token!r} is number {index} for the draft and {ours.get(token, 'unknown')} for the target"
    return None


def eos_of(model: Any, tokenizer: Any, vocab: int) -> list[int]:
    """End-of-text tokens: of the generation config, else of the model's config, else of the tokenizer.

    Args:
        vocab: size of the model's vocabulary.

    Raises:
        ModelError: a token outside the vocabulary, with which no text would end.
    """
    generation = getattr(model, "generation_config", None)
    sources = {"generation config": generation, "config": model.config, "tokenizer": tokenizer}
    for name, source in sources.items():
        if (found := getattr(source, "eos_token_id", None)) is not None:
            ends = found if isinstance(found, list | tuple) else [found]
            if bad := [token for token in ends if not (isinstance(token, int) and 0 <= token < vocab)]:
                raise ModelError(
                    f"the {name} of the target names end-of-text token {bad[0]!r}, but the target knows tokens 0 to "
                    f"{vocab - 1}: correct eos_token_id there"
                )
            return list(ends)
    return []


def check_parts(model: Any, draft_model: Any, tokenizer: Any) -> None:
    """Refuse anything but models and their tokenizer.

    Raises:
        ConfigError: names the argument.
    """
    for name, given, needed in (("model", model, True), ("draft_model", draft_model, False)):
        if not is_model(given) and (needed or given is not None):
            raise ConfigError(f"{name} is {short_repr(given)}: give a model of transformers; names and folders are for load")
    if isinstance(tokenizer, str | int | float | Mapping | Sequence | nn.Module):
        raise ConfigError(
            f"tokenizer is {short_repr(tokenizer)}: give a tokenizer of transformers, or None for token ids only"
        )
