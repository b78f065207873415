"""Prompts of different length, where the padding token is the end-of-text token: each row is the text of its prompt alone.

Left-padded batches of other programs shift positions, or hide end-of-text tokens of the prompt
(huggingface/transformers#25790, unslothai/unsloth#3699).
"""

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_gpt, tiny_hidden
from tests.runners.zoo import EOS, VOCAB, tiny

KINDS = ["gpt2", "llama", "opt"]  # learned positions, rotary ones, learned ones with an offset
DRAFT = Method(method="rsd-c", shape="2-2")
PROMPTS = [[9], [EOS, 8, EOS, 40, 41, 12, EOS], [(11 * i) % (VOCAB - 4) + 4 for i in range(64)], [30, EOS]]
NEW = 8


def model(kind, seed=0):
    return tiny(kind, seed, dtype=torch.float32, num_hidden_layers=1, max_position_embeddings=128, pad_token_id=EOS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_of_a_padded_batch_is_the_text_of_its_prompt_alone(kind):
    target, width = model(kind), max(map(len, PROMPTS))
    ids = torch.tensor([[EOS] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": EOS, "eos_token_id": EOS}
    made = recipe(model(kind, 1), method=DRAFT)
    found = target.generate(ids, attention_mask=mask, custom_generate=made, **settings)
    for row, prompt in enumerate(PROMPTS):
        one = torch.tensor([prompt])
        wanted = target.generate(one, attention_mask=torch.ones_like(one), **settings)[0, len(prompt) :]
        assert found[row, width:].tolist() == wanted.tolist(), row


@pytest.mark.parametrize(("method", "shape"), [("rsd-c", "2-2"), ("rsd-s", "2x2"), ("iid", "2x2"), ("dynamic", None)])
def test_the_settings_of_other_rows_change_no_draw_of_a_drafter_that_proposes_some_tokens(method, shape):
    target = tiny_gpt(23, 1, dtype=torch.float64)
    drafter = tiny_hidden(target, proposes=11)
    drafter.draft_tokens.copy_(torch.arange(1, 23, 2))
    parts = make_runners(target, drafter, backend="torch")[:2]
    requests = [Request(prompt=[1, 2, 3], seed=seed, limits=Limits(max_new_tokens=24)) for seed in range(3)]
    settings = [Sampling(temperature=1.0), Sampling(temperature=1.0, top_k=5), Sampling(temperature=0.7, top_p=0.8)]

    def texts(rows):
        found = dict.fromkeys(range(len(rows)), ())
        with decoder(*parts, method, shape, "recursive", nodes=None if shape else 6).batch() as batch:
            for row in rows:
                batch.add(requests[row], settings[row])
            while len(batch):
                for piece in batch.step():
                    found[piece.row] += tuple(piece.tokens)
        return list(found.values())

    assert texts(range(3)) == [*texts([0]), *texts([1]), *texts([2])]
