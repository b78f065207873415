"""What is looked up in the text and forbidden by a processor never becomes part of a tree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

import draftwood
from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, sampler_of, tiny_runner
from tests.runners.zoo import tiny

pytestmark = pytest.mark.usefixtures("always_drafts")

VOCAB = 16
PROMPT = [4, 5, 6, 7, 4, 5, 6, 7, 4]


def allowed(ids):
    """Steps of one or three: a lookup in the prompt guesses 5, 6, 7 and then 4, which is no such step."""
    text = [int(t) for t in ids]
    for before, after in zip(text[len(PROMPT) - 1 :], text[len(PROMPT) :], strict=False):
        if (after - before) % VOCAB not in (1, 3, 15):
            raise ValueError(f"called after {text[len(PROMPT) :]}, which can never come")
    return [(text[-1] + step) % VOCAB for step in (1, 3, 15)]


def only_steps(ids, scores):
    out = torch.full_like(scores, -torch.inf)
    for i, row in enumerate(ids):
        out[i, allowed(row)] = scores[i, allowed(row)]
    return out


def drafting(method):
    return decoder(tiny_runner(VOCAB, 1), tiny_runner(VOCAB, 2, layers=1) if method == "adaptive" else None, method)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["adaptive", "ngram"])
def test_a_constraint_is_never_asked_behind_what_it_forbids(method, temperature):
    engine, plain = drafting(method), drafting("ar")
    sampling = Sampling(processors=[draftwood.Stateless(only_steps)], temperature=temperature)
    drafted = 0
    for seed in range(20):
        request = Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=12))
        [result] = engine.generate([request], sampling)
        assert result.token_ids == plain.generate([request], sampling)[0].token_ids
        drafted += result.stats.drafted
    assert drafted


@pytest.mark.parametrize("method", [None, Method(method="ngram", shape="4")])
def test_a_prefix_function_that_allows_nothing_behind_an_impossible_text_gives_the_texts_of_generate(method):
    def only(row, ids):
        try:
            return [t for t in allowed(ids) if t]
        except ValueError:
            return []  # which transformers takes for an error

    model = tiny("llama", dtype=torch.float32)
    draft = tiny("llama", 1, dtype=torch.float32) if method is None else None
    ids = torch.tensor([PROMPT])
    wanted = model.generate(ids, max_new_tokens=16, do_sample=False, prefix_allowed_tokens_fn=only)
    made = recipe(draft, method=method)
    got = model.generate(
        ids, max_new_tokens=16, do_sample=False, prefix_allowed_tokens_fn=only, custom_generate=made
    )  # fmt: skip
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("method", ["adaptive", "ngram"])
def test_tokens_of_no_bias_at_all_are_not_guessed(method):
    engine = drafting(method)
    sampling = Sampling(logit_bias={5: -float("inf")})
    for seed in range(6):
        request = Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=12))
        for pieces in engine.stream([request], sampling):
            tree = pieces[0].round.tree
            assert not bool((tree.tokens[tree.valid] == 5).any())


def test_truncation_by_scores_forbids_no_guess():
    """Whether a token survives top-k hangs on the scores, which nobody knows before the target is run."""
    sampling = Sampling(processors=[TopKLogitsWarper(1), TopPLogitsWarper(0.1)])
    sampler = sampler_of(sampling, [PROMPT], VOCAB, prompts=[len(PROMPT)])
    assert sampler.permitted(0, [5, 6, 7]) == 3


def test_a_guess_ends_before_what_is_forbidden_and_behind_the_end_of_the_text():
    sampling = Sampling(processors=[draftwood.Stateless(only_steps)], logit_bias={8: -float("inf")})
    sampler = sampler_of(sampling, [PROMPT], VOCAB, prompts=[len(PROMPT)], stops=frozenset({7}))
    assert sampler.permitted(0, [5, 6, 10, 11]) == 2  # 6 to 10 is no step
    assert sampler.permitted(0, [5, 8]) == 1  # by its bias
    assert sampler.permitted(0, [5, 6, 7, 4]) == 3  # behind the end nothing is called


def test_below_a_forbidden_token_of_a_tree_no_processor_is_asked():
    """However the token came into the tree: by the target's scores it can never be reached."""
    sampler = sampler_of(Sampling(processors=[draftwood.Stateless(only_steps)]), [PROMPT], VOCAB, prompts=[len(PROMPT)])
    paths = [[], [5], [10], [5, 6], [10, 11], [10, 11, 12]]
    found = sampler.target(torch.zeros(1, len(paths), VOCAB), lambda: [paths]).logp
    assert found[0, 3].exp().nonzero().flatten().tolist() == [5, 7, 9]


