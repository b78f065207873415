"""Chats of a target in rows of one static memory, and drafters trained on them as it reads them; on the CPU here."""

import argparse
import random
from itertools import count, islice

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwood.train import chats as turns
from draftwood.train.chats import Template
from draftwood.train.config import DrafterConfig
from draftwood.train.hidden import new_drafter
from recipes import answers, drafter

TEMPLATE = Template([1, 5, 6], [7, 8], [2, 9, 10], frozenset({2, 3}))
VOCAB = 97


@pytest.fixture(scope="module")
def target():
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=72, intermediate_size=96, num_hidden_layers=3, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=VOCAB, max_position_embeddings=512,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(3 if weight.ndim > 1 else 1)  # far from uniform distributions
    return model


@pytest.fixture(scope="module")
def chats(target):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "LONGEST_TURN", 8)
        given = turns.Turns(
            template=TEMPLATE, first=[[11, 12, 13], [20, 21, 22, 23, 24, 25]], longest=160, temperatures=(0.0,),
            rng=random.Random(0), from_text=0.5, answer=30,
        )  # fmt: skip
        return list(islice(answers.write(answers.Rows(target, 5, 160), given), 25))


def test_answers_at_temperature_0_are_the_target_s_likeliest_tokens(target, chats):
    for chat in chats:
        best = target(torch.tensor([chat.tokens])).logits[0].argmax(-1)
        wrote = torch.tensor(chat.answered)[1:]
        assert wrote.any()
        assert torch.equal(best[:-1][wrote], torch.tensor(chat.tokens)[1:][wrote])
    assert any(chat.tokens[3:6] == [11, 12, 13] for chat in chats)  # a given turn
    assert max(len(chat.tokens) for chat in chats) <= 160


def test_training_raises_the_acceptance(target, chats, tmp_path, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(drafter, "perf_counter", count().__next__)  # a second a step

    class Words:  # the digest of a vocabulary
        @staticmethod
        def get_vocab():
            return {str(token): token for token in range(VOCAB)}

    config = DrafterConfig(out=tmp_path, target=tmp_path, layers=1, block=3)
    new = new_drafter(config, target, Words(), torch.arange(VOCAB)).train()
    given = argparse.Namespace(
        batch=4, anchors=8, seed=0, warmup=1, learning_rate=3e-3, train_seconds=60.0, report_every=1.0
    )  # fmt: skip
    metrics = drafter.train(given, target, {"1-muon": new}, chats, {"new": chats[:3]})
    before, after = (entry["new"]["chain"] for entry in metrics["history"])
    assert metrics["blocks"] == metrics["steps"] * 32
    assert after > before + 0.1
