"""A text that would outgrow a sliding window is refused with the same words everywhere."""

from __future__ import annotations

import pytest
import torch

from draftwood.api import Pair
from draftwood.core.errors import CacheError
from draftwood.core.limits import Limits
from draftwood.core.settings import Sampling
from draftwood.hf import recipe
from tests.runners.test_support import SLIDING, WINDOW
from tests.runners.zoo import EOS, tiny

PROMPT = [5, 6, 7, 8, 9, 10]
TEXT = "5 6 7 8 9 10"


class Words:
    bos_token, bos_token_id, eos_token_id, all_special_ids = None, None, EOS, []

    def __call__(self, text):
        return {"input_ids": [int(word) for word in text.split()]}

    def decode(self, ids, **_):
        return "".join(f"<{i}>" for i in ids)


def pair(kind: str, draft=None) -> Pair:
    return Pair(tiny(kind, dtype=torch.float32, **SLIDING[kind]), draft, Words())


def refused(call) -> str:
    with pytest.raises(CacheError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("kind", SLIDING)
def test_the_pair_and_hf_refuse_it_with_the_same_sentence(kind):
    ours, new = pair(kind), WINDOW - len(PROMPT) + 1
    limits = Limits(max_new_tokens=new)
    said = refused(lambda: ours.generate([TEXT], limits=limits))
    assert f"sliding window is {WINDOW} tokens" in said
    assert f"make {WINDOW + 1} tokens" in said
    assert refused(lambda: list(ours.stream(TEXT, limits=limits))) == said
    ids = torch.tensor([PROMPT])
    assert refused(lambda: ours.target.model.generate(ids, max_new_tokens=new, custom_generate=recipe())) == said


@pytest.mark.parametrize("kind", SLIDING)
def test_a_text_that_just_fits_is_written(kind):
    ours, new = pair(kind), WINDOW - len(PROMPT)
    limits = Limits(max_new_tokens=new, ignore_eos=True)
    [result] = ours.generate([TEXT], limits=limits, sampling=Sampling(temperature=0.0))
    assert len(result.token_ids) == new


def test_where_the_models_own_context_is_shorter_it_ends_the_text_as_ever():
    model = tiny("mistral", dtype=torch.float32, sliding_window=40, max_position_embeddings=WINDOW)
    limits = Limits(max_new_tokens=100, ignore_eos=True)
    [result] = Pair(model, None, Words()).generate([TEXT], limits=limits)
    assert (result.finish_reason, len(result.token_ids)) == ("length", WINDOW - len(PROMPT))


def test_a_drafts_window_only_ends_the_drafting():
    draft = tiny("mistral", 1, dtype=torch.float32, **SLIDING["mistral"])
    target = tiny("llama", dtype=torch.float32)
    limits, greedy = Limits(max_new_tokens=20, ignore_eos=True), Sampling(temperature=0.0)
    [result] = Pair(target, draft, Words()).generate([TEXT], limits=limits, sampling=greedy)
    assert len(result.token_ids) == 20
    ids = torch.tensor([PROMPT])
    settings = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    wanted = target.generate(ids, **settings)
    assert wanted[0, len(PROMPT) :].tolist() == result.token_ids
    assert torch.equal(target.generate(ids, **settings, custom_generate=recipe(draft)), wanted)
