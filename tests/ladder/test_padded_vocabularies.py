"""Models of one tokenizer, embeddings padded to other sizes: the target's distribution, and no unknown token is drafted.

A draft model proposed tokens that the target lacked, and only texts at a temperature were wrong (sgl-project/sglang#24051).
"""

import pytest
import torch
from torch import nn

from draftwood.core.limits import Limits
from draftwood.core.token_logprobs import LogprobSettings
from draftwood.engine.requests import Request
from draftwood.exactness.tape import total_variation
from draftwood.runners.native.runner import NativeRunner
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_gpt, tiny_model
from tests.ladder.test_rung3_tape import EXACT, WRONG, at_temperature, distance, engine_distribution, reference_distribution

TOKENS = 3  # of the tokenizer
TARGET = 4  # rows of the target's embedding
DRAFTS = [TOKENS, TARGET, 6]  # of the draft's
SHAPES = [("chain", "2"), ("rsd-s", "2x2"), ("rsd-c", "2-1"), ("iid", "2x2"), ("dynamic", None)]


def padded(vocab, seed, *, layers=2, bias=0.0, dtype=torch.float64):
    """A model whose padded rows have this much more score than others."""
    model = tiny_gpt(vocab, seed, layers=layers, dtype=dtype)
    more = torch.zeros(vocab, dtype=dtype)
    more[TOKENS:] = bias
    model.lm_head.bias = nn.Parameter(more, requires_grad=False)
    return model


def engine_of(method, shape, target, draft, verifier):
    nodes = 3 if shape is None else None
    return decoder(TorchRunner(target), TorchRunner(draft, drafts=True), method, shape, verifier, nodes=nodes)


@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
@pytest.mark.parametrize(("method", "shape"), SHAPES)
@pytest.mark.parametrize("vocab", DRAFTS)
@pytest.mark.parametrize("bias", [0.0, 2.0], ids=["rare", "likely in the target too"])
def test_the_law_is_the_targets(method, shape, vocab, bias, verifier):
    target, draft = padded(TARGET, 1, bias=bias), padded(vocab, 2, layers=1, bias=3.0)
    assert distance(engine_of(method, shape, target, draft, verifier), 2) < EXACT


def test_control_another_bias_of_the_target_is_seen():
    target, other = padded(TARGET, 1), padded(TARGET, 1, bias=2.0)
    found = engine_distribution(engine_of("chain", "2", target, padded(6, 2, bias=3.0), "recursive"), 2, Sampling())
    assert total_variation(found, reference_distribution(other, 2, at_temperature(1.0))) > WRONG


@pytest.mark.parametrize(("method", "shape"), [*SHAPES, ("adaptive", None)])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("backend", [TorchRunner, NativeRunner])
def test_no_token_that_the_target_lacks_is_drafted_also_with_log_probabilities(method, shape, temperature, backend):
    sampling = Sampling(temperature=temperature)
    if backend is TorchRunner:
        models = padded(TARGET, 1, dtype=torch.float32), padded(6, 2, layers=1, bias=5.0, dtype=torch.float32)
    else:
        models = tiny_model("native", TARGET, 1), tiny_model("native", 6, 2, layers=1)
    target, draft = backend(models[0]), backend(models[1], drafts=True)
    nodes = 3 if method == "dynamic" else None
    verifier = "coupled" if method == "adaptive" else "recursive"
    engine = decoder(target, draft, method, shape, verifier, greedy=sampling.greedy, nodes=nodes)
    limits, seen = Limits(max_new_tokens=12), 0
    requests = [Request(prompt=(0, 1), seed=seed, limits=limits, logprobs=LogprobSettings(top=2)) for seed in range(4)]
    for pieces in engine.stream(requests, sampling):
        for piece in pieces:
            tree = piece.round.tree
            assert int(tree.tokens[tree.valid].max()) < TARGET
            seen += int(tree.valid.sum()) - len(tree.valid)
            assert all(token < TARGET for one in piece.logprobs for token in (one.token, *dict(one.top)))
    assert seen