def test_classes_that_cannot_forbid_a_sure_token_are_not_asked_about_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper
    from transformers import RepetitionPenaltyLogitsProcessor as Repetition

    called: list[str] = []
    for kind in (TemperatureLogitsWarper, TopKLogitsWarper, Repetition, SuppressTokensLogitsProcessor):
        real = kind.__call__
        note = lambda self, ids, scores, real=real: (called.append(type(self).__name__), real(self, ids, scores))[1]  # noqa: E731
        monkeypatch.setattr(kind, "__call__", note)
    chain = LogitsProcessorList([TemperatureLogitsWarper(0.5), TopKLogitsWarper(2), Repetition(1.5)])
    sampler = sampler_of(Sampling(processors=list(chain)), [[1, 2, 1]], 8, prompts=[3])
    assert sampler.permitted(0, [2, 1, 2]) == 3
    assert called == []
    sampler = sampler_of(Sampling(processors=[*chain, SuppressTokensLogitsProcessor([1])]), [[1, 2, 1]], 8, prompts=[3])
    assert sampler.permitted(0, [2, 1, 2]) == 1
    assert set(called) == {"SuppressTokensLogitsProcessor"}


def tries(good: list[int], width: int, answer: Any) -> Any:
    """A constraint that allows the good text and one other token at each place; behind that, ``answer`` decides."""

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        new = ids[width:].tolist()
        if new == good[: len(new)]:
            token = good[len(new)] if len(new) < len(good) else 0
            return [token, (token + 1) % 40]
        astray = len(new) - next(i for i, token in enumerate(new) if token != good[i])
        found: list[int] = answer(astray)
        return found

    return allowed


def nothing_behind(count: int) -> Any:
    return lambda astray: [] if astray >= count else [1, 2, 3]


def raising_behind(count: int) -> Any:
    return lambda astray: {}["no answer"] if astray >= count else [1, 2, 3]


@pytest.mark.parametrize("method", ["ar", "chain", "rsd-c", "rsd-s", "dynamic", "shared-noise", "adaptive", "ngram"])
@pytest.mark.parametrize("answer", [nothing_behind(1), nothing_behind(3), raising_behind(3)], ids=["now", "later", "raises"])
def test_a_dead_end_that_the_text_never_reaches_is_no_error(method: str, answer: Any) -> None:
    model, draft = tiny("llama", dtype=torch.float32), tiny("llama", 1, dtype=torch.float32)
    prompt = torch.tensor([[4, 5, 6, 7, 4, 5, 6, 7, 4]])
    plain = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    good = model.generate(prompt, **plain)[0, 9:].tolist()
    constraint = {"prefix_allowed_tokens_fn": tries(good, 9, answer)}
    ours = recipe(None if method == "ngram" else draft, method=method)
    found = model.generate(prompt, **plain, **constraint, custom_generate=ours)
    assert found[0, 9:].tolist() == good == model.generate(prompt, **plain, **constraint)[0, 9:].tolist()


@pytest.mark.parametrize("method", ["ar", "rsd-s", "adaptive"])
def test_a_dead_end_that_the_text_reaches_is_the_error_of_generate(method: str) -> None:
    model, draft = tiny("llama", dtype=torch.float32), tiny("llama", 1, dtype=torch.float32)
    prompt = torch.tensor([[4, 5, 6, 7]])

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        return list(range(40)) if len(ids) < 9 else {}["no answer"]  # type: ignore[return-value]

    arguments = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for ours in ({}, {"custom_generate": recipe(draft, method=method)}):
        with pytest.raises(KeyError, match="no answer"):
            model.generate(prompt, **arguments, prefix_allowed_tokens_fn=allowed, **ours)
