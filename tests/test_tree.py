"""Trees as flat tensors."""

from __future__ import annotations

import torch

from draftwood.core.draws import Draw
from draftwood.core.tree import TreeBuilder
from tests.helpers import ancestors_of


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
