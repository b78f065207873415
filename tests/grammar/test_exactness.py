"""The distribution of a text under a grammar is the target's, masked at every token: by enumeration, against an oracle."""

import pytest
import torch

from draftwood.draft.adaptive.drafter import BestFirstDrafter
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.engine.decode import Decoder
from draftwood.exactness.tape import total_variation
from draftwood.grammar.grammar import Grammar
from draftwood.sampling.settings import Sampling
from draftwood.sampling.warping import Warper
from draftwood.verify.coupled import Coupled
from draftwood.verify.recursive import Recursive
from tests.grammar.tiny import END, PATTERN, VOCAB, legal, letters, masked, runners
from tests.helpers import Generous, always, decoder
from tests.ladder.test_rung3_tape import EXACT, WRONG, engine_distribution, reference_distribution

PROMPT = (1, 3)
LENGTH = 3
GRAMMAR = Grammar.regex(PATTERN)
NOISES = torch.tensor(
    [[0.3, -0.2, 2.9, 0.1, 0.4], [-0.8, 3.4, 0.1, 1.0, 2.2], [3.1, 0.2, -0.5, 1.4, -1.0]], dtype=torch.float64
)


def named(case):
    return "-".join(part for part in case if part)


def engine(method, shape=None, verifier="auto", nodes=None):
    return decoder(*runners(), method, shape, verifier, nodes=nodes, eos=[END], tokenizer=letters())


def found(made, sampling, shared=None, length=LENGTH):
    return engine_distribution(made, length, sampling, shared, prompt=PROMPT)


def expected(of_scores, length=LENGTH):
    return reference_distribution(runners()[0].model, length, of_scores, eos=END, prompt=PROMPT)


def plain(scores, text):
    return masked(scores, text[len(PROMPT) :]).softmax(-1)


