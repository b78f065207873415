"""Where a model's files are, and their errors, with the name of the file, the tensor or the option."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

from draftwood.core.errors import DraftwoodError, ModelError, is_out_of_memory, needs
from draftwood.loading.gguf_header import read_header

_LOG = logging.getLogger(__name__)
CONFIG: Final = "config.json"
GENERATION_CONFIG: Final = "generation_config.json"
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_END: Final = "eos_token_id"
_POINTER: Final = b"version https://git-lfs"
_MERGE: Final = "merge its adapter into the model (merge_and_unload of peft), and save that"
_SHOWN = 3  # tensors that a message names
_ADVICE = (
    f"give a folder made by save_pretrained ({CONFIG}, model.safetensors, tokenizer.json), a GGUF file, or the name of a "
    "hub model with safetensors weights"
)


def folder_of(name: str | Path) -> Path | None:
    """The folder with a model's files: ``name`` itself, or that of a downloaded hub model; None if there is none."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(str(name), CONFIG)
    except HFValidationError:
        return None
    return Path(config).parent if isinstance(config, str) else None


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a folder's weights; raises an OSError, or a ValueError for an index that is none."""
    if not (folder / _INDEX).is_file():
        return [folder / _WEIGHTS]
    return [folder / file for file in sorted(set(_json(folder / _INDEX)["weight_map"].values()))]


def tensor_table(path: Path) -> tuple[dict[str, Any], int]:
    """What a safetensors file says of each tensor, and the place where their numbers begin; read once, so not to change."""
    state = path.stat()
    return _table(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4)
def _table(path: Path, _size: int, _modified: int) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        table: dict[str, Any] = json.loads(file.read(min(size, _size)))
    table.pop("__metadata__", None)
    return table, 8 + size


