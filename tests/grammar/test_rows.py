"""Texts under a grammar: the same with and without speculation, alone and in any company, on both backends."""

import random
import re
from functools import cache

import pytest
import torch

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.core.limits import Limits
from draftwood.engine.requests import Request
from draftwood.grammar.grammar import Grammar
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.engine.test_batch import compare
from tests.grammar.tiny import END, TOKENS, letters, pair_of_letters
from tests.helpers import decoder, hidden_pair, tiny_gpt, tiny_model

WORDS = "(ab|c)(a|b|ca){2,9}(c|ab)?"
MORE = (*TOKENS, "ca", "bb", "cab", "d")  # two ways to write many texts
VOCAB = 1 + len(MORE)
GRAMMARS = [Grammar.regex(WORDS), Grammar.lark('start: "a" start "b" | "c"'), Grammar.regex("(a|b|c|d)*"), None]


@cache
def models(backend):
    target, draft = (tiny_model(backend, VOCAB, seed, layers=layers) for seed, layers in ((1, 2), (2, 1)))
    return make_runners(target, draft, backend=backend)[:2]


def engine(*method, greedy=False, backend="torch", parts=None):
    return decoder(*(parts or models(backend)), *method, greedy=greedy, eos=[END], tokenizer=letters(MORE))


def written(made, grammar, count, **sampling):
    requests = [Request(prompt=[1, 2, 3], seed=s, limits=Limits(max_new_tokens=24)) for s in range(count)]
    results = made.generate(requests, Sampling(grammar=grammar, **sampling))
    return [result.text if result.finish_reason == "stop" else f"{result.text}…" for result in results]


KINDS = [("ar", None, "coupled"), ("adaptive", None, "coupled"), ("rsd-s", "2x2", "recursive")]
COUPLED = [("adaptive", None), ("shared-noise", "2-2-1"), ("rsd-c", "2-2"), ("chain", "4"), ("lookup", None)]


@pytest.mark.parametrize(("backend", "grammars"), [("torch", GRAMMARS[:2]), ("native", GRAMMARS[:1])])
def test_the_same_seed_gives_the_same_text_with_and_without_speculation(backend, grammars):
    for grammar in grammars:
        plain = written(engine("ar", None, "coupled", backend=backend), grammar, 10)
        assert len(set(plain)) > 5
        for method in COUPLED if backend == "torch" else COUPLED[:1]:
            assert written(engine(*method, "coupled", backend=backend), grammar, 10) == plain, method


def test_temperature_0_is_plain_decoding():
    for grammar in GRAMMARS[:2]:
        plain = written(engine("ar", greedy=True), grammar, 1, temperature=0.0)
        for method in [*COUPLED, ("rsd-s", "2x3"), ("ngram", "3"), ("dynamic", "2x3")]:
            assert written(engine(*method, greedy=True), grammar, 1, temperature=0.0) == plain, method


@pytest.mark.parametrize(
    "method", [("rsd-s", "2x3", "traversal"), ("rsd-c", "2-2", "recursive"), ("adaptive", None, "coupled")]
)
def test_every_text_follows_its_grammar(method):
    texts = written(engine(*method), GRAMMARS[0], 16)
    assert sum(text[-1] != "…" for text in texts) > 10
    assert all(re.fullmatch(WORDS, text) for text in texts if text[-1] != "…")
    free = written(engine(*method), None, 16)
    assert not any(re.fullmatch(WORDS, text) for text in free)  # control: the models do not write it by themselves
    for text in written(engine(*method), GRAMMARS[1], 16):
        count = text.rstrip("b…").rstrip("c").count("a")
        assert text.startswith("a" * count + "c") or text.endswith("…")


def test_a_drafter_of_hidden_states_grows_level_by_level_under_a_grammar():
    target = tiny_gpt(VOCAB, 1, dtype=torch.float32)
    plain = written(engine("ar", None, "coupled"), GRAMMARS[0], 12)
    for proposes in (None, 4):  # of a part of the tokens, too: nothing is drafted where it knows no token that may come
        parts = hidden_pair(target, proposes=proposes)
        assert written(engine("adaptive", None, "coupled", parts=parts), GRAMMARS[0], 12) == plain
        assert written(engine("chain", "3", "coupled", parts=parts), GRAMMARS[0], 12) == plain


