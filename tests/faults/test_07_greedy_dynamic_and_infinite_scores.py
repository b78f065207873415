"""Dynamic trees at temperature 0 take any verifier; models that forbid tokens themselves work, and NaN is called NaN."""

from __future__ import annotations

import pytest
import torch

from draftwood.core.errors import NumericsError, PairingError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_gpt, tiny_runner

pytestmark = pytest.mark.usefixtures("always_drafts")

VOCAB = 20


def texts(method, verifier, target=None, draft=None, greedy=True, shape=None):
    target = target or tiny_runner(VOCAB, 1)
    draft = draft or tiny_runner(VOCAB, 2, layers=1)
    engine = decoder(target, draft if method != "ar" else None, method, shape, verifier, greedy=greedy)
    requests = [Request(prompt=[1, 2, seed], seed=seed, limits=Limits(max_new_tokens=12)) for seed in range(4)]
    return [r.token_ids for r in engine.generate(requests, Sampling(temperature=0.0 if greedy else 1.0))]


@pytest.mark.parametrize("shape", [None, "3x4"])
@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_a_dynamic_tree_takes_its_verifiers_at_temperature_zero(verifier, shape):
    assert texts("dynamic", verifier, shape=shape) == texts("ar", "greedy")


def test_control_trees_of_shared_noise_still_refuse_them():
    with pytest.raises(PairingError, match="shared_noise"):
        texts("shared-noise", "recursive")


class Forbidding(torch.nn.Module):
    """A head that never says some tokens."""

    def __init__(self, head: torch.nn.Module, tokens: list[int]) -> None:
        super().__init__()
        self.head, self.tokens, self.weight = head, tokens, head.weight

    def forward(self, states):
        return self.head(states).index_fill(-1, torch.tensor(self.tokens), -torch.inf)


def forbidding(seed: int, tokens: list[int], **settings):
    model = tiny_gpt(VOCAB, seed, **settings)
    model.lm_head = Forbidding(model.lm_head, tokens)
    return model


@pytest.mark.parametrize("method", ["ar", "rsd-s", "adaptive", "ngram", "dynamic"])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_model_whose_own_scores_forbid_tokens_can_be_used(method, greedy):
    model = forbidding(1, [3, 7, 8])
    draft = forbidding(2, [5, 8], layers=1)
    got = texts(method, "auto", TorchRunner(model), TorchRunner(draft), greedy)
    assert not {3, 7, 8} & {t for text in got for t in text}
    if greedy:
        ids = torch.tensor([[1, 2, 0]])
        mask = torch.ones_like(ids)
        wanted = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)[0, 3:]
        assert got[0] == wanted.tolist()


def test_control_another_support_in_the_tree_is_still_found():
    """The five-token proof must see a token that is impossible in the tree only."""
    model = tiny_gpt(VOCAB, 1)
    inner = model.lm_head

    class ByWidth(Forbidding):
        def forward(self, states):
            return super().forward(states) if states.shape[1] == 5 else self.head(states)

    model.lm_head = ByWidth(inner, [3])
    with pytest.raises(Exception, match="as a chain"):
        TorchRunner(model)


def test_weights_that_are_not_numbers_are_called_so():
    model = tiny_gpt(VOCAB, 1)
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(NumericsError, match=r"'gpt2' gives NaN .*transformer\.h\.1\.mlp\.c_fc\.weight"):
        TorchRunner(model)
