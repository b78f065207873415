"""The loop's contract with its callers: bad input, cancelling, contexts, vocabularies, constraints."""

import numpy as np
import pytest
import torch

from draftwood.api import Pair
from draftwood.core.errors import CacheError, ConfigError, NumericsError
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.processors import Stateless
from draftwood.sampling.settings import Sampling
from tests.helpers import Numbers, decoder, tiny_gpt, tiny_runner
from tests.tables import TableRunner

VOCAB = 23
DRAFTING = [
    ("chain", "3"),
    ("iid", "2x2"),
    ("rsd-c", "2-2"),
    ("rsd-s", "2x3"),
    ("shared-noise", "2-2"),
    ("shared-noise", "3x4"),
]


def request(prompt=(1, 2), length=16, seed=5, **limits):
    return Request(prompt=list(prompt), seed=seed, limits=Limits(max_new_tokens=length, **limits))


def draft_runner(**settings):
    return TorchRunner(tiny_gpt(VOCAB, 2, layers=1, **settings), drafts=True)


def pair():
    return Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2, layers=1), Numbers())


def test_a_second_stream_is_refused_and_cancelling_leaves_the_next_text_as_it_would_be():
    two, settings = pair(), {"seed": 1, "method": Method(method="rsd-s", shape="2x3")}
    whole = two.generate("3 4", **settings).token_ids
    first = two.stream("1 2", **settings)
    next(first)
    with pytest.raises(ConfigError, match="generating already"):
        two.generate("3 4", **settings)
    first.close()
    assert two.generate("3 4", **settings).token_ids == whole


@pytest.mark.parametrize("temperature", [1e-4, 1.0])
def test_best_first_trees_keep_no_child_without_its_parent(temperature):
    engine = decoder(tiny_runner(VOCAB, 1), draft_runner(), "shared-noise", "4x6", nodes=10)
    plain = decoder(tiny_runner(VOCAB, 1), None, "ar")
    sampling, requests = Sampling(temperature=temperature), [request(seed=s, length=24) for s in range(6)]
    texts = [[] for _ in requests]
    for pieces in engine.stream(requests, sampling):
        tree = pieces[0].round.tree
        level = np.take_along_axis(tree.depths, tree.parents, 1) + 1
        level[:, 0] = 0
        assert (level == tree.depths)[tree.valid].all()
        for piece in pieces:
            texts[piece.row] += piece.tokens
    assert texts == [r.token_ids for r in plain.generate(requests, sampling)]


def trie(allowed, end):
    """A constraint that answers for the texts of a trie only, as a grammar would."""

    def process(ids, scores):
        out = torch.full_like(scores, -torch.inf)
        for i, row in enumerate(ids.tolist()):
            text = tuple(row[2:])
            if end in text or text not in allowed:
                raise ValueError(f"called for {text}, which no text begins with")
            out[i, allowed[text]] = scores[i, allowed[text]]
        return out

    return process


@pytest.mark.parametrize(("method", "shape"), DRAFTING)
def test_constraints_are_asked_only_about_texts_that_can_be(method, shape):
    words, end = [(3, 4, 5), (3, 4, 6, 7), (8, 3), (8, 9, 9, 9)], 11
    allowed = {}
    for word in words:
        for i in range(len(word) + 1):
            following = word[i] if i < len(word) else end
            allowed.setdefault(word[:i], [])
            allowed[word[:i]] = sorted({*allowed[word[:i]], following})
    engine = decoder(tiny_runner(VOCAB, 1), draft_runner(), method, shape, eos=(end,))
    sampling = Sampling(processors=[Stateless(trie(allowed, end))])
    texts = {tuple(r.token_ids[:-1]) for r in engine.generate([request(seed=s) for s in range(24)], sampling)}
    assert texts <= set(words)
    assert len(texts) > 1


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


def test_scores_that_are_not_numbers_name_the_model():
    bad = torch.zeros(VOCAB)
    bad[3] = float("nan")
    for target, draft, who in ((bad, torch.zeros(VOCAB), "target"), (torch.zeros(VOCAB), bad, "draft")):
        engine = decoder(TableRunner(target), TableRunner(draft), "chain", "3")
        with pytest.raises(NumericsError, match=who):
            engine.generate([request()], Sampling())


def test_the_context_ends_the_text_and_a_prompt_that_fills_it_is_refused():
    engine = decoder(tiny_runner(VOCAB, 1, context=20), draft_runner(context=20), "rsd-s", "3x4")
    result = engine.generate([request(prompt=range(10), length=50)], Sampling())[0]
    assert (len(result.token_ids), result.finish_reason) == (10, "length")
    with pytest.raises(CacheError, match="context is 20"):
        engine.generate([request(prompt=[1] * 20)], Sampling())


@pytest.mark.parametrize(
    ("prompt", "message"), [([], "prompt 0 is empty"), ([1, VOCAB], "holds token 23"), ([-1], "holds token -1")]
)
def test_prompts_that_cannot_be(prompt, message):
    with pytest.raises(ConfigError, match=message):
        decoder(tiny_runner(VOCAB, 1), None, "ar").generate([request(prompt=prompt)], Sampling())


def test_prompts_and_seeds_that_do_not_fit_are_told_in_a_sentence():
    with pytest.raises(ConfigError, match="1 seeds came for 2 prompts"):
        pair().generate(["1", "2"], seed=[1])
    with pytest.raises(ConfigError, match="empty"):
        pair().generate("")
