"""What a trace says about speed, against its rounds."""

from dataclasses import replace

import pytest

from draftwood.core.errors import ConfigError
from draftwood.trace.explain import explain
from tests.trace.runs import run


@pytest.mark.parametrize(
    ("method", "verifier"), [("rsd-s", "recursive"), ("dynamic", "traversal"), ("shared-noise", "auto")]
)
def test_an_explanation_counts_what_is_in_the_rounds(method, verifier):
    [trace] = run(method, verifier, length=60)
    text = "\n".join(explain(trace))
    assert f"{len(trace.tokens)} tokens in {len(trace.rounds)} rounds" in text
    firsts = sum(node.depth == 1 for one in trace.rounds for node in one.nodes)
    assert f"Accepted by depth: 1: {sum(bool(one.path) for one in trace.rounds)} of {firsts}" in text
    assert 6 <= len(explain(trace)) <= 12
    perfect = sum(max(node.depth for node in one.nodes) for one in trace.rounds) / len(trace.rounds)
    assert f"would bring at most {perfect + 1:.2f} tokens a round" in text


def test_plain_decoding_and_empty_traces():
    [trace] = run("ar")
    assert any("Nothing was drafted" in line for line in explain(trace))
    with pytest.raises(ConfigError, match="no rounds"):
        explain(replace(trace, rounds=[]))
