"""A chat template and the tokenizer both write the beginning-of-text token: the prompt holds it once."""

from __future__ import annotations

from pathlib import Path

from draftwood import LoadOptions, load
from draftwood.engine.arguments import tokenized
from tests.faults.folders import save_tiny
from tests.tiny_chat import adding, save_adding

ON_CPU = LoadOptions(dtype="float32", device="cpu", backend="torch")


def test_a_chat_templates_text_gets_the_token_once(tmp_path: Path) -> None:
    pair = load(save_adding(tmp_path), options=ON_CPU)
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


def test_only_the_token_that_the_tokenizer_added_is_left_out() -> None:
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
