"""The loop's contract with its callers: bad input, cancelling, contexts, vocabularies, constraints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import draftwood
from draftwood.api import Pair
from draftwood.core.errors import CacheError, ConfigError, NumericsError, PairingError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.processors import Stateless
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, tiny_gpt, tiny_runner
from tests.tables import TableRunner

VOCAB = 23
SOURCE = Path(draftwood.__file__).parents[1]
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


def draft_runner(seed=2, **settings):
    return TorchRunner(tiny_gpt(VOCAB, seed, layers=1, **settings), drafts=True)


class Words:
    """Just enough of a tokenizer."""

    bos_token = bos_token_id = None

    def __call__(self, text):
        return {"input_ids": [ord(c) % VOCAB for c in text]}

    def decode(self, ids, **_):
        return "".join(chr(97 + i) for i in ids)


def pair():
    return Pair(tiny_gpt(VOCAB, 1), tiny_gpt(VOCAB, 2, layers=1), Words())


def test_a_second_stream_on_the_same_models_is_refused_and_closing_frees_them():
    two = pair()
    first = two.stream("hello", seed=1)
    next(first)
    with pytest.raises(ConfigError, match="generating already"):
        two.generate("world", seed=1)
    first.close()
    assert two.generate("world", seed=1).text == two.generate("world", seed=1).text


def test_cancelling_between_rounds_leaves_the_next_text_as_it_would_be():
    engine = decoder(tiny_runner(VOCAB, 1), draft_runner(), "rsd-s", "2x3")
    whole = engine.generate([request()], Sampling())[0].token_ids
    stream = engine.stream([request()], Sampling())
    next(stream)
    stream.close()
    assert engine.generate([request()], Sampling())[0].token_ids == whole


@pytest.mark.parametrize("temperature", [1e-4, 1.0])
def test_best_first_trees_keep_no_child_without_its_parent(temperature):
    engine = decoder(tiny_runner(VOCAB, 1), draft_runner(), "shared-noise", "4x6", nodes=10)
    plain = decoder(tiny_runner(VOCAB, 1), None, "ar")
    sampling = Sampling(temperature=temperature)
    texts = []
    for pieces in engine.stream([request(seed=s, length=24) for s in range(6)], sampling):
        tree = pieces[0].round.tree
        level = tree.depths.gather(1, tree.parents) + 1
        level[:, 0] = 0
        assert (level == tree.depths)[tree.valid].all()
        texts += [t for p in pieces for t in p.tokens]
    assert len(texts) == 6 * 24
    ours = [r.token_ids for r in engine.generate([request(seed=s, length=24) for s in range(6)], sampling)]
    assert ours == [r.token_ids for r in plain.generate([request(seed=s, length=24) for s in range(6)], sampling)]


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
    allowed: dict = {}
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
        ends = torch.isin(tree.tokens, torch.tensor([4, 9, 11, 13])) & tree.valid
        ends[:, 0] = False
        below = ends.gather(1, tree.parents) & tree.valid
        assert not below[:, 1:].any()
        seen += int(ends.sum())
    assert seen


@pytest.mark.parametrize(("method", "shape"), DRAFTING)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_with_a_smaller_or_larger_embedding(method, shape, temperature):
    sampling = Sampling(temperature=temperature)
    plain = decoder(tiny_runner(VOCAB, 1), None, "ar", greedy=sampling.greedy)
    for vocab in (VOCAB - 8, VOCAB + 9):
        draft = TorchRunner(tiny_gpt(vocab, 2, layers=1), drafts=True)
        engine = decoder(tiny_runner(VOCAB, 1), draft, method, shape, "coupled", greedy=sampling.greedy)
        requests = [request(prompt=[1, VOCAB - 1, 3])]
        assert engine.generate(requests, sampling)[0].token_ids == plain.generate(requests, sampling)[0].token_ids


@pytest.mark.parametrize(("method", "shape"), DRAFTING)
def test_beyond_the_drafts_context_the_target_goes_on_alone(method, shape):
    target, plain = tiny_runner(VOCAB, 1), decoder(tiny_runner(VOCAB, 1), None, "ar")
    engine = decoder(target, draft_runner(context=12), method, shape, "coupled")
    requests = [request(length=30), request(prompt=range(14), length=8), request(prompt=[7], length=30)]
    ours, theirs = (e.generate(requests, Sampling()) for e in (engine, plain))
    assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]
    assert ours[1].stats.drafted == 0
    assert ours[0].stats.drafted > 0


def test_a_draft_without_any_possible_token_drafts_nothing():
    bias = dict.fromkeys(range(8), -float("inf"))
    engine = decoder(tiny_runner(VOCAB, 1), TorchRunner(tiny_gpt(8, 2, layers=1), drafts=True), "chain", "3")
    result = engine.generate([request()], Sampling(logit_bias=bias))[0]
    assert result.stats.block_efficiency == 1
    assert min(result.token_ids) >= 8


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
        pair().generate(["a", "b"], seed=[1])
    with pytest.raises(ConfigError, match="empty"):
        pair().generate("")


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize("shape", [None, "3x4"])
@pytest.mark.parametrize("verifier", ["recursive", "traversal"])
def test_a_dynamic_tree_takes_its_verifiers_at_temperature_zero(verifier, shape):
    engines = [
        decoder(tiny_runner(VOCAB, 1), draft_runner(), "dynamic", shape, verifier, greedy=True),
        decoder(tiny_runner(VOCAB, 1), None, "ar", greedy=True),
    ]
    requests = [request(prompt=[1, 2, seed], length=12) for seed in range(4)]
    texts = [[r.token_ids for r in engine.generate(requests, Sampling(temperature=0.0))] for engine in engines]
    assert texts[0] == texts[1]
    with pytest.raises(PairingError, match="shared_noise"):  # control
        decoder(tiny_runner(VOCAB, 1), draft_runner(), "shared-noise", None, verifier, greedy=True)
