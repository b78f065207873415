"""What a tree knows of its nodes, and of places without one."""

from draftwood.core.draws import Draw
from draftwood.core.tree import TreeBuilder


def test_prefixes_follow_the_path_and_skip_padding():
    """a -> (b -> d, c -> (e, f)), the place of f empty."""
    builder = TreeBuilder([0])
    builder.add([[1, 2]], [[0, 0]])
    builder.add([[3, 4, -1]], [[0, 1, 1]])
    made = builder.build(draw=Draw.POINT_MASS)
    assert made.prefixes() == [[[], [1], [2], [1, 3], [2, 4], None]]
