"""The tokenizer of a GGUF file, made of its arrays as llama.cpp reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from draftwood.core.checks import short_repr
from draftwood.core.errors import ModelError
from draftwood.hardware.machine import version_of
from draftwood.loading.checkpoint import first_line
from draftwood.loading.gguf_header import OTHER_FILES, Header
from draftwood.loading.outline import templates_of
from draftwood.loading.stored_tokenizer import StoredTokenizer

_UNKNOWN, _CONTROL, _USER, _BYTE = 2, 3, 4, 6  # kinds of tokens; those of users are found whole and are no special ones
_MARK: Final = re.compile(r"<\|.*>|<.*\|>", re.DOTALL)
"""Names of tokens that are special in folders, but of users in some files, such as those of Gemma 4's calls and thoughts."""
_BLANK: Final = "\N{LOWER ONE EIGHTH BLOCK}"  # of SentencePiece
_OTHERS: Final = ("tokenizer.huggingface.json",)
_NO_MARKS: Final = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
_PART: Final = "tokenizer.ggml."
_NAMES: Final = {  # of transformers, and of the file
    "tokenizer_type": "model", "pre_tokenizer_type": "pre", "tokens": "tokens", "scores": "scores",
    "token_type": "token_type", "merges": "merges", "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id",
    "unk_token_id": "unknown_token_id", "pad_token_id": "padding_token_id", "add_prefix_space": "add_space_prefix",
}  # fmt: skip
_READ: Final = {
    *_NAMES.values(), "add_bos_token", "add_eos_token", "eos_token_ids", "eot_token_id", "eom_token_id",
}  # fmt: skip
_INFILL: Final = ("fim_pre", "fim_suf", "fim_mid"), ("prefix", "suffix", "middle")
_UNUSED: Final = {  # for pairs of texts, for texts with a gap, or without an effect
    "add_cls_token", "add_mask_token", "add_padding_token", "add_sep_token", "add_unknown_token", "token_type_count",
    *(f"{name}_token_id" for name in ("cls", "mask", "sep", "seperator", "fim_pad", "fim_rep", "fim_sep")),
    *(f"{name}_token_id" for names in _INFILL for name in names),
}  # fmt: skip

# How byte-level tokenizers split a text first, by the names of llama.cpp. None: as GPT-2.
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3: Final = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_END}"
_QWEN2: Final = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_END}"
_QWEN35: Final = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_END}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_TEKKEN: Final = rf"{'|'.join(_WORDS)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_END}"
_GPT4O: Final = rf"{_WORDS[0]}{_SHORT}?|{_WORDS[1]}{_SHORT}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_END}"
_DIGITS: Final = r"\p{N}"
_AS_LLAMA3: Final = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
)  # fmt: skip
_AS_GPT2: Final = (
    "gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "a.x-4.0", "mellum", "exaone4", "mpt", "olmo", "jais", "trillion",
    "granite-docling",
)  # fmt: skip
_SPLITS: Final[Mapping[str, str | None]] = {
    **dict.fromkeys((*_AS_LLAMA3, "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"), _QWEN2),
    "qwen35": _QWEN35,
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(_AS_GPT2),
}  # fmt: skip
_WHOLE: Final = {*_AS_LLAMA3, "tekken"}
"""Their tokenizers take a word that is a token whole, and begin a text where a file does not say."""
_PREFIXED: Final = ("t5",)  # tokenizers of transformers that write a blank before a text; the others write none
_OF_TRANSFORMERS: Final = ("gemma", "gemma2", "gemma3")  # architectures


def tokenizer_of(header: Header) -> Any:
    """The tokenizer: byte-level and SentencePiece's as in llama.cpp, others as ``transformers`` converts them.

    Raises:
        ModelError: the file holds none, one of a kind that is not known, or a key that is not read.
    """
    try:
        return _tokenizer(header)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the tokenizer in {header}, architecture {header.architecture!r}, cannot be read by transformers "
            f"{version_of('transformers')} ({first_line(error).rstrip('.')}): {OTHER_FILES}"
        ) from error


def _tokenizer(header: Header) -> Any:
    _refuse_unread(header)
    found: dict[str, Any] = {name: value for name, key in _NAMES.items() if (value := header.value(_PART + key)) is not None}
    if "tokens" not in found:
        raise ValueError("it holds no tokens")
    if "token_type" in found:
        kinds = zip(found["tokens"], found["token_type"], strict=False)
        found["token_type"] = [_CONTROL if kind == _USER and _MARK.fullmatch(token) else kind for token, kind in kinds]
    numbers = {name: found.get(f"{name}_token_id") for name in ("bos", "eos", "unk", "pad")}
    named = {f"{name}_token": None if at is None else str(found["tokens"][at]) for name, at in numbers.items()}
    backend, more = _backend(header, found, named)
    kind, pre = found.get("tokenizer_type"), found.get("pre_tokenizer_type")
    begins = kind == "llama" or (kind == "gpt2" and pre in _WHOLE)
    adds = header.single(f"{_PART}add_bos_token", begins), header.single(f"{_PART}add_eos_token", False)
    for name, added in zip(("bos", "eos"), adds, strict=True):
        if added and named[f"{name}_token"] is None:
            raise _unread(header, f"{_PART}{name}_token_id", "but its texts have this token at one end")
    template = templates_of(header)

    def whole() -> Any:
        from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **{**more, **named})
        if adds[0]:
            tokenizer.add_bos_token = True
        if adds[1]:
            tokenizer.add_eos_token = True
        return tokenizer

    simple = not any(adds) and not isinstance(template, dict)
    tokenizer = StoredTokenizer(backend, named, template, whole) if simple else whole()
    for names in _INFILL:
        ids = [header.value(f"{_PART}{name}_token_id") for name in names]
        if None not in ids:
            tokenizer.infill_tokens = tuple(str(found["tokens"][at]) for at in ids)
    return tokenizer


