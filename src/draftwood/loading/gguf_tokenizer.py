"""The tokenizer of a GGUF file, made of its arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from draftwood.core.errors import ModelError
from draftwood.core.token_texts import byte_letters
from draftwood.loading.gguf_header import NUMBERS, Header, Value, cannot_read
from draftwood.loading.stored_tokenizer import StoredTokenizer

# llama.cpp splits text at every digit for these tokenizers; transformers does not.
_DIGITS_APART: Final = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
# llama.cpp begins a text with the beginning-of-text token for these, where a file does not say; transformers does not.
_BEGINS: Final = ("llama3", "llama-v3", "llama-bpe", "falcon3")
_END: Final = "<|endoftext|>"  # transformers adds it as a special token
_CONTROL, _USER = 3, 4  # kinds of tokens: special ones, and further ones that are found whole
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
        raise ModelError(cannot_read("tokenizer", header, error)) from error


def _tokenizer(header: Header) -> Any:
    found: dict[str, Any] = {
        name: value for name, key in _NAMES.items() if (value := _value(header, _PART + key)) is not None
    }
    if "tokens" not in found:
        raise ValueError("it holds no tokens")
    numbers = {name: found.get(f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    named = {f"{name}_token": None if at is None else str(found["tokens"][at]) for name, at in numbers.items()}
    backend, more = _byte_level(found, named.values()), dict[str, Any]()
    if not (own := backend is not None):
        try:
            from transformers.integrations.gguf import convert_gguf_tokenizer
        except ImportError:  # before 5.24
            from transformers.integrations.ggml import convert_gguf_tokenizer
        backend, more = convert_gguf_tokenizer(header.architecture, found)
    if found.get("pre_tokenizer_type") in _DIGITS_APART:
        splits = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    more |= named
    begins = found.get("pre_tokenizer_type") in _BEGINS or found.get("tokenizer_type") == "llama"
    adds = header.metadata.get(f"{_PART}add_bos_token", begins), header.metadata.get(f"{_PART}add_eos_token")
    template: Any = header.metadata.get("tokenizer.chat_template")

    def whole() -> Any:
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **more)
        if adds[0]:
            tokenizer.add_bos_token = True
        if adds[1]:
            tokenizer.add_eos_token = True
        return tokenizer

    return StoredTokenizer(backend, more, template, whole) if own and not any(adds) else whole()


def _byte_level(found: Mapping[str, Any], named: Iterable[str | None]) -> Tokenizer | None:
    """The tokenizer of a file whose kind is split here, as ``transformers`` makes it; None for any other. Tokens that are
    ``named`` have a meaning, and are special whatever their kind."""
    tokens, kinds = found["tokens"], found.get("token_type", [])
    known = found.get("tokenizer_type") == "gpt2" and found.get("pre_tokenizer_type") in _DIGITS_APART
    if not known or _END not in tokens or "merges" not in found:
        return None
    letters = {byte: letter for letter, byte in byte_letters().items()}
    spelled = [*map(frozenset(letters.values()).issuperset, tokens)]
    vocab = {
        token if own else "".join(letters[byte] for byte in token.encode()): number
        for number, (token, own) in enumerate(zip(tokens, spelled, strict=True))
    }
    merges = [tuple(merge.split(" ")) for merge in found["merges"]]
    backend = Tokenizer(models.BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False))
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    control = [token for token, kind, own in zip(tokens, kinds, spelled, strict=False) if kind == _CONTROL and own]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in (_END, *control)])
    user = [token for token, kind in zip(tokens, kinds, strict=False) if kind == _USER and token in vocab]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in named if token is not None])
    return backend


def _value(header: Header, key: str) -> Value | list[Any] | None:
    """A value of the metadata, or an array as a list; None if the file has neither."""
    if (array := header.arrays.get(key)) is None:
        return header.metadata.get(key)
    if array.holds_texts:
        return header.texts(key)
    with header.path.open("rb") as file:
        file.seek(array.begin)
        return list(np.fromfile(file, f"<{NUMBERS[array.kind]}", array.count).tolist())
