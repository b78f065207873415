"""``draftwood check`` on a tiny pair."""

import json

import pytest

from tests.cli.jobs import succeeded


@pytest.mark.parametrize("options", [(), ("--method", "rsd-s", "--verifier", "traversal", "--shape", "2x3")])
def test_a_sound_method_is_called_exact(run, pair, options):
    result = succeeded(run("check", *pair, "--prompt", "the fox", "--samples", "40", "--new-tokens", "16", *options))
    assert ": exact. 640 tokens in the target's own distribution" in result.stdout
    assert " tests, the nearest to failing is '" in result.stdout


def test_json_names_every_test_with_its_p_value(run, pair):
    size = ("--samples", "40", "--new-tokens", "16")
    result = run("check", *pair, "--prompt", "the fox", *size, "--method", "chain", "--json")
    found = json.loads(result.stdout)
    tests = {test["name"]: test for test in found["tests"]}
    assert tests["marginal"]["p_value"] == found["p_value"]
    assert {"serial, lag 8, order", "rows, next seed, noise", "accepted, depth 1", "drafted, sibling 1"} <= tests.keys()
    assert all(0 <= test["p_value"] <= 1 and 0 < test["level"] < 1e-4 for test in tests.values())


def test_json_and_temperature_0(run, pair):
    result = run("check", *pair, "--temperature", "0", "--samples", "3", "--new-tokens", "10", "--json")
    found = json.loads(result.stdout)
    assert found["exact"]
    assert found["tokens"] == 30
    assert found["method"] == "adaptive + greedy"
    assert found["p_value"] is None


@pytest.mark.parametrize("options", [(), ("--method", "rsd-s", "--verifier", "traversal", "--top-k", "3")])
def test_enumeration_tries_every_choice(run, pair, options):
    """Of a target that is its own draft: of two random models no drafted token would be accepted."""
    pair = ["--target", pair[1], "--draft", pair[1]]
    result = succeeded(run("check", *pair, "--prompt", "the fox", "--enumerate", "2", "--json", *options))
    found = json.loads(result.stdout)
    assert found["exact"]
    assert found["tokens"] == 2
    assert found["total_variation"] <= found["allowed"] < 1e-3
