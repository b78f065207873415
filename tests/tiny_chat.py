"""A tiny chat model with a chat template."""

from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from tests.faults.folders import tiny_llama, tiny_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
CALLS = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for call in m['tool_calls'] or [] %}[{{ call['function']['name'] }} {{ call['function']['arguments'] | tojson }}]"
    "{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""The same with calls of tools."""


def chat_tokenizer(template=TEMPLATE, **special):
    """A byte-level tokenizer with the special tokens ``<end>`` (0) and ``<s>``."""
    tokenizer = tiny_tokenizer(**special)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>"]})
    tokenizer.chat_template = template
    return tokenizer


def save_chat(folder, *, tokenizer=None, generation=None, **settings):
    """A folder with a chat model for texts of 512 tokens, and its tokenizer."""
    tokenizer = chat_tokenizer() if tokenizer is None else tokenizer
    model = tiny_llama(len(tokenizer), **{"max_position_embeddings": 512, **settings})
    model.generation_config.update(**(generation or {}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def adding(before=True, after=False):
    """A tokenizer that adds ``<begin>`` in front of every text, and ``<end>`` behind it if wanted."""
    tokenizer = tiny_tokenizer(bos_token="<begin>")
    tokenizer.add_tokens([AddedToken("<begin>", special=True)], special_tokens=True)
    specials = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<begin>", "<end>")]
    single = " ".join(["<begin>"] * before + ["$A"] + ["<end>"] * after)
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=specials)
    tokenizer.chat_template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return tokenizer
