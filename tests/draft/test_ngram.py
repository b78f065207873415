"""Trees as flat tensors; prompt lookup, in the text and in what an encoder reads."""

import torch

from draftwood.core.draws import Draw
from draftwood.core.tree import TreeBuilder
from draftwood.draft.ngram_index import ngram
from draftwood.sampling.counter_rng import CounterRng
from draftwood.sampling.settings import Sampling
from tests.helpers import ancestors_of, sampler_of

VOCAB = 12


def drafted(drafter, texts, limits, sources=()):
    root, sampler = [text[-1] for text in texts], sampler_of(Sampling(), texts, VOCAB, sources=sources)
    tree = drafter.draft(root, sampler, CounterRng([0] * len(root)).at([0] * len(root)), limits)
    rows = zip(tree.host.tokens, tree.host.valid, strict=True)
    return [[token for token, real in zip(row[1:], valid[1:], strict=True) if real] for row, valid in rows]


def test_the_source_comes_before_the_text():
    texts, limits = [[0, 7, 8], [0, 3], [0, 9], [0, 3, 4, 5, 0, 3]], [4, 4, 4, 4]
    sources = [[7, 8, 2, 3, 4], [5, 3, 6], [1, 2], [3, 10, 11]]
    assert drafted(ngram(3), texts, limits, sources) == [[2, 3, 4], [6, 0, 3], [], [4, 5, 0]]
    assert drafted(ngram(3), texts, limits) == [[], [], [], [4, 5, 0]]  # without sources: the text alone
    assert drafted(ngram(3), texts, [0, 1, 4, 2], sources) == [[], [6], [], [4, 5]]


def test_an_ending_is_the_texts_own_and_reaches_not_into_the_source():
    # "4 0" stands at the border of source and text and inside the source, but 4 is no part of the text.
    assert drafted(ngram(2), [[0]], [3], [[4, 0, 5, 4]]) == [[5, 4]]
    assert drafted(ngram(2), [[0]], [3], [[0, 6, 4, 0, 5, 1, 0, 9, 4]]) == [[9, 4]]  # the latest "0", not the one after a 4


def tree():
    """a -> (b -> d, c -> (e, f)), the place of f empty."""
    builder = TreeBuilder([0])
    builder.add([[1, 2]], [[0, 0]])
    builder.add([[3, 4, -1]], [[0, 1, 1]])
    return builder.build(branching=2, draw=Draw.POINT_MASS)


def test_children_stand_in_draw_order_and_empty_places_have_none():
    assert tree().children == [[[1, 2], [3], [4], [], [], []]]


def test_ancestors_of_the_builder_are_those_of_the_parents():
    made = tree()
    assert torch.equal(torch.from_numpy(made.ancestors), ancestors_of(torch.from_numpy(made.parents), made.max_depth))
    assert made.ancestors[0, 4].nonzero()[0].tolist() == [0, 2, 4]
    assert not torch.equal(torch.from_numpy(made.ancestors), ancestors_of(torch.from_numpy(made.parents), 1))


def test_prefixes_follow_the_path_and_skip_empty_places():
    assert tree().prefixes() == [[[], [1], [2], [1, 3], [2, 4], None]]
