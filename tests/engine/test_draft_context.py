"""A draft model with a shorter context than the target: it stops at its end, and drafts again below it.

Other programs overflow the draft's memory there (vllm-project/vllm#57941, ggml-org/llama.cpp#28433).
"""

import pytest
import torch

from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder
from tests.runners.zoo import VOCAB, tiny

LONG, SHORT = 48, 16  # tokens of the contexts
METHODS = [("adaptive", None), ("chain", "3")]
KINDS = {"learned": "gpt2", "rotary": "llama"}
"""Positions that do not exist beyond the context, and positions that do."""


def request(prompt, length, seed):
    return Request(prompt=prompt, seed=seed, limits=Limits(max_new_tokens=length, ignore_eos=True))


def text(length):
    return [(7 * i) % (VOCAB - 4) + 4 for i in range(length)]


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize(("kind", "backend"), [("learned", "torch"), ("rotary", "torch"), ("rotary", "native")])
def test_rows_on_both_sides_and_a_text_that_returns(kind, backend):
    models = [
        tiny(KINDS[kind], seed, dtype=torch.float32, num_hidden_layers=1, max_position_embeddings=longest)
        for seed, longest in enumerate((LONG, SHORT))
    ]
    target, draft, _ = make_runners(*models, backend=backend)
    plain = decoder(target, None, "ar")
    batch = [request(text(5), 20, 1), request(text(SHORT + 4), 8, 2), request(text(SHORT - 1), 8, 3)]
    wanted = [result.token_ids for result in plain.generate(batch, Sampling())]
    back = request(text(4), 6, 4)
    wanted_back = plain.generate([back], Sampling())[0].token_ids
    for method, shape in METHODS:
        engine = decoder(target, draft, method, shape, "coupled")
        found = engine.generate(batch, Sampling())
        assert [result.token_ids for result in found] == wanted, method
        assert found[1].stats.drafted == 0, method
        assert found[0].stats.drafted > 0, method
        engine.generate(batch[:1], Sampling(), reuse=True)  # beyond the context, and then back below it
        returned = engine.generate([back], Sampling(), reuse=True)[0]
        assert returned.token_ids == wanted_back, method
        assert returned.stats.drafted > 0, method
