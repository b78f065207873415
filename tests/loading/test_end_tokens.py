"""Texts end with every end-of-text token of the model's files, answers with the template's mark; without any, at the cap."""

import json

import pytest

import draftwood
from draftwood import LoadOptions, Method
from tests.serve.conftest import make_service, serving
from tests.tiny_chat import chat_tokenizer, save_chat

TURN = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}<turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
"""A template that ends a turn with a token of its own, as ``<|im_end|>`` is next to ``<|endoftext|>``."""
OPTIONS = LoadOptions(dtype="float32", device="cpu", backend="torch", profile="none")
MESSAGES = [{"role": "user", "content": "a dog"}]
END = 0  # the tokenizer's own
OTHER = 7
MISSING = "no such field"


def with_turns():
    tokenizer = chat_tokenizer(TURN)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>", "<turn>"]})
    return tokenizer


def rewrite(path, **settings):
    """Change the settings of a JSON file; ``MISSING`` takes one away."""
    found = {**json.loads(path.read_text()), **settings}
    path.write_text(json.dumps({name: value for name, value in found.items() if value is not MISSING}))


def saved(folder, *, generation=MISSING, config=MISSING, tokenizer="<end>"):
    """A chat model whose files name these end-of-text tokens."""
    save_chat(folder, tokenizer=with_turns())
    rewrite(folder / "generation_config.json", eos_token_id=generation)
    rewrite(folder / "config.json", eos_token_id=config)
    rewrite(folder / "tokenizer_config.json", eos_token=tokenizer)
    return folder


def turn_of(pair):
    return int(pair.tokenizer.convert_tokens_to_ids("<turn>"))


def toward(token):
    """A sampling whose most likely token is this one."""
    return {"temperature": 0.0, "logit_bias": {token: 100.0}}


# Several, one, none in the configuration --------------------------------------------------------------------------------


@pytest.mark.parametrize(("named", "ends"), [
    ({"generation": OTHER, "config": END}, [OTHER]),
    ({"generation": [OTHER, END]}, [OTHER, END]),
    ({"config": OTHER}, [OTHER]),
    ({"config": [END, OTHER]}, [END, OTHER]),
    ({}, [END]),  # the tokenizer's
    ({"tokenizer": MISSING}, []),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("method", ["ar", "ngram"])
def test_a_text_ends_with_each_of_them_and_an_answer_with_the_mark_of_a_turn_too(tmp_path, named, ends, method):
    """One program took the first of a list only (turboderp-org/exllamav2#449)."""
    pair = draftwood.load(saved(tmp_path, **named), options=OPTIONS)
    assert list(pair.eos) == ends
    for token in ends:
        result = pair.generate("a dog", sampling=toward(token), method=method, max_new_tokens=5)
        assert (result.token_ids, result.finish_reason) == ([token], "stop")
    for token in (*ends, turn_of(pair)):
        answer = pair.chat(MESSAGES, sampling=toward(token), method=method, max_new_tokens=5)
        assert (answer.token_ids, answer.finish_reason) == ([token], "stop")
    assert answer.text == ""
    plain = pair.generate("a dog", sampling=toward(turn_of(pair)), method=method, max_new_tokens=5)
    assert plain.token_ids == [turn_of(pair)] * 5  # no turn ends in a plain text


# None at all ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def endless(tmp_path_factory):
    """A pair whose files name no end-of-text token, and whose template writes no mark."""
    folders = [tmp_path_factory.mktemp("endless") / name for name in ("target", "draft")]
    for seed, folder in enumerate(folders):
        save_chat(folder, tokenizer=chat_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}"), seed=seed)
        rewrite(folder / "generation_config.json", eos_token_id=MISSING)
        rewrite(folder / "config.json", eos_token_id=MISSING)
        rewrite(folder / "tokenizer_config.json", eos_token=MISSING)
    return draftwood.load(*folders, options=OPTIONS)


METHODS = [Method(method=name) for name in ("ar", "ngram", "adaptive", "rsd-s")] + [Method(method="chain", shape="3")]


@pytest.mark.parametrize("limits", [{}, {"ignore_eos": True}], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_without_an_end_every_method_writes_up_to_the_cap(endless, method, limits, temperature):
    """Prompt lookup compared tokens with None (huggingface/transformers#46790)."""
    assert list(endless.eos) == []
    texts = ["the fox", "a dog and a hen ran", "the"]
    settings = {"limits": {"max_new_tokens": 9, **limits}, "temperature": temperature, "seed": 1}
    for result in endless.generate(texts, method=method, **settings):
        assert (len(result.token_ids), result.finish_reason) == (9, "length")
    result = endless.chat(MESSAGES, method=method, **settings)
    assert (len(result.token_ids), result.finish_reason) == (9, "length")


def test_without_an_end_a_server_answers_up_to_the_cap(endless):
    with serving(make_service(endless)) as client:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "seed": 1}
        for more in ({}, {"ignore_eos": True}, {"min_tokens": 4}):
            answer = client.post("/v1/chat/completions", json={**body, **more}).json()
            assert answer["choices"][0]["finish_reason"] == "length", answer
            assert answer["usage"]["completion_tokens"] == 6
        answer = client.post("/v1/completions", json={"model": "tiny", "prompt": "the fox", "max_tokens": 6}).json()
        assert answer["usage"]["completion_tokens"] == 6