@pytest.mark.parametrize(
    "method", [("rsd-s", "2x3", "traversal"), ("adaptive", None, "coupled"), ("lookup", None, "coupled")]
)
def test_rows_with_and_without_grammar_that_come_and_go_write_what_they_write_alone(method):
    rng = random.Random(1)
    given = [
        (
            Request(prompt=[rng.randrange(1, VOCAB) for _ in range(3)], seed=i, limits=Limits(max_new_tokens=14)),
            Sampling(temperature=rng.choice([0.0, 1.0]), grammar=GRAMMARS[i % 4]),
            None,
        )
        for i in range(10)
    ]
    assert compare(engine(*method), given, 1, rows=4, pauses=True) > 40


def test_with_ignore_eos_only_the_end_follows_the_end():
    request = Request(prompt=[1], seed=2, limits=Limits(max_new_tokens=12, ignore_eos=True))
    for method in KINDS:
        [result] = engine(*method).generate([request], Sampling(grammar=Grammar.regex("c(ab)?")))
        assert len(result.token_ids) == 12
        assert re.fullmatch("c(ab)?", result.text)
        assert result.token_ids[-8:] == [END] * 8


def test_a_grammar_is_one_of_the_settings_of_a_call():
    pair = pair_of_letters()
    [schema, pattern] = Grammar.json_object(), Grammar.regex("(ab|c)+")
    assert re.fullmatch("(ab|c)*a?", pair.generate("ab", grammar=pattern, seed=1, max_new_tokens=9, temperature=1.0).text)
    assert "".join(p.text for p in pair.stream("ab", sampling={"temperature": 0, "grammar": Grammar.regex("bcb")})) == "bcb"
    settings = {"grammar": pattern, "seed": 3, "max_new_tokens": 9, "temperature": 1.0, "method": "rsd-s"}
    traced = pair.generate("ab", trace=True, **settings)
    assert traced.trace.rounds
    assert traced.text == pair.generate("ab", **settings).text
    with pytest.raises(ConfigError, match="both sampling and grammar were given"):
        pair.generate("ab", sampling=Sampling(), grammar=pattern)
    with pytest.raises(ConfigError, match="cannot be used"):  # these tokens cannot write an object
        pair.generate("ab", grammar=schema)


def test_a_bias_cannot_revive_a_token_and_what_it_forbids_ends_in_an_error_that_names_the_grammar():
    pair, grammar, never = pair_of_letters(), Grammar.regex("ab(a|c)"), -float("inf")
    for token, text in ((1, "aba"), (3, "abc")):
        biased = Sampling(temperature=0.0, grammar=grammar, logit_bias={2: 1e6, token: 100.0})
        assert pair.generate("b", sampling=biased).text == text
    for method in ("ar", "adaptive", "rsd-s"):
        nothing = Sampling(grammar=grammar, logit_bias={1: never, 3: never, 4: 1.0})
        with pytest.raises(NumericsError, match=r"the regular expression 'ab\(a\|c\)' leaves no token possible"):
            pair.generate("b", sampling=nothing, method=method, seed=1)


@pytest.mark.parametrize("method", ["ar", "adaptive", "lookup", "ngram", "rsd-s"])
@pytest.mark.parametrize(("banned", "written"), [(1, [4, 3, 4]), (4, [1, 2, 3, 1, 2])])
def test_the_only_text_that_is_left_is_written_without_a_banned_token(method, banned, written):
    sampling = Sampling(grammar=Grammar.regex("abcab"), logit_bias={banned: -float("inf")})
    for seed in range(3):
        result = pair_of_letters().generate("b", sampling=sampling, method=method, seed=seed)
        assert (result.token_ids, result.finish_reason) == ([*written, END], "stop")


DEAD_ENDS = [
    (Grammar.lark('start: "b" "b"* | "a" X\nX: /[a-c]+/ & /[x-z]+/'), "leaves no token possible"),
    (Grammar.regex("b+|c(.{1,200}){1,200}(.{1,200}){1,200}x"), "is too complex to follow here"),
]


@pytest.mark.parametrize(("grammar", "said"), DEAD_ENDS, ids=["impossible", "too complex"])
@pytest.mark.parametrize("method", ["rsd-s", "rsd-c", "adaptive", "ar"])
def test_a_dead_end_is_an_error_only_for_a_text_that_gets_there(method, grammar, said):
    pair = pair_of_letters((*TOKENS, "ab" * 60))
    rarely, mostly = (Sampling(grammar=grammar, logit_bias={1: bias, 3: bias}) for bias in (-30.0, 30.0))
    texts = pair.generate(["b"] * 8, sampling=rarely, method=method, seed=1, limits={"max_new_tokens": 8})
    assert all(set(text.text) == {"b"} for text in texts)
    with pytest.raises(NumericsError, match=said):
        pair.generate(["b"] * 8, sampling=mostly, method=method, seed=1, limits={"max_new_tokens": 8})
