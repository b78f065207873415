"""Where a text's ending stood before, how far that is trusted, and what it does to a tree."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from draftwood.core.limits import Limits
from draftwood.core.settings import Method
from draftwood.draft.adaptive import constants
from draftwood.draft.adaptive.candidates import CandidateTree, Children
from draftwood.draft.adaptive.controller import Controller
from draftwood.draft.adaptive.controllers import Controllers
from draftwood.draft.adaptive.expand import GumbelExpander
from draftwood.draft.adaptive.learnt import NOTHING
from draftwood.draft.adaptive.lookup import PromptLookup
from draftwood.draft.alignment import MAX_AGREED
from draftwood.draft.ngram_index import NgramIndex
from draftwood.engine.decode import Decoder
from draftwood.engine.methods import build
from draftwood.engine.requests import Request
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Greedy
from tests.adaptive.clocked import ClockedRunner, counting
from tests.helpers import always, best_first, linear_costs, sampler_of

VOCAB = 12


def searched(source, text, count, max_ngram):
    """What followed the latest match of the longest ending, and how many tokens agree, without an index."""
    tokens = [*source, *text]
    n = len(tokens)
    for size in range(min(max_ngram, len(text), n - 1), 0, -1):
        for end in range(n - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[n - size :]:
                most = range(min(end, len(text), MAX_AGREED))
                agreed = next((i for i in most if tokens[end - 1 - i] != tokens[n - 1 - i]), len(most))
                return tokens[end : end + count], agreed
    return [], 0


@pytest.mark.parametrize("seed", range(8))
def test_an_index_that_grows_with_the_text_finds_what_a_search_finds(seed):
    rng = random.Random(seed)
    source = [rng.randrange(4) for _ in range(rng.randrange(9))]
    text, index, hits = [rng.randrange(4)], NgramIndex(source), 0  # an ending reaches not into the source
    while len(text) < 60:
        [(found, agreed, _)] = index.matches(text, 5)
        assert (found, agreed) == searched(source, text, 5, 3)
        hits += len(found) == 5
        text += [rng.randrange(4) for _ in range(rng.randrange(4))]  # sometimes nothing new
    assert hits > 5


NGRAM, _ = build(Method(method="ngram", shape="3"), None, greedy=True)


def drafted(drafter, texts, limits, sources=()):
    """What a drafter without a model drafts after texts."""
    root, sampler = [text[-1] for text in texts], distribution_of(*texts, sources=sources)
    tree = drafter.draft(root, sampler, CounterRng([0] * len(root)).at([0] * len(root)), limits)
    rows = zip(tree.host.tokens, tree.host.valid, strict=True)
    return [[token for token, real in zip(row[1:], valid[1:], strict=True) if real] for row, valid in rows]


def test_the_source_comes_before_the_text():
    texts, limits = [[0, 7, 8], [0, 3], [0, 9], [0, 3, 4, 5, 0, 3]], [4, 4, 4, 4]
    sources = [[7, 8, 2, 3, 4], [5, 3, 6], [1, 2], [3, 10, 11]]
    assert drafted(NGRAM, texts, limits, sources) == [[2, 3, 4], [6, 0, 3], [], [4, 5, 0]]
    assert drafted(NGRAM, texts, limits) == [[], [], [], [4, 5, 0]]  # without sources: the text alone
    assert drafted(NGRAM, texts, [0, 1, 4, 2], sources) == [[], [6], [], [4, 5]]


def test_nothing_is_guessed_that_the_target_never_writes():
    """An encoder may know more tokens than its decoder."""
    assert drafted(NGRAM, [[3]], [3], [[3, 4, 90, 4]]) == [[4]]
    assert PromptLookup(3).guess(distribution_of([3], sources=[[3, 4, 90, 4]]), [3])[0].tokens == [4]


def distribution_of(*texts, stops=(), sources=()):
    return sampler_of(Sampling(), texts, VOCAB, stops=frozenset(stops), sources=sources)


TEXT = [1, 2, 3, 4, 5, 6, 1, 2]
AGAIN = distribution_of(TEXT)


def test_chances_follow_what_came():
    lookup = PromptLookup(4)
    [before] = lookup.guess(AGAIN, [4])
    assert before.tokens == [3, 4, 5, 6]
    assert len(set(before.probabilities)) == 1  # nothing is known yet
    for _ in range(40):
        lookup.learn([[3, 4, 9]])
    [after] = lookup.guess(AGAIN, [4])
    assert after.probabilities[0] > 0.75
    assert after.probabilities[1] > 0.9
    assert after.probabilities[2] < before.probabilities[2]
    assert after.probabilities[2] < after.probabilities[3] < before.probabilities[3]  # only shorter matches speak of it


def test_guesses_keep_to_limits_and_ends_and_rows():
    lookup = PromptLookup(4)
    sources = [[5, 6, 7], [5, 8, 9]]
    both = distribution_of([5], [5], sources=sources)
    assert [guess.tokens for guess in lookup.guess(both, [4, 1])] == [[6, 7, 5], [8]]
    ending = distribution_of([5], [5], sources=sources, stops=[6, 9])
    assert [guess.tokens for guess in lookup.guess(ending, [4, 4])] == [[6], [8, 9]]
    assert [guess.tokens for guess in lookup.guess(Sampler(both.rows[1:], VOCAB), [4])] == [[8, 9, 5]]


def test_a_guess_and_a_draft_share_what_they_agree_on():
    tree = CandidateTree(0)
    tree.add_chain([3, 4], [0.5, 0.8])
    assert [math.exp(v) for v in tree.log_probs] == pytest.approx([1.0, 0.5, 0.4])
    assert [tree.off_guess(i) for i in range(3)] == pytest.approx([0.5, 0.1, 0.4])
    tree.numbers[0] = 0
    tree.add_children(0, Children([3, 7], [math.log(0.6), math.log(0.3)]))
    # The guess is right by half, and otherwise the draft's probabilities hold; the guess after it keeps its own.
    assert [math.exp(v) for v in tree.log_probs] == pytest.approx([1.0, 0.8, 0.64, 0.15])
    assert tree.tokens == [0, 3, 4, 7]
    cut, second = (tree.log_probs[tree.ranked(nodes)[-1]] for nodes in (9, 2))
    assert tree.frontier(1, 5, cut, 0.0, frozenset()) == [1, 3]  # 0.8 x 0.2 = 0.16 before 0.15
    assert tree.frontier(1, 5, second, 0.0, frozenset()) == [1]  # 3 is not among the two best
    assert tree.frontier(1, 5, cut, 0.2, frozenset()) == [1]  # the best one stays whatever it is worth
    assert tree.frontier(1, 5, cut, 0.0, frozenset({3})) == [3]  # nothing follows the end of the text
    assert tree.frontier(2, 5, cut, 0.0, frozenset()) == []  # below a candidate that the draft has not scored


def rounds_of(prompt, tokens):
    """Rounds of a target that counts modulo 6, with a draft that does so, too; per round, forwards of the draft.

    At first a level takes what 0.2 tokens are worth, and a node what 0.01 are."""
    table, now = counting(VOCAB, 6, 9.0), [0.0]
    draft = ClockedRunner(table, now, lambda rows, nodes: 0.002)
    target = ClockedRunner(table, now, lambda rows, nodes: 0.0094 + 0.0001 * nodes)
    costs = linear_costs(0.0095, node=0.0001, level=0.002)
    learnt = replace(NOTHING, costs=costs, timed=True, reach=(1.0,))
    drafter = best_first(
        draft, GumbelExpander(3), nodes=9, width=2, depth=4, budgets=always(Controller(learnt=learnt)),
        lookup=PromptLookup(9), clock=lambda: now[0],
    )  # fmt: skip
    engine = Decoder(target, drafter, Greedy())
    request = Request(prompt=prompt, limits=Limits(max_new_tokens=tokens))
    forwards, out = [0], []
    for [piece] in engine.stream([request], Sampling(temperature=0.0)):
        forwards.append(draft.forwards)
        out += piece.tokens
    assert out == [(prompt[-1] + 1 + i) % 6 for i in range(tokens)]
    return [after - before for before, after in pairwise(forwards)], engine.stats[0]


def test_where_a_guess_is_sure_nothing_is_drafted_and_without_one_the_draft_is_asked():
    drafted, stats = rounds_of([0, 1, 2, 3, 4, 5, 0], tokens=90)
    assert len(drafted) > 4
    assert drafted[4] > 0  # at first a guess of one token is not trusted
    assert not any(drafted[5:])
    assert stats.block_efficiency > 5
    drafted, _ = rounds_of([7, 0], tokens=8)
    first = 1 + constants.PROBE_SKIP + constants.PROBE_ROUNDS  # the first one reads the prompt
    assert not any(drafted[:first])
    assert drafted[first] > 1  # nothing stood before


def test_what_is_known_of_shorter_matches_stands_for_longer_ones():
    """A few lucky tokens do not pass for certainty."""
    lookup = PromptLookup(4)
    lookup.guess(AGAIN, [4])
    lookup.learn([[3, 4, 5, 6]])  # from two tokens that agree on; of one nothing was seen
    [lucky] = lookup.guess(AGAIN, [4])
    assert min(lucky.probabilities) > 0.25
    assert max(lucky.probabilities) < 0.8
    lookup = PromptLookup(4)
    for _ in range(40):
        lookup.guess(AGAIN, [4])
        lookup.learn([[9]])
    [unlucky] = lookup.guess(AGAIN, [4])
    assert max(unlucky.probabilities) < 0.25


def test_what_lookup_meets_in_a_trial_is_forgotten():
    controllers = Controllers()
    lookup = controllers.lookup
    lookup.guess(AGAIN, [4])
    lookup.learn([[3, 9]])
    before = list(lookup.hits), list(lookup.guesses)
    with controllers.trial():
        lookup.learn([[3, 4, 5, 6]])
        assert (lookup.hits, lookup.guesses) != before  # control
    assert (lookup.hits, lookup.guesses) == before
