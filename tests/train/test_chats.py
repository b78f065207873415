"""Chats that a model writes itself: the template's tokens where they belong, resumable, and sampled from the model."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draftwood.core.errors import ConfigError
from draftwood.runners.factory import make_runners
from draftwood.train import chats
from draftwood.train.chat_files import read_chats
from draftwood.train.chats import Template, sampled_chats, write_chats
from draftwood.train.config import ChatsConfig
from tests.faults.folders import tiny_llama, tiny_tokenizer
from tests.tiny_chat import chat_tokenizer, save_chat


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat(tmp_path_factory.mktemp("chatty"), max_position_embeddings=256)


def writer(make=chat_tokenizer, **settings):
    tokenizer = make()
    model = tiny_llama(len(tokenizer), max_position_embeddings=256).eval()
    runner = make_runners(model, None, backend="torch").target
    return sampled_chats(runner, Template.of(tokenizer, [0]), settings_of(**settings), 0), tokenizer, model


def settings_of(rows=3, longest=120, **settings):
    return ChatsConfig(target=Path("target"), out=Path("out"), rows=rows, longest=longest, **settings)


def parts(chat, tokenizer):
    """Roles and texts, as the special tokens divide them."""
    text = tokenizer.decode(chat.tokens)
    return [tuple(part.split("\n", 1)) for part in text.split("<s>")[1:]]


def without_template_tokens(model, tokenizer):
    """Let nothing that is drawn look like the beginning of a turn."""
    start = torch.tensor([tokenizer.convert_tokens_to_ids("<s>")])
    model.lm_head.register_forward_hook(lambda _, __, scores: scores.index_fill(-1, start, -1e4))


def test_turns_alternate_and_answers_are_marked():
    made, tokenizer, model = writer()
    without_template_tokens(model, tokenizer)
    for chat in itertools.islice(made, 20):
        roles = [role for role, _ in parts(chat, tokenizer)]
        assert len(roles) >= 2  # tokens of the template come between sampled ones
        assert roles == [("user", "assistant")[i % 2] for i in range(len(roles))]
        assert len(chat.tokens) == len(chat.answered) <= 120
        assert len(chat.tokens) == 120 or (chat.tokens[-1] == 0 and chat.answered[-1])
        answers = "".join(text for role, text in parts(chat, tokenizer) if role == "assistant")
        written = tokenizer.decode([t for t, answered in zip(chat.tokens, chat.answered, strict=True) if answered])
        assert written == answers.replace("<end>\n", "<end>")


def is_greedy(chat, model):
    """Whether every token of the answers is the likeliest one."""
    with torch.inference_mode():
        best = model(input_ids=torch.tensor([chat.tokens])).logits[0].argmax(-1).tolist()
    following = zip(best, chat.tokens[1:], chat.answered[1:], strict=False)
    return all(wanted == token for wanted, token, answered in following if answered)


def test_each_chat_takes_one_of_the_temperatures():
    made, _, model = writer(temperature=(0.0, 1.0))
    greedy = [is_greedy(chat, model) for chat in itertools.islice(made, 30) if sum(chat.answered) > 2]
    assert {True, False} == set(greedy)
    made, tokenizer, model = writer(temperature=(0.0,))
    greedy_chats = list(itertools.islice(made, 10))
    assert all(is_greedy(chat, model) for chat in greedy_chats)
    assert len({parts(chat, tokenizer)[0][1] for chat in greedy_chats}) > 1  # user turns have a temperature of their own


@pytest.fixture
def few(monkeypatch):
    """Chats of a file."""
    monkeypatch.setattr(chats, "_PART", 8)
    return 8


def test_a_stopped_run_goes_on_behind_its_last_file(folder, tmp_path, few):
    config = ChatsConfig(target=folder, out=tmp_path / "chats", tokens=200, rows=few, longest=60)
    write_chats(config)
    first = read_chats(config.out)
    kept = (config.out / "00000.npz").read_bytes()
    assert len(first) % few == 0
    written = sum(sum(chat.answered) for chat in first)
    assert written >= 200
    write_chats(replace(config, tokens=written + 1))
    again = read_chats(config.out)
    assert again[: len(first)] == first
    assert again[len(first)] != first[0]
    assert (config.out / "00000.npz").read_bytes() == kept


def test_a_model_without_a_chat_template_writes_texts_from_their_beginning_to_their_end():
    made, *_ = writer(tiny_tokenizer, rows=16, longest=40)
    written = list(itertools.islice(made, 60))
    for text in written:
        assert text.tokens[0] == 0
        assert text.answered == [False] + [True] * (len(text.tokens) - 1)
        assert 0 not in text.tokens[1:-1]
        assert text.tokens[-1] == 0 or len(text.tokens) == 40
    assert {text.tokens[-1] == 0 for text in written} == {True, False}


def test_what_cannot_be_sampled_is_refused():
    with pytest.raises(ConfigError, match="does not hold every message once"):
        Template.of(chat_tokenizer("{{ messages[0]['content'] }}"), [0])
    nameless = tiny_tokenizer()
    nameless.bos_token = None
    with pytest.raises(ConfigError, match="no chat template, and no beginning-of-text"):
        Template.of(nameless, [])


def test_other_settings_and_sizes_that_cannot_be_are_refused(folder, tmp_path, few):
    config = ChatsConfig(target=folder, out=tmp_path / "chats", tokens=100, rows=few, longest=60)
    write_chats(config)
    with pytest.raises(ConfigError, match="other settings"):
        write_chats(replace(config, seed=5))
    written = sorted(config.out.iterdir())
    write_chats(config)  # all of it is there
    assert sorted(config.out.iterdir()) == written
    with pytest.raises(ConfigError, match="the chat template alone takes"):
        write_chats(replace(config, out=tmp_path / "b", longest=3))
    with pytest.raises(ConfigError, match="rows is 0"):
        ChatsConfig(target=folder, out=tmp_path, rows=0)
    with pytest.raises(ConfigError, match="temperature is -1"):
        ChatsConfig(target=folder, out=tmp_path, temperature=(1.0, -1.0))
    with pytest.raises(ConfigError, match="no temperature"):
        ChatsConfig(target=folder, out=tmp_path, temperature=())
