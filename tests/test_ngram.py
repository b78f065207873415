"""Trees as flat tensors; prompt lookup, in the text and in what an encoder reads."""

from __future__ import annotations

import torch

from draftwood.core.counter_rng import CounterRng
from draftwood.core.draws import Draw
from draftwood.core.limits import Limits
from draftwood.core.scores import Scores
from draftwood.core.tree import TreeBuilder
from draftwood.draft.ngram_index import ngram
from draftwood.engine.decode import Decoder
from draftwood.engine.requests import Request
from draftwood.runners.protocols import ReadsAtOnce
from draftwood.sampling.sampler import Sampler
from draftwood.sampling.settings import Sampling
from draftwood.verify.coupled import Greedy
from tests.helpers import ancestors_of, sampler_of
from tests.tables import TableRunner

VOCAB = 12


def drafted(drafter, texts, limits, sources=()):
    return drafted_by(drafter, sampler_of(Sampling(), texts, VOCAB, sources=sources), limits)


def drafted_by(drafter, sampler, limits):
    root = torch.tensor([row.tokens[-1] for row in sampler.rows])
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


def test_rows_that_stay_keep_their_sources():
    drafter = ngram(2)
    both = sampler_of(Sampling(), [[0], [0]], VOCAB, sources=[[0, 5, 6], [0, 7, 8]])
    assert drafted_by(drafter, both, [2, 2]) == [[5, 6], [7, 8]]
    assert drafted_by(drafter, Sampler(both.rows[1:], VOCAB), [2]) == [[7, 8]]


class Copying(ReadsAtOnce):
    """A target that reads a source, and writes it down."""

    reads_source = True
    pads = True

    def __init__(self):
        self.inner = TableRunner(torch.zeros(VOCAB))
        self.vocab_size, self.max_length, self.device, self.forward_seconds = VOCAB, None, self.inner.device, 0.0

    def clear(self):
        self.rows = []

    def set_rows(self, rows):
        self.rows = rows

    def extend(self, tokens, depths, ancestors):
        scores = torch.zeros(*tokens.shape, VOCAB)
        for number, row in enumerate(self.rows):
            for node, depth in enumerate(depths[number].tolist()):
                scores[number, node, row.source[min(len(row.tokens) - 1 + depth, len(row.source) - 1)]] = 9.0
        return Scores(scores)

    def commit(self, nodes, hidden=None):
        pass


def test_a_target_that_copies_its_source_is_foreseen():
    sources = [[4, 5, 6, 7, 8, 9, 10, 11], [9, 8, 7, 6, 5, 4, 3, 2]]
    requests = [Request(prompt=[0], source=s, limits=Limits(max_new_tokens=8)) for s in sources]
    for length, rounds in ((1, 5), (3, 3), (8, 2)):  # the first token is the target's own
        results = Decoder(Copying(), ngram(length), Greedy()).generate(requests, Sampling(temperature=0.0))
        assert [r.token_ids for r in results] == sources
        assert [r.stats.rounds for r in results] == [rounds] * 2


def tree():
    """a -> (b -> d, c -> (e, f)), the place of f empty."""
    builder = TreeBuilder(torch.tensor([0]), 6)
    builder.add(torch.tensor([[1, 2]]), torch.tensor([[0, 0]]))
    builder.add(torch.tensor([[3, 4, -1]]), torch.tensor([[0, 1, 1]]))
    return builder.build(branching=2, draw=Draw.POINT_MASS, draft_log_probs=None)


def test_children_stand_in_draw_order_and_empty_places_have_none():
    assert tree().children == [[[1, 2], [3], [4], [], [], []]]


def test_ancestors_of_the_builder_are_those_of_the_parents():
    made = tree()
    assert torch.equal(made.ancestors, ancestors_of(made.parents, made.max_depth))
    assert made.ancestors[0, 4].nonzero().flatten().tolist() == [0, 2, 4]
    assert not torch.equal(made.ancestors, ancestors_of(made.parents, 1))


def test_prefixes_follow_the_path_and_skip_empty_places():
    assert tree().prefixes() == [[[], [1], [2], [1, 3], [2, 4], None]]


def test_the_text_picture():
    assert tree().render(decode="abcdef".__getitem__) == "a\n├─ b\n│  └─ d\n└─ c\n   └─ e"
