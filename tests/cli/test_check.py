"""``draftwood check`` on a tiny pair."""

from __future__ import annotations

import json

import pytest


@pytest.mark.parametrize("options", [(), ("--method", "rsd-s", "--verifier", "traversal", "--shape", "2x3")])
def test_a_sound_method_is_called_exact(run, pair, options):
    result = run("check", *pair, "--prompt", "the fox", "--samples", "40", "--new-tokens", "16", *options)
    assert result.exit_code == 0, result.output
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
    result = run("check", *pair, "--prompt", "the fox", "--enumerate", "2", *options)
    assert result.exit_code == 0, result.output
    assert ": exact. The joint distribution of the first 2 tokens after a prompt, " in result.stdout
    found = json.loads(run("check", *pair, "--prompt", "the fox", "--enumerate", "2", "--json", *options).stdout)
    assert found["exact"]
    assert found["tokens"] == 2
    assert found["total_variation"] <= found["allowed"] < 1e-3


@pytest.mark.parametrize(("options", "message"), [
    (("--samples", "2"), "say nothing: give 640 tokens or more"),
    (("--samples", "0"), "samples is 0: give 1 or more"),
    (("--enumerate", "0"), "enumerate is 0: give 1 or more"),
    (("--enumerate", "2", "--samples", "9"), "enumerate draws no samples, but samples also came"),
    (("--enumerate", "2", "--method", "chain"), "give --top-k 16 or less, or leave --enumerate out, so that check samples"),
    (("--enumerate", "2", "--method", "adaptive-drawn", "--top-k", "2"), "depend on measured seconds"),
    (("--method", "shared-noise", "--verifier", "traversal"), "verifier 'traversal' is not exact"),
])  # fmt: skip
def test_what_cannot_be_checked_is_told(run, pair, options, message):
    result = run("check", *pair, *options)
    assert result.exit_code != 0
    assert message in result.stderr
