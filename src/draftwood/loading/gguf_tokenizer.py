"""The tokenizer of a GGUF file, made of its arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from draftwood.core.errors import ModelError
from draftwood.hardware.machine import version_of
from draftwood.loading.gguf_header import NUMBERS, OTHER_FILES, Header, Value

# llama.cpp splits text at every digit for these tokenizers; transformers does not.
_DIGITS_APART: Final = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# llama.cpp begins a text with the beginning-of-text token for these, where a file does not say; transformers does not.
_BEGINS: Final = ("llama3", "llama-v3", "llama-bpe", "falcon3")
_PART: Final = "tokenizer.ggml."
_NAMES: Final = {  # of transformers, and of the file
    "tokenizer_type": "model", "pre_tokenizer_type": "pre", "tokens": "tokens", "scores": "scores",
    "token_type": "token_type", "merges": "merges", "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id", "pad_token_id": "padding_token_id", "add_prefix_space": "add_space_prefix",
}  # fmt: skip


def tokenizer_of(header: Header) -> Any:
    """The tokenizer, as ``transformers`` converts it, with the beginning and the digits as in llama.cpp.

    Raises:
        ModelError: the file holds none, or one of a kind that is not known.
    """
    try:
        return _tokenizer(header)
    except Exception as error:
        said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise ModelError(
            f"the tokenizer in the GGUF file {str(header.path)!r}, architecture {header.architecture!r}, cannot be read by "
            f"transformers {version_of('transformers')} ({said.rstrip('.')}): {OTHER_FILES}"
        ) from error


def _tokenizer(header: Header) -> Any:
    from tokenizers import pre_tokenizers
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer
    except ImportError:  # before 5.24
        from transformers.integrations.ggml import convert_gguf_tokenizer

    found: dict[str, Any] = {
        name: value for name, key in _NAMES.items() if (value := _value(header, _PART + key)) is not None
    }
    if "tokens" not in found:
        raise ValueError("it holds no tokens")
    backend, more = convert_gguf_tokenizer(header.architecture, found)
    if found.get("pre_tokenizer_type") in _DIGITS_APART:
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    for name in ("bos", "eos", "unk", "pad"):
        number = found.get(f"{name}_token_id")
        more[f"{name}_token"] = None if number is None else found["tokens"][number]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=header.metadata.get("tokenizer.chat_template"), **more
    )
    begins = found.get("pre_tokenizer_type") in _BEGINS or found.get("tokenizer_type") == "llama"
    if header.metadata.get(f"{_PART}add_bos_token", begins):
        tokenizer.add_bos_token = True
    if header.metadata.get(f"{_PART}add_eos_token"):
        tokenizer.add_eos_token = True
    return tokenizer


def _value(header: Header, key: str) -> Value | list[Any] | None:
    """A value of the metadata, or an array as a list; None if the file has neither."""
    if (array := header.arrays.get(key)) is None:
        return header.metadata.get(key)
    with header.path.open("rb") as file:
        file.seek(array.begin)
        if not array.holds_texts:
            return list(np.fromfile(file, f"<{NUMBERS[array.kind]}", array.count).tolist())
        data = file.read(header.data_start - array.begin)
    found, at = [], 0
    for _ in range(array.count):
        size = int.from_bytes(data[at : at + 8], "little")
        found.append(data[at + 8 : at + 8 + size].decode("utf-8"))
        at += 8 + size
    return found