def has_head(name: str | Path) -> bool:
    """Whether a folder, a downloaded hub model or a GGUF file has an MTP head that can draft for it."""
    from draftwood.runners.native.families import with_head  # --help does without
    from draftwood.runners.native.family import MTP

    try:
        if Path(name).is_file():
            header = read_header(Path(name))
            return with_head(header.architecture) and any(".nextn." in tensor.name for tensor in header.tensors)
        folder = folder_of(name)
        if folder is None or not with_head(_json(folder / CONFIG).get("model_type")):
            return False
        names = _json(folder / _INDEX)["weight_map"] if (folder / _INDEX).is_file() else tensor_table(folder / _WEIGHTS)[0]
        return any(tensor.startswith(MTP) for tensor in names)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ModelError):
        return False  # the loading says what is wrong with the files


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def check_path(name: object) -> None:
    """Refuse a name that is neither a folder with a model nor a readable hub model.

    Only models that are not in the local cache are looked up on the hub, once.

    Raises:
        ModelError: names what is missing.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise ModelError(
            f"a model was given as {name!r}: give the name of a hub model or a folder; models in memory go to "
            "draftwood.Pair or draftwood.Translator"
        )
    text, folder = str(name), Path(name)
    if text.startswith("~"):
        raise ModelError(f"{text!r} begins with ~, which only a shell expands: write the whole path")
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            advice = _MERGE if (folder / "adapter_config.json").is_file() else _ADVICE
            raise ModelError(f"the folder {text!r} holds no {CONFIG}: {advice}")
        refuse_pointers([*folder.glob("model*.safetensors"), *folder.glob("tokenizer.*")])
        _check_generation_config(folder / GENERATION_CONFIG)
    elif isinstance(name, Path) or text.startswith((".", "/")) or text.count("/") > 1:
        raise ModelError(f"there is no folder {text!r}: give a folder made by save_pretrained, or the name of a hub model")
    else:
        _check_hub(text)


def refuse_pointers(files: Iterable[Path]) -> None:
    """Refuse files of a clone that Git LFS has not downloaded."""
    for path in files:
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ModelError(f"{str(path)!r} is a pointer of Git LFS, not the file: run 'git lfs pull' in its folder")


def _check_generation_config(path: Path) -> None:
    """Refuse an unreadable file. Transformers ignores it, and texts would follow another distribution."""
    try:
        if path.is_file() and not isinstance(_json(path), dict):
            raise ValueError("it holds no object")
    except ValueError as error:
        raise ModelError(f"{path} cannot be read as JSON ({error}): correct it, or remove it") from error


@cache
def _check_hub(name: str) -> None:
    """Request the config once. Loading would repeat failed requests for a minute."""
    with hub_errors(name):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

        if not isinstance(try_to_load_from_cache(name, CONFIG), str):
            get_hf_file_metadata(hf_hub_url(name, CONFIG))


@contextmanager
def hub_errors(name: str) -> Iterator[None]:
    """A context in which errors of the hub are ModelErrors, with the reason and what to do."""
    from huggingface_hub import errors

    try:
        yield
        return
    except errors.HFValidationError:
        why = "that is neither a folder nor a possible name on the hub, and Ollama has no such model here"
    except errors.OfflineModeIsEnabled:
        why = "it is not in the local cache, and HF_HUB_OFFLINE forbids access to the hub; check the name, or unset that"
    except errors.GatedRepoError:
        why = "its owner grants access on its hub page; request it there, then log in with 'hf auth login'"
    except errors.RepositoryNotFoundError:
        why = "the hub knows no such model; check the name, or log in with 'hf auth login' if it is private"
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        why = f"it is not in the local cache, and the hub could not be reached ({first_line(cause)})"
    except errors.EntryNotFoundError:
        why = f"it holds no {CONFIG}, so transformers cannot load it; if it holds GGUF files, name one: {name}:Q4_K_M"
    except Exception as error:
        why = f"it is not in the local cache, and the hub could not be reached ({first_line(error)}); check name and network"
    raise ModelError(f"there is no folder {name!r}, and as the name of a hub model it cannot be read: {why}")


def refuse_gaps(name: str | Path, found: Mapping[str, Collection[Any]]) -> None:
    """Refuse a model whose files do not hold exactly its tensors, since missing ones would be random.

    Args:
        name: the model's folder or hub name.
        found: the loading info of ``from_pretrained(..., output_loading_info=True)`` in ``transformers``. It leaves out tied
            tensors and those that the model's class may lack or ignore.

    Raises:
        ModelError: names the first few tensors of each kind.
    """
    if troubles := gaps(found):
        raise ModelError(
            f"the files of {str(name)!r} do not hold the model that their {CONFIG} describes: they {troubles}. Give the "
            f"{CONFIG} and the weights of one model, saved together by save_pretrained"
        )


def gaps(found: Mapping[str, Collection[Any]]) -> str:
    """What such files lack and what they hold too much, in words; empty if that is nothing."""
    missing, unexpected = sorted(found["missing_keys"]), sorted(found["unexpected_keys"])
    shapes = [f"{key} is {size_text(came)} and should be {size_text(due)}" for key, came, due in found["mismatched_keys"]]
    troubles = [
        *([f"lack {_counted(missing)} ({_first(missing)})"] if missing else []),
        *([f"hold {_counted(unexpected)} that the model has no place for ({_first(unexpected)})"] if unexpected else []),
        *([f"hold {_counted(shapes)} of another shape ({_first(sorted(shapes))})"] if shapes else []),
    ]
    return " and ".join(troubles)


def note_untied_head(name: str | Path) -> None:
    """Say that the files of a model hold two embeddings that its config calls tied: ``transformers`` follows the files."""
    _LOG.warning(
        "the config of %r says that input and output embeddings are tied, but its files hold two different ones, which "
        "are used",
        str(name),
    )


def forget_default_end(name: str | Path, model: Any, config: Mapping[str, Any]) -> None:
    """Take away an end-of-text token that no file names: the default of the class is any token of another vocabulary.

    Args:
        config: the model's ``config.json``.
    """
    if _END in config or any(isinstance(part, Mapping) and _END in part for part in config.values()):
        return
    model.config.eos_token_id = None
    folder = folder_of(name)
    path = None if folder is None else folder / GENERATION_CONFIG
    if path is not None and path.is_file() and _json(path).get(_END) is not None:
        return
    if (generation := getattr(model, "generation_config", None)) is not None:
        generation.eos_token_id = None


@contextmanager
def loading_errors(what: str, name: str | Path) -> Iterator[None]:
    """A context in which errors of ``transformers`` are ModelErrors; ``what`` is the part that is loaded there."""
    try:
        yield
    except DraftwoodError:
        raise
    except Exception as error:
        raise ModelError(_cannot_load(what, name, error)) from error


def _cannot_load(what: str, name: str | Path, error: Exception) -> str:
    begin = f"the {what} of {str(name)!r} cannot be loaded: "
    if is_out_of_memory(error):
        return f"{begin}it needs more memory than there is; take a smaller model, or a shorter number format (bfloat16)"
    if "trust_remote_code" in str(error):
        return (
            f"{begin}it needs Python code of its own, which does not run unless you trust it; read that code, then give "
            "--trust-remote-code, in Python LoadOptions(trust_remote_code=True)"
        )
    if isinstance(error, ImportError) and "sentencepiece" in str(error).lower():
        return needs(f"the tokenizer of {str(name)!r}", "sentencepiece", "translate")
    if broken := _unreadable(name):
        return f"{begin}{broken}; copy or download that file again"
    return f"{begin}{first_line(error).rstrip(':.')}. {_ADVICE[0].upper()}{_ADVICE[1:]}"


def _unreadable(name: str | Path) -> str | None:
    """The first damaged file of a model, with the error; None if there is none."""
    from safetensors import safe_open

    folder = folder_of(name)
    for path in sorted(folder.glob("*")) if folder is not None else ():
        try:
            if path.suffix == ".json":
                _json(path)
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="numpy"):
                    pass
        except Exception as error:
            return f"its file {str(path)!r} cannot be read ({first_line(error).rstrip('.')})"
    return None


def first_line(error: Exception) -> str:
    """The first line of what an error says, with the next one if a colon ends it, else its class."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 1 + lines[0].endswith(":")])


def _counted(tensors: Collection[str]) -> str:
    return f"{len(tensors)} tensor{'s' if len(tensors) > 1 else ''}"


def _first(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f", and {more} more" if more > 0 else "")


def size_text(sizes: Any) -> str:
    """The sizes of a tensor in words."""
    return " x ".join(map(str, sizes)) or "a single number"
