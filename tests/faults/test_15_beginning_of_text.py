"""A chat template and the tokenizer both write the beginning-of-text token: the prompt holds it once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers.processors import TemplateProcessing

from draftwood import LoadOptions, load
from tests.cli.conftest import Run
from tests.cli.conftest import run as run
from tests.faults.folders import save_tiny, tiny_llama, tiny_tokenizer

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")
CHAT = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


def adding(before: bool = True, after: bool = False) -> Any:
    """A tokenizer that adds ``<begin>`` in front of every text, and ``<end>`` behind it if wanted."""
    tokenizer = tiny_tokenizer(bos_token="<begin>")
    tokenizer.add_tokens([AddedToken("<begin>", special=True)], special_tokens=True)
    specials = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<begin>", "<end>")]
    single = " ".join(["<begin>"] * before + ["$A"] + ["<end>"] * after)
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=single, special_tokens=specials)
    tokenizer.chat_template = CHAT
    return tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = adding()
    tiny_llama(len(tokenizer), bos_token_id=280).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_chat_templates_text_gets_the_token_once(folder: Path) -> None:
    pair = load(folder, options=ON_CPU)
    messages = [{"role": "user", "content": "the fox ran"}]
    text = pair.tokenizer.apply_chat_template(messages, tokenize=False)
    wanted = pair.tokenizer("the fox ran")["input_ids"]
    assert text == "<begin>the fox ran"
    assert wanted[0] == pair.tokenizer.bos_token_id
    assert wanted[1] != pair.tokenizer.bos_token_id
    assert pair.tokenizer(text)["input_ids"] == [wanted[0], *wanted], "else the tokenizer adds nothing here"
    assert pair.encode(text) == wanted
    found, plain = (pair.generate(prompt, seed=1, max_new_tokens=8).token_ids for prompt in (text, "the fox ran"))
    assert found == plain


def test_the_command_line_does_the_same(folder: Path, run: Run, tmp_path: Path) -> None:
    options = ["--target", folder, "--seed", 1, "--max-new-tokens", 8]
    texts = ("the fox ran", "<begin>the fox ran")
    alone = [json.loads(run("generate", *options, "--json", text).stdout)["token_ids"] for text in texts]
    assert alone[0] == alone[1]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text, "seed": 1}) + "\n" for text in texts))
    lines = run("generate", *options, "--input", prompts).stdout.splitlines()
    assert [json.loads(line)["token_ids"] for line in lines] == alone


def test_only_the_token_that_the_tokenizer_added_is_left_out() -> None:
    from draftwood.engine.arguments import tokenized

    begin = 280
    words = adding(before=False)("the fox")["input_ids"]
    assert tokenized(adding(), "<begin><begin>the fox") == [begin, begin, *words]
    assert tokenized(adding(before=False), "<begin><begin>the fox") == [begin, begin, *words]
    assert tokenized(adding(after=True), "<begin>the fox") == [begin, *words, 0]
    assert tokenized(adding(), "the <begin> fox")[0] == begin
    assert tokenized(adding(), "") == [begin]
    assert tokenized(adding(), "<begin>") == [begin]


def test_tokenizers_that_add_nothing_are_left_alone(tmp_path: Path) -> None:
    pair = load(save_tiny(tmp_path), options=ON_CPU)
    assert pair.encode("<end><end>the") == [0, 0, *pair.encode("the")]
