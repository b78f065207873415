"""The loop's contract with its callers: trees, ends of texts, contexts."""

import numpy as np
import pytest

from draftwood.api import Pair
from draftwood.core.errors import CacheError, ConfigError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import Numbers, decoder, tiny_gpt, tiny_runner

VOCAB = 23


def request(prompt=(1, 2), length=16, seed=5, **limits):
    return Request(prompt=list(prompt), seed=seed, limits=Limits(max_new_tokens=length, **limits))


def draft_runner(**settings):
    return TorchRunner(tiny_gpt(VOCAB, 2, layers=1, **settings), drafts=True)


def test_nothing_is_drafted_below_a_token_that_ends_the_text():
    engine = decoder(tiny_runner(VOCAB, 1), draft_runner(), "rsd-c", "3-2", eos=(4, 9, 11, 13))
    seen = 0
    for pieces in engine.stream([request(seed=s) for s in range(16)], Sampling()):
        tree = pieces[0].round.tree
        ends = np.isin(tree.tokens, [4, 9, 11, 13]) & tree.valid
        ends[:, 0] = False
        below = np.take_along_axis(ends, tree.parents, 1) & tree.valid
        assert not below[:, 1:].any()
        seen += int(ends.sum())
    assert seen


def test_the_context_ends_the_text_and_a_prompt_that_fills_it_is_refused():
    engine = decoder(tiny_runner(VOCAB, 1, context=20), draft_runner(context=20), "rsd-s", "3x4")
    result = engine.generate([request(prompt=range(10), length=50)], Sampling())[0]
    assert (len(result.token_ids), result.finish_reason) == (10, "length")
    with pytest.raises(CacheError, match="context is 20"):
        engine.generate([request(prompt=[1] * 20)], Sampling())


def test_an_empty_prompt_is_refused():
    with pytest.raises(ConfigError, match="prompt 0 is empty"):
        decoder(tiny_runner(VOCAB, 1), None, "ar").generate([request(prompt=[])], Sampling())
    with pytest.raises(ConfigError, match="the prompt is empty and the tokenizer has no"):
        Pair(tiny_gpt(VOCAB, 1), None, Numbers()).generate("")
