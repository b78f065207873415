"""Every kind of rotary embedding scores a tree as its paths, also where the frequencies depend on the length of the text."""

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from draftwood.runners.context import context
from tests.runners.test_logit_identity import Walk, check_the_last_tokens
from tests.runners.zoo import BY_ENGINE, plain_scores, runner_of, tiny

_SHORT = 32  # tokens of the short range, or of the context
_PAIRS = 4  # frequencies of a head
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": _SHORT},
    "longrope": {
        "factor": 4.0, "short_factor": [1.0] * _PAIRS, "long_factor": [2.0] * _PAIRS,
        "original_max_position_embeddings": _SHORT,
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": _SHORT,
    },
    "proportional": {"partial_rotary_factor": 0.5},
}  # fmt: skip
BY_LENGTH = ["dynamic", "longrope"]  # the frequencies of all tokens depend on the last position


def rope(kind):
    return {"rope_type": kind, "rope_theta": 1e4, **ROPES[kind]}


def rotary(kind):
    longest = _SHORT if kind == "dynamic" else 2 * _SHORT
    settings = {"num_hidden_layers": 1, "max_position_embeddings": longest, "rope_parameters": rope(kind)}
    return tiny("llama", dtype=torch.float32, **settings)


def by_layer(kind):
    """A model whose layers have rotary embeddings of their own, by their type of attention."""
    ropes = {"sliding_attention": rope("default"), "full_attention": rope(kind)}
    return tiny("gemma3_text", dtype=torch.float32, max_position_embeddings=2 * _SHORT, rope_parameters=ropes)


def test_every_kind_that_transformers_knows_is_tried():
    assert set(ROPES) == {"default", *ROPE_INIT_FUNCTIONS}


@BY_ENGINE
@pytest.mark.parametrize("kind", ROPES)
def test_a_tree_is_scored_as_its_paths(kind, engine):
    model = rotary(kind)
    rows = Walk(runner_of(engine, model), lambda text: plain_scores(model, text), [5, 14, 0])
    assert max(rows.round(), rows.round(unscored=2), rows.round()) < 1e-4


@BY_ENGINE
@pytest.mark.parametrize("kind", BY_LENGTH)
def test_nodes_beyond_the_change_leave_other_scores_alone(kind, engine):
    check_the_last_tokens(runner_of(engine, rotary(kind)), rotary(kind))


def test_a_change_in_the_layers_of_one_type_ends_the_context_too():
    model = by_layer("longrope")
    assert context(model.config) == (_SHORT, f"its rotary embedding changes after {_SHORT} tokens")
    check_the_last_tokens(runner_of("torch", model), by_layer("longrope"))
