"""The texts and the costs of the simulator's scenarios."""

import math
from functools import cache

from tests.adaptive.simulator import World, text


def by_turns(one, other):
    """The one for a tenth of the text, the other for the next, and so on."""
    return lambda place: one if (place * 5) % 1 < 0.5 else other


TEXTS = {
    "useless": lambda: text(0, lambda _: 0.05),
    "poor": lambda: text(0, lambda _: 0.2),
    "medium": lambda: text(0, lambda _: 0.5),
    "good": lambda: text(0, lambda _: 0.8),
    "alternating": lambda: text(0, by_turns(0.8, 0.05)),
    "changing": lambda: text(0, by_turns(0.9, 0.4)),
    "late": lambda: text(0, lambda place: 0.05 if place < 0.3 else 0.85),
    "boasting": lambda: text(0, lambda _: 0.7, doubt=2.0),
    "modest": lambda: text(0, lambda _: 0.35, doubt=-2.0),
    "repeating": lambda: text(0, lambda _: 0.4, guessed=lambda _: True),
    "partly repeating": lambda: text(0, lambda _: 0.5, guessed=lambda place: (place * 5) % 1 < 0.5),
}
WORLDS = {
    "usual": World(),
    "cheap": World(level=0.8, tree=0.5, node=0.05, frontier_node=0.02),
    "dear": World(level=6.0, tree=3.0),
    "bound": World(node=0.8, tree=1.0),
    "wide": World(frontier_node=1.0),
    "blocks": World(block=(8, 4.0)),
    "first": World(first=50.0),
    "change": World(change=1.0),
    "dear changes": World(change=3.0),
    "block": World(level=0.3, opening=3.0),
    "noisy": World(noise=0.3, outliers=0.02),
    "drifting": World(slow=lambda place: 1.0 + 0.5 * math.sin(12.0 * place)),
    "sudden": World(slow=lambda place: 1.0 if place < 0.5 else 2.5),
    "neighbour": World(slow=lambda place: 3.0 if (place * 6) % 1 > 0.7 else 1.0),
    "draft slow": World(slow_draft=lambda place: 4.0 if 0.3 < place < 0.6 else 1.0),
}


@cache
def written(name):
    """The text of this name."""
    return TEXTS[name]()
