"""Fill in the middle: a prompt of the text before a gap and of the text after it (arXiv 2207.14255)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, final

NAMES: Final = (  # before the prefix, the suffix and the middle
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma, Granite 4
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    ("<\N{FULLWIDTH VERTICAL LINE}fim\N{LOWER ONE EIGHTH BLOCK}begin\N{FULLWIDTH VERTICAL LINE}>",  # DeepSeek
     "<\N{FULLWIDTH VERTICAL LINE}fim\N{LOWER ONE EIGHTH BLOCK}hole\N{FULLWIDTH VERTICAL LINE}>",
     "<\N{FULLWIDTH VERTICAL LINE}fim\N{LOWER ONE EIGHTH BLOCK}end\N{FULLWIDTH VERTICAL LINE}>"),
)  # fmt: skip
_ENDS: Final = (
    "<|endoftext|>", "<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<|repo_name|>", "<|file_sep|>", "<file_sep>",
    "<|file_separator|>",
)  # fmt: skip


@final
@dataclass(frozen=True)
class Infill:
    """The tokens of a tokenizer around a gap.

    Attributes:
        prefix, suffix, middle: token before each part; the text of the gap is written after ``middle``.
        ends: tokens that end such a text, next to the model's own.
    """

    prefix: int
    suffix: int
    middle: int
    ends: Sequence[int] = ()

    @classmethod
    def of(cls, tokenizer: Any) -> Self | None:
        """Those that a GGUF file says (``infill_tokens``), or those of known names; None if the tokenizer has none."""
        vocab = tokenizer.get_vocab()
        known = (getattr(tokenizer, "infill_tokens", None), *NAMES)
        names = next((names for names in known if names and all(name in vocab for name in names)), None)
        if names is None:
            return None
        prefix, suffix, middle = (vocab[name] for name in names)
        return cls(prefix, suffix, middle, tuple(vocab[name] for name in _ENDS if name in vocab))

    def prompt(self, tokenizer: Any, before: str | list[int], after: str, *, begins: bool) -> list[int]:
        """The prompt of a gap between two texts; ``begins`` adds the tokenizer's beginning of text, in front of all."""
        ids = tokenizer(before, add_special_tokens=begins)["input_ids"] if isinstance(before, str) else before
        lead = 1 if ids and ids[0] == tokenizer.bos_token_id else 0
        suffix = tokenizer(after, add_special_tokens=False)["input_ids"]
        return [*ids[:lead], self.prefix, *ids[lead:], self.suffix, *suffix, self.middle]
