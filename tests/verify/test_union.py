"""Verification without impossible tokens changes no text, under any drafter and any verifier."""

import math
from collections import Counter

import pytest
import torch

from draftwood.core.draws import Draw
from draftwood.core.limits import Limits
from draftwood.core.log_probs import Distributions, Pending
from draftwood.core.tree import TreeBuilder
from draftwood.draft.none import root_alone
from draftwood.engine.requests import Request
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling import truncation
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from draftwood.sampling.truncation import Truncation
from draftwood.verify import sparse
from draftwood.verify.coupled import Coupled, Greedy
from draftwood.verify.recursive import Recursive
from tests.differences import difference
from tests.helpers import decoder, tiny_gpt, tiny_runner

VOCAB = 401
CASES = [
    ("chain", "3", "recursive"),
    ("chain", "3", "traversal"),
    ("iid", "2x2", "recursive"),
    ("rsd-c", "3-2", "recursive"),
    ("rsd-s", "3x3", "recursive"),
    ("rsd-s", "3x3", "traversal"),
    ("ngram", "3", "recursive"),
    ("ar", None, "coupled"), ("shared-noise", "3-2", "coupled"),
]  # fmt: skip
SAMPLINGS = [Sampling(top_k=5), Sampling(top_p=0.7), Sampling(min_p=0.2, temperature=1.3), Sampling(top_k=1)]


def texts(case, setting):
    method, shape, verifier = case
    draft = TorchRunner(tiny_gpt(VOCAB, 2, layers=1), drafts=True)
    made = decoder(tiny_runner(VOCAB, 1), draft, method, shape, verifier)
    requests = [Request(prompt=[1, 2, 3][: 1 + i], seed=i, limits=Limits(max_new_tokens=14)) for i in range(3)]
    return [(r.token_ids, r.stats.histogram) for r in made.generate(requests, setting)]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("setting", SAMPLINGS)
def test_texts_are_the_same_on_the_union_of_supports(case, setting, monkeypatch):
    whole, sizes, reduced = texts(case, setting), [], sparse.reduced

    def recorded(tree, target, **settings):
        found = reduced(tree, target, **settings)
        sizes.append(found[1].shape[-1])
        return found

    monkeypatch.setattr(truncation, "LARGE", 1)
    monkeypatch.setattr(sparse, "reduced", recorded)
    monkeypatch.setattr(sparse, "Coupled", None)  # as on an accelerator; the host looks at single nodes
    assert texts(case, setting) == whole
    assert min(sizes) < VOCAB  # something was left out


def test_control_noise_of_other_tokens_is_seen(monkeypatch):
    case, setting = ("shared-noise", "3-2", "coupled"), Sampling(top_k=5)
    whole = texts(case, setting)

    def shifted(self, offset, count, vocab, tokens=None):
        return self._rng.shared(offset, count, self._vocab, torch.arange(vocab) if tokens is None else tokens)

    monkeypatch.setattr(truncation, "LARGE", 1)
    monkeypatch.setattr(sparse, "Coupled", None)
    monkeypatch.setattr(sparse.SubsetRng, "shared", shifted)
    assert texts(case, setting) != whole


