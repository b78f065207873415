"""Tiny published drafters with fixed weights, and the logits that they must give.

``published.json`` was written with the package speculators 0.9.0, by the models of its configurations with :func:`weights`:
logits [anchor, depth, draft token] after the root, and after paths of the text itself.
"""

import json
import math
import zlib
from pathlib import Path

import torch

FROZEN = Path(__file__).with_name("published.json")
VOCAB, DRAFT_VOCAB, WIDTH, DEPTH, LENGTH, BLOCK = 13, 7, 8, 6, 9, 3
LAYERS = [1, 2, 4]
ANCHORS = [2, 5]  # positions of roots


def filled(name, shape):
    """Numbers that depend on a name only."""
    count, start = math.prod(shape), zlib.crc32(name.encode()) % 1000
    values = torch.sin((torch.arange(count, dtype=torch.float64) + start) * 1.7) * 0.5
    return (values + 1 if "norm" in name else values).reshape(list(shape)).float()


def weights(shapes):
    """All tensors of a checkpoint: every other token can be drafted, if not all can."""
    found = {name: filled(name, shape) for name, shape in shapes.items() if name not in ("d2t", "t2d")}
    if "d2t" in shapes:
        found["d2t"] = torch.arange(DRAFT_VOCAB)
        found["t2d"] = torch.arange(VOCAB) % 2 == 0
    return found


TOKENS = [(5 * i + 3) % VOCAB for i in range(LENGTH)]
HIDDEN = filled("hidden", (LENGTH, len(LAYERS) * WIDTH))


def frozen():
    return json.loads(FROZEN.read_text(encoding="utf-8"))
