"""A tiny chat model with a chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.faults.folders import tiny_llama, tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def chat_tokenizer(template: str = TEMPLATE, **special: str) -> Any:
    """A byte-level tokenizer with the special tokens ``<end>`` (0) and ``<s>``."""
    tokenizer = tiny_tokenizer(**special)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>"]})
    tokenizer.chat_template = template
    return tokenizer


def save_chat(folder: Path, *, tokenizer: Any = None, generation: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A folder with a chat model for texts of 512 tokens, and its tokenizer."""
    tokenizer = chat_tokenizer() if tokenizer is None else tokenizer
    model = tiny_llama(len(tokenizer), **{"max_position_embeddings": 512, **settings})
    model.generation_config.update(**(generation or {}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