def test_the_draft_may_say_what_the_target_cannot():
    """Mass of the draft off the target's support takes part in its distribution; left out, its children would look
    likelier."""
    torch.manual_seed(0)
    scores = torch.randn(1, 1, 6, dtype=torch.float64)
    tokens = torch.tensor([[[4, 1, 0, 3]]])
    draft = Distributions(logp=scores[..., [4, 1, 0, 3]].log_softmax(-1), tokens=tokens, vocab=6)
    two = torch.tensor([0.7, 0.3, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64).log().expand(1, 4, 6)
    target = Pending(scores=two, cuts=[Truncation(2).likeliest], vocab=6)
    outcomes = set()
    for seed in range(60):
        rng = CounterRng([seed]).at([1])
        builder = TreeBuilder([0])
        builder.add(rng.ordered(draft.dense(), 3, 0)[:, 0].tolist(), [[0, 0, 0]])
        tree = builder.build(draw=Draw.WITHOUT_REPLACEMENT, ranking=lambda: draft)
        one = Recursive().verify(tree, target.settled.dense(), rng)
        other = sparse.verify(Recursive(), tree, target, rng)
        assert one == other
        outcomes.add((len(one.paths[0]), one.next_tokens[0]))
    assert len(outcomes) > 2


def test_distributions_over_named_tokens_are_the_distributions_over_all():
    torch.manual_seed(1)
    scores = torch.randn(2, 3, 50)
    values, tokens = Sampling(top_p=0.8, top_k=9).cuts.likeliest(scores)
    log_probs = Distributions(logp=values.log_softmax(-1), tokens=tokens, vocab=50)
    columns = tokens[values > -torch.inf].unique()
    assert torch.equal(log_probs.dense()[..., columns], log_probs.on(columns))
    total = log_probs.on(columns).exp().sum(-1)
    assert difference(total, torch.ones_like(total)) < 1e-6
    joined = Distributions.joined([log_probs, log_probs.at([1])])
    assert torch.equal(joined.dense(), torch.cat([log_probs.dense(), log_probs.dense()[:, 1:2]], dim=1))
    narrow = Distributions(logp=torch.tensor([[[-0.5, -1.0]]]), tokens=torch.tensor([[[0, 7]]]), vocab=50)
    wide = Distributions(logp=values[:1].log_softmax(-1), tokens=tokens[:1], vocab=50)
    padded = Distributions.joined([narrow, wide])
    assert torch.equal(padded.dense()[:, :1], narrow.dense())  # padding hides no token
    assert torch.equal(padded.probs([0], [0]), narrow.dense()[0].exp())


def test_verifiers_of_the_best_token_take_scores_and_no_distribution_is_made():
    """A constant of a node changes no match; it would change the distribution under any other verifier."""
    torch.manual_seed(2)
    logp = torch.randn(2, 1, 30).log_softmax(-1)
    shifted = Pending(scores=logp + torch.tensor([[[3.0]], [[-2.0]]]), cuts=[None, None], vocab=30)
    tree = root_alone([1, 2])
    for seed in range(50):
        rng = CounterRng([seed, seed + 1]).at([4, 5])
        for matching in (Coupled(), Greedy()):
            chosen = sparse.verify(matching, tree, shifted, rng)
            assert chosen == matching.verify(tree, logp, rng)
    assert "settled" not in vars(shifted)
    assert torch.allclose(shifted.settled.logp, logp, atol=1e-6)


@pytest.mark.parametrize("native", [True, False])
def test_noise_keeps_its_digits_next_to_large_scores(native, monkeypatch):
    """As a large bias or a very low temperature makes them."""
    if not native:
        monkeypatch.setattr("draftwood.native.sampling.runs", lambda scores: False)
    scores = torch.tensor([1e7, -torch.inf, 1e7, 1e7 - 2.0]).expand(1, 1, 4)
    tree, given = root_alone([1]), Pending(scores=scores, cuts=[None], vocab=4)
    rngs = [CounterRng([seed]).at([4]) for seed in range(4000)]
    chosen = Counter(sparse.verify(Coupled(), tree, given, rng).next_tokens[0] for rng in rngs)
    share = 1.0 / (2.0 + math.exp(-2.0))
    assert abs(chosen[0] / 4000 - share) < 0.03
    assert abs(chosen[2] / 4000 - share) < 0.03
    assert chosen[1] == 0


def test_a_flat_distribution_is_sorted_as_far_as_it_reaches(monkeypatch):
    monkeypatch.setattr(truncation, "_LIKELY", 2)
    monkeypatch.setattr(truncation, "_TIES", 1)
    scores = 0.01 * torch.randn(1, 2, 300)
    values, tokens = Sampling(top_p=0.9).cuts.likeliest(scores)
    assert 260 <= int((values > -torch.inf).sum(-1).min()) <= 275
    assert torch.equal(scores.gather(-1, tokens)[values > -torch.inf], values[values > -torch.inf])
