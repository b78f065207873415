"""Log-probabilities of a text are those of plain decoding and of one forward over it, whichever token was drafted."""

import functools
import json
import math
from itertools import chain

import pytest
import torch

from draftwood import LogprobSettings, Pair, TokenTexts
from draftwood.core.errors import CacheError, ConfigError, NumericsError
from draftwood.core.limits import Limits
from draftwood.core.token_logprobs import TokenLogprob
from draftwood.engine import logprobs
from draftwood.engine.requests import Request
from draftwood.runners.factory import make_runners
from draftwood.sampling.settings import Sampling
from tests.engine.test_batch import causal, method_id
from tests.helpers import decoder, sampler_of, tiny_gpt, tiny_model

VOCAB, PROMPT = 12, [3, 1, 4, 1, 5]
CLOSE = 2e-4  # of float32, in nats
MODEL, SAMPLED = LogprobSettings(top=3), LogprobSettings(top=3, of="sampled")
ROWS = [
    (Sampling(temperature=1.0), MODEL),
    (Sampling(temperature=0.0, repetition_penalty=1.5), MODEL),
    (Sampling(temperature=0.6, top_p=0.8, presence_penalty=0.7, logit_bias={2: 1.5, 4: -math.inf}), MODEL),
    (Sampling(temperature=1.0), None),
    (Sampling(temperature=1.0), SAMPLED),
    (Sampling(temperature=0.0), SAMPLED),
    (Sampling(temperature=1.3, top_k=4, repetition_penalty=1.4), SAMPLED),
]


@functools.cache
def models(backend="torch"):
    return tiny_model(backend, VOCAB, 1), tiny_model(backend, VOCAB, 2, layers=1)


def raw(text, backend="torch"):
    """Scores after each token of a text, by a plain forward."""
    with torch.inference_mode():
        return models(backend)[0](torch.tensor([text])).logits[0]


def reference(prompt, tokens, sampling, wanted, backend="torch"):
    """The distribution of each new token, from one forward over the finished text."""
    found, scores = [], raw(prompt + tokens, backend)
    for at in range(len(prompt), len(prompt) + len(tokens)):
        line = scores[at - 1]
        if wanted.of == "sampled":
            own = sampler_of(sampling, [(prompt + tokens)[:at]], VOCAB, prompts=[len(prompt)])
            line = own.target(line.expand(1, 1, -1), lambda: [[[]]]).settled.dense()[0, 0]
        found.append(line.log_softmax(-1))
    return found


def check(entries, tokens, lines, top):
    assert [one.token for one in entries] == tokens
    for one, line in zip(entries, lines, strict=True):
        assert one.logprob == pytest.approx(float(line[one.token]), abs=CLOSE)
        assert len(one.top) == min(top, int((line > -math.inf).sum()))
        assert [value for _, value in one.top] == pytest.approx(line.topk(len(one.top)).values.tolist(), abs=CLOSE)
        assert all(value == pytest.approx(float(line[token]), abs=CLOSE) for token, value in one.top)


def written(engine, rows, count=14):
    """Tokens and entries of texts that are written together, how many tokens were drafted, and rounds with a rejection."""
    texts = {}
    drafted = corrected = 0
    with engine.batch() as batch:
        for seed, (sampling, wanted) in enumerate(rows):
            request = Request(prompt=PROMPT[: 2 + seed % 3], seed=seed, limits=Limits(max_new_tokens=count), logprobs=wanted)
            texts[batch.add(request, sampling)] = ([], [])
        while len(batch):
            for piece in batch.step():
                assert (piece.logprobs is None) == (rows[piece.row][1] is None)
                texts[piece.row][0].extend(piece.tokens)
                texts[piece.row][1].extend(piece.logprobs or [])
                drafted += piece.drafted
                tree = piece.round.tree
                corrected += tree.size > 1 and len(piece.round.paths[piece.round_row]) < tree.max_depth
    return list(texts.values()), drafted, corrected


METHODS = [
    ("ar", None, "auto"), ("chain", "3", "recursive"), ("rsd-s", "2x3", "traversal"), ("iid", "2x2", "recursive"),
    ("dynamic", "3x3", "recursive"), ("ngram", "4", "recursive"),
    ("rsd-c", "2-2", "coupled"), ("adaptive", None, "coupled"), ("rsd-c", "2-1-1", "recursive"),
]  # fmt: skip


