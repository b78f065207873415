"""Tokens that processors or the models themselves forbid: never in a text, and no error."""

import pytest
import torch

import draftwood
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.hf import recipe
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling
from tests.helpers import decoder, sampler_of, tiny_gpt, tiny_runner
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


def drafting(method, verifier="auto"):
    draft = None if method in ("ngram", "ar") else tiny_runner(VOCAB, 2, layers=1)
    return decoder(tiny_runner(VOCAB, 1), draft, method, verifier=verifier)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["adaptive", "ngram", "chain", "iid", "rsd-c", "rsd-s"])
def test_a_constraint_is_never_asked_behind_what_it_forbids(method, temperature):
    engine, plain = drafting(method, "coupled"), drafting("ar")
    sampling = Sampling(processors=[draftwood.Stateless(only_steps)], temperature=temperature)
    drafted = 0
    for seed in range(20):
        request = Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=12))
        [result] = engine.generate([request], sampling)
        assert result.token_ids == plain.generate([request], sampling)[0].token_ids
        drafted += result.stats.drafted
    assert drafted


@pytest.mark.parametrize("method", ["adaptive", "ngram"])
def test_tokens_of_no_bias_at_all_are_not_guessed(method):
    engine = drafting(method)
    sampling = Sampling(logit_bias={5: -float("inf")})
    for seed in range(6):
        request = Request(prompt=PROMPT, seed=seed, limits=Limits(max_new_tokens=12))
        for pieces in engine.stream([request], sampling):
            tree = pieces[0].round.tree
            assert 5 not in tree.tokens[tree.valid]


def test_below_a_forbidden_token_of_a_tree_no_processor_is_asked():
    """However the token came into the tree: by the target's scores it can never be reached."""
    sampler = sampler_of(Sampling(processors=[draftwood.Stateless(only_steps)]), [PROMPT], VOCAB, prompts=[len(PROMPT)])
    paths = [[], [5], [10], [5, 6], [10, 11], [10, 11, 12]]
    found = sampler.target(torch.zeros(1, len(paths), VOCAB), lambda: [paths]).settled.logp
    assert found[0, 3].exp().nonzero().flatten().tolist() == [5, 7, 9]


def tries(good, width, answer):
    """A constraint that allows the good text and one other token at each place; behind that, ``answer`` decides."""

    def allowed(_, ids):
        new = ids[width:].tolist()
        if new == good[: len(new)]:
            token = good[len(new)] if len(new) < len(good) else 0
            return [token, (token + 1) % 40]
        astray = len(new) - next(i for i, token in enumerate(new) if token != good[i])
        return answer(astray)

    return allowed


@pytest.mark.parametrize("method", ["ar", "chain", "rsd-c", "rsd-s", "dynamic", "shared-noise", "adaptive", "ngram"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda astray: [] if astray >= 1 else [1, 2, 3],
        lambda astray: [] if astray >= 3 else [1, 2, 3],
        lambda astray: {}["no answer"] if astray >= 3 else [1, 2, 3],
    ],
    ids=["now", "later", "raises"],
)
def test_a_dead_end_that_the_text_never_reaches_is_no_error(method, answer):
    model, draft = tiny("llama", dtype=torch.float32), tiny("llama", 1, dtype=torch.float32)
    prompt = torch.tensor([[4, 5, 6, 7, 4, 5, 6, 7, 4]])
    plain = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    good = model.generate(prompt, **plain)[0, 9:].tolist()
    constraint = {"prefix_allowed_tokens_fn": tries(good, 9, answer)}
    ours = recipe(None if method == "ngram" else draft, method=method)
    found = model.generate(prompt, **plain, **constraint, custom_generate=ours)
    assert found[0, 9:].tolist() == good == model.generate(prompt, **plain, **constraint)[0, 9:].tolist()


@pytest.mark.parametrize("method", ["ar", "rsd-s", "adaptive"])
def test_a_dead_end_that_the_text_reaches_is_the_error_of_generate(method):
    model, draft = tiny("llama", dtype=torch.float32), tiny("llama", 1, dtype=torch.float32)
    prompt = torch.tensor([[4, 5, 6, 7]])

    def allowed(_, ids):
        return list(range(40)) if len(ids) < 9 else {}["no answer"]

    arguments = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    for ours in ({}, {"custom_generate": recipe(draft, method=method)}):
        with pytest.raises(KeyError, match="no answer"):
            model.generate(prompt, **arguments, prefix_allowed_tokens_fn=allowed, **ours)


# Models that forbid tokens ----------------------------------------------------------------------------------------------


class Forbidding(torch.nn.Module):
    """A head that never says some tokens."""

    def __init__(self, head, tokens):
        super().__init__()
        self.head, self.tokens, self.weight = head, tokens, head.weight

    def forward(self, states):
        return self.head(states).index_fill(-1, torch.tensor(self.tokens), -torch.inf)


def forbidding(seed, tokens, **settings):
    model = tiny_gpt(VOCAB, seed, **settings)
    model.lm_head = Forbidding(model.lm_head, tokens)
    return model


@pytest.mark.parametrize("method", ["ar", "rsd-s", "adaptive", "ngram", "dynamic"])
@pytest.mark.parametrize("greedy", [True, False])
def test_a_model_whose_own_scores_forbid_tokens_can_be_used(method, greedy):
    model = forbidding(1, [3, 7, 8])
    draft = forbidding(2, [5, 8], layers=1)
    engine = decoder(TorchRunner(model), TorchRunner(draft) if method != "ar" else None, method, greedy=greedy)
    requests = [Request(prompt=[1, 2, seed], seed=seed, limits=Limits(max_new_tokens=12)) for seed in range(4)]
    got = [result.token_ids for result in engine.generate(requests, Sampling(temperature=1.0 - greedy))]
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