CASES = [
    ("ar", None, "recursive"), ("chain", "3", "recursive"), ("rsd-c", "2-1", "recursive"), ("rsd-c", "2-2", "traversal"),
    ("rsd-s", "2x3", "recursive"), ("rsd-s", "2x2", "traversal"), ("iid", "2x2", "recursive"), ("ngram", "3", "recursive"),
    ("dynamic", "2x2", "traversal"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=named)
def test_drawn_trees_are_exact_under_a_grammar(case):
    case = [*case, 3] if case[0] == "dynamic" else case
    assert total_variation(found(engine(*case), Sampling(grammar=GRAMMAR)), expected(plain)) < EXACT


@pytest.mark.parametrize("case", [("ar", None, "recursive"), ("chain", "3", "recursive"), ("rsd-s", "2x2", "traversal"),
                                  ("ngram", "3", "recursive")], ids=named)  # fmt: skip
def test_the_only_text_that_is_left_is_written_with_the_tokens_that_the_target_draws(case):
    for bias, texts in ((0.0, 6), (-torch.inf, 2)):

        def warped(scores, text, bias=bias):
            scores = scores.clone()
            scores[1] += bias
            return masked(scores, text[len(PROMPT) :], ("ababb", "ab")).softmax(-1)

        wanted = expected(warped)
        assert len(wanted) == texts
        sampling = Sampling(grammar=Grammar.regex("ab(abb)?"), logit_bias={1: bias})
        assert total_variation(found(engine(*case), sampling), wanted) < EXACT


@pytest.mark.parametrize("case", [("rsd-s", "2x3", "recursive"), ("rsd-c", "2-2", "traversal")], ids=named)
def test_penalties_and_bias_come_before_the_mask_and_truncation_after_it(case):
    sampling = Sampling(
        temperature=0.7, top_k=3, top_p=0.9, presence_penalty=0.4, logit_bias={3: 30.0, 4: 0.5}, grammar=GRAMMAR
    )

    def warped(scores, text):
        scores = scores.clone()
        for token in set(text[len(PROMPT) :]):
            scores[token] -= 0.4
        scores[3] += 30.0
        scores[4] += 0.5
        scores = masked(scores, text[len(PROMPT) :]) / 0.7
        scores[scores < scores.topk(3).values[-1]] = -torch.inf
        probs = scores.softmax(-1)
        order = probs.argsort(descending=True)
        kept = order[probs[order].cumsum(0) - probs[order] < 0.9]
        out = torch.zeros_like(probs)
        out[kept] = probs[kept]
        return out / out.sum()

    assert total_variation(found(engine(*case), sampling), expected(warped)) < EXACT


@pytest.mark.parametrize("case", [
    ("ar", None), ("adaptive", None), ("shared-noise", "2-2"), ("rsd-c", "2-1"), ("chain", "2"), ("lookup", None),
    ("ngram", "3"),
], ids=named)  # fmt: skip
def test_coupled_text_is_plain_decodings_text_for_every_noise(case):
    def picks(scores, text):
        best = (NOISES + masked(scores, text[len(PROMPT) :]).log_softmax(-1)).argmax(-1)
        return torch.bincount(best, minlength=VOCAB).double() / len(NOISES)

    wanted = expected(picks)
    assert len(wanted) > 3
    assert total_variation(found(engine(*case, "coupled"), Sampling(grammar=GRAMMAR), NOISES), wanted) < EXACT


@pytest.mark.parametrize("verifier", [Recursive(), Coupled()], ids=lambda verifier: verifier.name)
def test_forced_tokens_are_drafted_without_a_draft_model_and_are_exact(verifier):
    """The prompt has no match, so every guess is what the grammar forces."""
    grammar, drafted = Grammar.regex("b?cab?"), []

    class Watched(PromptLookup):
        def guess(self, sampler, limits):
            guesses = super().guess(sampler, limits)
            drafted.extend(guess.tokens for guess in guesses)
            return guesses

    target = runners()[0]
    drafter = BestFirstDrafter(None, budgets=always(Generous()), lookup=Watched())
    noise = NOISES if verifier.reads == "argmax" else None
    found, wanted = (
        engine_distribution(
            Decoder(target, own, verifier, tokenizer=letters(), eos=[END]), 3, Sampling(grammar=grammar), noise, prompt=(2,)
        )
        for own in (drafter, None)
    )
    assert len(wanted) > 1
    assert total_variation(found, wanted) < EXACT
    assert [] in drafted  # at the beginning there is a choice
    assert [3] in drafted  # after "b"


CONTROLS = pytest.mark.parametrize("case", [("chain", "2", "recursive"), ("rsd-c", "2", "traversal")], ids=named)


def distance(case, length=2):
    return total_variation(found(engine(*case), Sampling(grammar=GRAMMAR), length=length), expected(plain, length))


@CONTROLS
@pytest.mark.parametrize(
    "masks", [lambda path, drafts: drafts, lambda path, drafts: not path], ids=["draft only", "root only"]
)
def test_control_a_mask_that_is_missing_somewhere_is_seen(monkeypatch, case, masks):
    monkeypatch.setattr(Warper, "_constrain", _where(masks))
    assert distance(case) > WRONG


@CONTROLS
def test_control_the_mask_of_another_node_is_seen(monkeypatch, case):
    monkeypatch.setattr(Warper, "_constrain", _where(lambda path, drafts: True))
    assert distance(case) < EXACT
    monkeypatch.setattr(Warper, "_constrain", _where(lambda path, drafts: True, of=lambda path: path[:-1]))
    assert distance(case) > WRONG


def _where(masks, of=lambda path: path):
    """A stand-in for the mask: the oracle's, at the nodes where ``masks`` says so."""

    def constrain(self, scores, paths, *, drafts):
        out = scores.clone()
        for row, nodes in enumerate(paths):
            text = self.rows[row].tokens[self.rows[row].prompt_length :]
            for node, path in enumerate(nodes):
                if path is not None and masks(path, drafts):
                    allowed = legal([*text, *of(path)])
                    out[row, node, [t for t in range(VOCAB) if t not in allowed]] = -torch.inf
        dead = (out == -torch.inf).all(-1, keepdim=True)
        return torch.where(dead, scores, out), {}

    return constrain