def compare(engine, rows, backend="torch"):
    texts, drafted, corrected = written(engine, rows)
    for seed, ((tokens, entries), (sampling, wanted)) in enumerate(zip(texts, rows, strict=True)):
        assert len(tokens) == 14
        if wanted is not None:
            check(entries, tokens, reference(PROMPT[: 2 + seed % 3], tokens, sampling, wanted, backend), wanted.top)
    return drafted, corrected


@pytest.mark.usefixtures("always_drafts")
@pytest.mark.parametrize(("backend", "method"), [
    *(("torch", method) for method in METHODS),
    ("native", ("rsd-s", "2x3", "traversal")), ("native", ("rsd-c", "2-2", "coupled")),
], ids=method_id)  # fmt: skip
def test_every_token_has_the_value_of_one_forward_over_the_text(backend, method):
    drafted, corrected = compare(decoder(*causal(backend), *method), ROWS, backend)
    assert method[0] == "ar" or min(drafted, corrected) > 5


def test_control_values_of_the_next_node_are_noticed():
    texts, *_ = written(decoder(*causal("torch"), "rsd-s", "2x3", "traversal"), ROWS[:1])
    tokens, entries = texts[0]
    lines = reference(PROMPT[:2], tokens, *ROWS[0])
    check(entries, tokens, lines, 3)
    with pytest.raises(AssertionError):
        check(entries, tokens, [*lines[1:], lines[0]], 3)


@pytest.mark.parametrize("wanted", [MODEL, SAMPLED], ids=["model", "sampled"])
def test_a_forced_last_token_is_certain_where_it_is_sampled_and_has_the_models_own_value(wanted):
    request = Request(prompt=PROMPT, limits=Limits(max_new_tokens=5), final=7, logprobs=wanted)
    [result] = decoder(*causal("torch"), "rsd-s", "2x3").generate([request], Sampling(top_k=3))
    last, text = result.logprobs[-1], PROMPT + result.token_ids
    assert last.token == text[-1] == 7
    own = float(raw(text)[-2].log_softmax(-1)[7])
    assert last.logprob == pytest.approx(own if wanted is MODEL else 0.0, abs=CLOSE)


def test_a_verifier_that_changes_the_text_reports_the_models_own_values_only():
    engine = decoder(*causal("torch"), "rsd-c", "2-2", "tolerance", greedy=True)
    texts, *_ = written(engine, [(Sampling(temperature=0.0), MODEL)])
    check(texts[0][1], texts[0][0], reference(PROMPT[:2], texts[0][0], Sampling(), MODEL), 3)
    with pytest.raises(ConfigError, match="tolerance"):
        written(engine, [(Sampling(temperature=0.0), SAMPLED)])


def test_large_vocabularies_keep_their_tokens_only():
    """From 16,384 tokens on, a truncated distribution is a list of its tokens."""
    target, draft, _ = make_runners(*(tiny_gpt(17000, seed, dtype=torch.float32, hidden=8) for seed in (1, 2)))
    sampling = Sampling(top_k=6, temperature=0.8)
    request = Request(prompt=PROMPT, limits=Limits(max_new_tokens=8), logprobs=LogprobSettings(top=9, of="sampled"))
    [result] = decoder(target, draft, "rsd-s", "2x2").generate([request], sampling)
    with torch.inference_mode():
        scores = target.model(torch.tensor([PROMPT + result.token_ids])).logits[0, len(PROMPT) - 1 : -1] / 0.8
    for one, line in zip(result.logprobs, scores, strict=True):
        values = line.topk(6).values.log_softmax(-1)
        assert [value for _, value in one.top] == pytest.approx(values.tolist(), abs=CLOSE)
        assert one.logprob == dict(one.top)[one.token]


def pair_of(backend):
    return Pair(*models(backend), None, runners=make_runners(*models(backend), backend=backend))


