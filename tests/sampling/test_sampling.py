"""The distribution that is sampled: equal to ``transformers``' processors, at every node of a tree on its own prefix."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    ExponentialDecayLengthPenalty,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
    WatermarkLogitsProcessor,
)

from draftwood.core.errors import ConfigError, NumericsError
from draftwood.sampling.processors import ByRow
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from tests.helpers import sampler_of

VOCAB = 12
TEXT = [3, 5, 5, 0, 7]  # two tokens of prompt, three of text
PATHS = [[], [1], [5], [1, 1], [5, 9], [5, 9, 9]]


def scores_of(seed=0, *, rows=1, nodes: int = len(PATHS), vocab=VOCAB, ties=False):
    scores = 3 * torch.randn(rows, nodes, vocab, generator=torch.Generator().manual_seed(seed))
    return scores.round() if ties else scores


def distribution(sampling, text=None, prompt=2):
    return sampler_of(sampling, [TEXT if text is None else text], VOCAB, prompts=[prompt])


def target(sampling, scores, paths=PATHS):
    return distribution(sampling).target(scores, lambda: [paths]).settled.logp


def theirs(processors, scores, paths=PATHS):
    """Node after node, each with its own text, as ``generate`` would call it."""
    each = [processors(torch.tensor([TEXT + path]), scores[:, i].clone()) for i, path in enumerate(paths)]
    return torch.stack(each, dim=1).log_softmax(-1)


def reached(distributions, paths=PATHS):
    """Nodes that some text gets to; below forbidden tokens no processor is called, and no verifier arrives there."""
    node = {tuple(path): i for i, path in enumerate(paths)}
    ways = [[(node[tuple(path[:i])], path[i]) for i in range(len(path))] for path in paths]
    return [i for i, way in enumerate(ways) if all(distributions[0, at, token] > -torch.inf for at, token in way)]


@given(
    seed=st.integers(0, 9999), ties=st.booleans(), temperature=st.sampled_from([0.3, 0.9, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 11, 12, 50]), top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.7, 1.0]), penalty=st.sampled_from([0.8, 1.0, 1.7]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_setting_equals_transformers(seed, ties, temperature, top_k, top_p, min_p, penalty):
    scores = scores_of(seed, ties=ties and top_p == 1)  # there transformers leaves ties to its sort
    processors = LogitsProcessorList(
        [
            *([RepetitionPenaltyLogitsProcessor(penalty)] if penalty != 1 else []),
            *([TemperatureLogitsWarper(temperature)] if temperature != 1 else []),
            *([TopKLogitsWarper(top_k)] if top_k else []),
            *([TopPLogitsWarper(top_p)] if top_p < 1 else []),
            *([MinPLogitsWarper(min_p)] if min_p else []),
        ]
    )
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    assert torch.equal(target(sampling, scores), theirs(processors, scores))
    wanted = theirs(processors, scores)
    assert torch.equal(target(Sampling(processors=processors), scores)[:, reached(wanted)], wanted[:, reached(wanted)])


def kept_by_top_p(scores, top_p):
    """The rule, token by token: by falling score, the larger id first among equal ones, until the sum is enough."""
    weights = [math.exp(score) for score in scores]
    kept, before = set(), 0.0
    for token in sorted(range(len(scores)), key=lambda token: (-scores[token], -token)):
        if before / sum(weights) >= top_p:
            break
        kept.add(token)
        before += weights[token]
    return kept


@pytest.mark.parametrize("top_p", [0.0405, 0.3005, 0.6205])  # between two numbers of equal tokens
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0], ids=["all tie", "many tie", "some tie"])
def test_of_equal_scores_at_the_cut_of_top_p_the_largest_ids_stay(spread, top_p):
    vocab = 1000  # more equal scores than are sorted at first
    scores = (spread * torch.randn(1, 3, vocab, generator=torch.Generator().manual_seed(5))).round()
    found = sampler_of(Sampling(top_p=top_p), [[0]], vocab).target(scores, lambda: [[[]] * 3]).settled.logp[0] > -torch.inf
    for line, own in zip(scores[0].tolist(), found, strict=True):
        assert set(own.nonzero().flatten().tolist()) == kept_by_top_p(line, top_p)


def test_all_tokens_that_tie_with_the_last_one_of_top_k_belong_to_the_sum_of_top_p():
    vocab = 2500  # many more ties than are looked at first
    scores = torch.zeros(1, 1, vocab)
    scores[..., 40:50] = 1.0
    found = sampler_of(Sampling(top_k=12, top_p=0.2), [[0]], vocab).target(scores, lambda: [[[]]]).settled.logp[0, 0]
    assert set((found > -torch.inf).nonzero().flatten().tolist()) == kept_by_top_p(scores.flatten().tolist(), 0.2)


@pytest.mark.parametrize(
    "processor",
    [
        RepetitionPenaltyLogitsProcessor(1.5),
        NoRepeatNGramLogitsProcessor(2),
        NoBadWordsLogitsProcessor([[2], [9, 4], [5, 9, 1]]),
        SequenceBiasLogitsProcessor({(1,): 2.0, (5, 9): -3.0}),
        MinNewTokensLengthLogitsProcessor(2, 5, torch.tensor([4])),
        ExponentialDecayLengthPenalty((1, 1.5), torch.tensor([4]), 2),
        WatermarkLogitsProcessor(VOCAB, "cpu"),
        TypicalLogitsWarper(0.6),
        PrefixConstrainedLogitsProcessor(lambda _, ids: [(int(ids[-1]) + i) % VOCAB for i in (1, 2, 4)], 1),
        ByRow([TopKLogitsWarper(2)]),
    ],
    ids=lambda p: type(p).__name__,
)
def test_stateless_processors_are_taken_and_see_each_nodes_text(processor):
    scores = scores_of()
    plain = processor.rows[0] if isinstance(processor, ByRow) else processor
    wanted = theirs(plain, scores)
    assert torch.equal(target(Sampling(processors=[processor]), scores)[:, reached(wanted)], wanted[:, reached(wanted)])


@given(
    generated=st.lists(st.integers(0, VOCAB - 1), max_size=8), presence=st.floats(-2, 2), frequency=st.floats(-2, 2),
    repetition=st.sampled_from([0.7, 1.0, 1.3]),
)  # fmt: skip
@settings(max_examples=40, deadline=None, derandomize=True)
def test_penalties_are_those_of_vllm(generated, presence, frequency, repetition):
    prompt, scores = [3, 5], scores_of(nodes=1)
    expected = scores[0, 0].tolist()
    for token in range(VOCAB):  # vllm/model_executor/layers/utils.py, apply_penalties
        count = generated.count(token)
        if count or token in prompt:
            expected[token] *= repetition if expected[token] < 0 else 1 / repetition
        expected[token] -= frequency * count
        expected[token] -= presence * (count > 0)
    sampling = Sampling(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition)
    got = distribution(sampling, prompt + generated).target(scores, lambda: [[[]]]).settled.logp
    assert torch.allclose(got[0, 0], torch.tensor(expected).log_softmax(-1), atol=1e-5)


def test_prefixes_are_asked_for_only_where_the_distribution_looks_back():
    def never():
        raise AssertionError("called")

    distribution(Sampling(temperature=0.5, top_k=3, logit_bias={1: 2.0})).target(scores_of(), never)
    with pytest.raises(AssertionError, match="called"):
        distribution(Sampling(presence_penalty=0.1)).target(scores_of(), never)


def test_rows_keep_their_own_text_and_processor_when_others_leave():
    processors = ByRow([SequenceBiasLogitsProcessor({(i,): 9.0}) for i in range(3)])
    sampling, texts = Sampling(repetition_penalty=2.0, processors=[processors]), [[1, 2], [3], [4, 4, 4]]
    scores, paths = scores_of(rows=3, nodes=2), [[[], [1]], [[], [2]], [[], [3]]]
    sampler = sampler_of(sampling, texts, VOCAB)
    everyone = sampler.target(scores, lambda: paths).settled.logp
    for rows in ([2, 0], [2]):
        some = Sampler([sampler.rows[r] for r in rows], VOCAB)
        found = some.target(scores[rows], lambda rows=rows: [paths[r] for r in rows]).settled.logp
        assert torch.equal(found, everyone[rows])
    assert everyone[:, 0].argmax(-1).tolist() == [0, 1, 2]


UNLIKE = [
    Sampling(), Sampling(temperature=0.0), Sampling(temperature=0.5, top_k=3), Sampling(),
    Sampling(repetition_penalty=1.7), Sampling(temperature=0.0, logit_bias={2: 9.0}),
]  # fmt: skip


def test_drafts_of_rows_with_unlike_settings():
    logits, texts = scores_of(rows=6, nodes=2), [[r, r + 1] for r in range(6)]
    sampler, own = sampler_of(UNLIKE, texts, VOCAB), [[[], [3]]]
    alone = [sampler_of(UNLIKE[r], [texts[r]], VOCAB).draft(logits[[r]], lambda: own).settled.dense() for r in range(6)]
    assert torch.equal(sampler.draft(logits, lambda: own * 6).settled.dense(), torch.cat(alone))
    assert not sampler.greedy
    assert sampler.looks_back
    some = torch.tensor([0, 2, 5, 7])
    listed = sampler_of([Sampling(), Sampling(temperature=0.5)], texts[:2], VOCAB).draft(logits[:2, :, :4], list, some)
    assert listed.tokens is some
    assert torch.equal(listed.settled.logp[1], (logits[1, :, :4] / 0.5).log_softmax(-1))


def test_logit_bias_is_added():
    scores = scores_of()
    shift = torch.zeros(VOCAB).index_fill_(0, torch.tensor([4]), -100.0).index_fill_(0, torch.tensor([6]), 2.5)
    got = target(Sampling(logit_bias={4: -100.0, 6: 2.5}), scores)
    assert torch.equal(got, (scores + shift).log_softmax(-1))
    with pytest.raises(ConfigError, match=r"logit_bias names token 12: give tokens from 0 to 11"):
        target(Sampling(logit_bias={12: 1.0}), scores)


def test_temperature_zero_is_a_point_mass_on_the_first_of_the_best():
    scores = torch.tensor([[[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]]])
    greedy = sampler_of(Sampling(temperature=0.0, top_k=2, top_p=0.1), [[0]], 3)
    assert greedy.target(scores, lambda: [[[], [1]]]).settled.dense().exp().tolist() == [[[0, 1, 0], [1, 0, 0]]]
    assert torch.equal(greedy.draft(scores, lambda: [[[], [1]]]).settled.logp, scores.log_softmax(-1))  # a ranking, not cut


def test_scores_that_round_to_one_distribution_are_still_told_apart():
    scores = torch.tensor([[[1.0e-8, 2.0e-8, 1.5e-8]]])
    assert scores.log_softmax(-1).unique().numel() == 1
    best = sampler_of(Sampling(temperature=0.0), [[0]], 3).target(scores, lambda: [[[]]]).settled.dense()
    assert best.exp().tolist() == [[[0, 1, 0]]]


def test_low_precision_scores_become_float32_and_float64_stays():
    assert target(Sampling(), scores_of().bfloat16()).dtype == torch.float32
    assert target(Sampling(processors=[TopKLogitsWarper(3)]), scores_of().double()).dtype == torch.float64


@pytest.mark.parametrize("scored", [VOCAB - 3, VOCAB, VOCAB + 4])
def test_a_drafts_padded_or_cut_vocabulary_is_fitted(scored):
    scores = scores_of(vocab=scored)
    got = distribution(Sampling(repetition_penalty=1.2)).draft(scores, lambda: [PATHS]).settled.logp
    assert got.shape[-1] == VOCAB
    assert torch.allclose(got.exp().sum(-1), torch.ones(()))
    assert (got[..., scored:] == -torch.inf).all()
    fitted = torch.nn.functional.pad(scores, (0, max(0, VOCAB - scored)), value=-torch.inf)[..., :VOCAB]
    assert torch.equal(got, target(Sampling(repetition_penalty=1.2), fitted))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("host", [True, False])
def test_scores_that_are_not_numbers_name_the_model(bad, options, host, monkeypatch):
    if not host:  # as on an accelerator
        monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    scores = scores_of()
    scores[0, 2, 7] = bad
    bound = distribution(Sampling(**options))
    found = bound.target(scores, lambda: [PATHS])
    assert list(found.dead_ends) == [(0, 2)]
    assert found.dead_end(0, [1, 3]) is None
    assert found.dead_end(0, [1, 2, 4])[0] == 2
    with pytest.raises(NumericsError, match="the target model's scores hold NaN or infinity"):
        raise found.dead_end(0, [2, 4])[1]
    assert bound.checks.draft_error is None
    assert bound.draft(scores, lambda: [PATHS]).settled
    bound.target(scores_of(), lambda: [PATHS])  # looks at the draft too
    with pytest.raises(NumericsError, match="the draft model's scores"):
        raise bound.checks.draft_error
    bound.begin_round()  # another round has checks of its own
    assert (bound.target(scores_of(), lambda: [PATHS]).dead_ends, bound.checks.draft_error) == ({}, None)


def test_a_distribution_without_any_possible_token_is_refused():
    nothing = distribution(Sampling(logit_bias=dict.fromkeys(range(VOCAB), -float("inf"))))
    with pytest.raises(NumericsError, match="no token is left possible"):
        nothing.target(scores_of(), lambda: [PATHS]).require_all()