def _backend(header: Header, found: Mapping[str, Any], named: Mapping[str, str | None]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and settings that ``transformers`` adds to those that are ``named``."""
    kind, said = found.get("tokenizer_type"), found.get("add_prefix_space")
    if kind == "llama" and header.architecture not in _OF_TRANSFORMERS:
        made = _sentencepiece(header, found, named["unk_token"], prefix=said is not False)
        return _add_tokens(made, found, named.values()), {}
    if said is not None and said != (has := kind in _PREFIXED):
        raise _unread(header, f"{_PART}add_space_prefix", f"but {has} is computed for tokenizers of kind {kind!r}")
    if kind == "gpt2":
        return _add_tokens(_byte_level(header, found), found, named.values()), {}
    backend, more = converter()(header.architecture, found)
    return backend, more


def converter() -> Any:
    """What makes tokenizers of other kinds in ``transformers``."""
    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer
    except ImportError:  # before 5.24
        from transformers.integrations.ggml import convert_gguf_tokenizer
    return convert_gguf_tokenizer


def _byte_level(header: Header, found: Mapping[str, Any]) -> Tokenizer:
    """A byte-level tokenizer. Tokens that are found whole are written as they are, the others in letters for bytes."""
    pre, vocab = str(found.get("pre_tokenizer_type")), {token: number for number, token in enumerate(found["tokens"])}
    if pre not in _SPLITS:
        raise _unread(header, f"{_PART}pre", "but it must name a way to split texts that is known")
    merges, split = [tuple(merge.split(" ")) for merge in found["merges"]], _SPLITS[pre]
    backend = Tokenizer(models.BPE(vocab, merges, fuse_unk=False, ignore_merges=pre in _WHOLE, **_NO_MARKS))
    first: list[Any] = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    if split == _DIGITS:
        first = [pre_tokenizers.Digits(individual_digits=True)]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split in (None, _DIGITS))
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    return backend


def _sentencepiece(header: Header, found: Mapping[str, Any], unknown: str | None, *, prefix: bool) -> Tokenizer:
    """A tokenizer that joins the two neighbours whose token has the best score, as SentencePiece does.

    Args:
        unknown: the token for characters without one, where the file has no tokens of bytes.
        prefix: a blank is put before a text, and before one that follows a special token.
    """
    tokens, scores = found["tokens"], found.get("scores")
    if scores is None:
        raise ValueError("it holds no scores")
    kinds = found.get("token_type") or [1] * len(tokens)
    best = {
        token: score
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        if kind not in (_UNKNOWN, _CONTROL, _USER, _BYTE)
    }
    cuts = ((token, token[:at], token[at:]) for token in best for at in range(1, len(token)))
    pairs = [(token, left, right) for token, left, right in cuts if left in best and right in best]
    if twice := [score for score, count in Counter(best[one] for one in {one for one, *_ in pairs}).items() if count > 1]:
        raise _unread(header, f"{_PART}scores", f"but several tokens have {twice[0]}, and nothing says which is made first")
    pairs.sort(key=lambda pair: (best[pair[0]], len(pair[1])), reverse=True)
    vocab = {token: number for number, token in enumerate(tokens)}
    merges = [(left, right) for _, left, right in pairs]
    backend = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    blanks = normalizers.Replace(" ", _BLANK)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_BLANK), blanks]) if prefix else blanks
    parts = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if prefix else [])])
    return backend


def _add_tokens(backend: Tokenizer, found: Mapping[str, Any], named: Iterable[str | None]) -> Tokenizer:
    """Let tokens be found whole. Those that are ``named`` have a meaning, and are special whatever their kind."""
    kinds = list(zip(found["tokens"], found.get("token_type") or (), strict=False))
    special = [token for token, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    user = [token for token, kind in kinds if kind == _USER]
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in named if token is not None])
    return backend


def _refuse_unread(header: Header) -> None:
    """Raise a ModelError for a key of the tokenizer that could make other tokens of a text."""
    for key in header.metadata:
        known = not key.startswith("tokenizer.") or key.startswith("tokenizer.chat_template") or key in _OTHERS
        idle = key == f"{_PART}remove_extra_whitespaces" and not header.value(key)
        if not known and not idle and key.removeprefix(_PART) not in _READ | _UNUSED:
            raise _unread(header, key, "which is not read, and other tokens would be made of a text")


def _unread(header: Header, key: str, why: str) -> ModelError:
    value = header.value(key)
    said = f"does not say {key}" if value is None else f"says {key} {short_repr(value)}"
    return ModelError(f"{header} {said}, {why}: {OTHER_FILES}")