def test_equal_values_are_listed_by_rising_id_whatever_the_order_of_the_columns():
    columns = torch.tensor([[9, 4, 7, 2, 0]])
    [found] = logprobs.scored(torch.tensor([[2.0, 2.0, 1.0, 1.0, -math.inf]]), [7], 4, columns)
    assert [token for token, _ in found.top] == [4, 9, 2, 7]
    assert found.logprob == found.top[2][1]


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_prompt_is_scored_in_parts_while_a_stream_goes_on(backend, monkeypatch):
    monkeypatch.setattr(logprobs, "_CHUNK", 7)
    pair, text = pair_of(backend), [5 * i % VOCAB for i in range(40)]
    alone = pair.generate(PROMPT, seed=3, max_new_tokens=12).token_ids
    stream, tokens = pair.stream(PROMPT, seed=3, max_new_tokens=12), []
    for piece in stream:
        tokens += piece.tokens
        first, *rest = pair.prompt_logprobs(text, top=2)
        assert first is None
        check(rest, text[1:], list(raw(text, backend)[:-1].log_softmax(-1)), 2)
    assert tokens == alone


def test_a_part_of_a_prompt_is_as_large_as_it_says(monkeypatch):
    target = causal("torch")[0].another()
    for chunk, scores, sizes in ((8, None, [8, 8, 8, 5]), (256, 10 * VOCAB, [10, 10, 9])):
        monkeypatch.setattr(logprobs, "_CHUNK", chunk)
        monkeypatch.setattr(logprobs, "_SCORES", scores or logprobs._SCORES)
        assert [len(part) for part in logprobs.of_prompt(target, [1] * 30, 0)] == sizes


def test_a_prompt_as_long_as_the_context_is_scored_and_a_longer_one_is_refused():
    pair = pair_of("torch")
    assert [one and one.token for one in pair.prompt_logprobs([7])] == [None]
    assert len(pair.prompt_logprobs([3] * 64)) == 64
    with pytest.raises(CacheError, match="65 tokens"):
        pair.prompt_logprobs([3] * 65)
    with pytest.raises(ConfigError, match="token 12"):
        pair.prompt_logprobs([3, 12])
    with pytest.raises(ConfigError, match="logprobs is 21"):
        pair.prompt_logprobs([3], top=21)
    broken = tiny_gpt(VOCAB, 1, dtype=torch.float32)
    broken.transformer.ln_f.weight.data.fill_(math.nan)
    with pytest.raises(NumericsError):
        Pair(broken, None, None).prompt_logprobs(PROMPT)


@pytest.mark.parametrize("given", [True, 21, -1, "5", {"of": "draft"}, {"top": 1, "n": 2}, 1.5])
def test_other_values_are_refused_by_name(given):
    with pytest.raises(ConfigError, match="logprobs"):
        pair_of("torch").generate(PROMPT, logprobs=given)


def test_results_streams_and_several_prompts_have_them():
    pair = pair_of("torch")
    settings = {"seed": 4, "max_new_tokens": 6, "temperature": 1.0}
    [one, two] = pair.generate([PROMPT, PROMPT[:3]], logprobs={"top": 1}, **settings)
    streamed = list(chain.from_iterable(piece.logprobs for piece in pair.stream(PROMPT, logprobs=1, **settings)))
    assert [entry.token for entry in streamed] == [entry.token for entry in one.logprobs] == one.token_ids
    assert [entry.logprob for entry in streamed] == pytest.approx([entry.logprob for entry in one.logprobs], abs=CLOSE)
    assert len(two.logprobs) == 6
    assert pair.generate(PROMPT, max_new_tokens=2).logprobs is None
    stopped = pair.generate(PROMPT, logprobs=1, seed=4, limits=Limits(max_new_tokens=30, stop_token_ids=(2, 3, 4)))
    assert stopped.finish_reason == "stop"
    assert [entry.token for entry in stopped.logprobs] == stopped.token_ids


def test_json_holds_ids_without_a_tokenizer_and_no_infinity():
    entry = TokenLogprob(token=3, logprob=-math.inf, top=((1, -0.5),))
    found = TokenTexts(None).to_json([None, entry])
    assert json.loads(json.dumps(found, allow_nan=False)) == [
        None, {"token_id": 3, "logprob": -9999.0, "top": [{"token_id": 1, "logprob": -0.5}]}
    ]  # fmt: skip
