"""``draftwood tune`` on a tiny pair, and what the other commands make of it."""

import json
from dataclasses import asdict

import pytest

from draftwood.api import load
from draftwood.cli.comparison import NOTHING
from draftwood.core.settings import LoadOptions, Method
from draftwood.tune import compare
from tests.cli.jobs import succeeded

QUICK = ["--minutes", "0.001", "--max-new-tokens", "24"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of this module's own."""
    folder = tmp_path_factory.mktemp("tuned")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTWOOD_CACHE", str(folder))
        yield folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text('{"prompt": "the fox ran"}\n{"prompt": "a dog and a hen"}\n')
    return path


def tuned(cache):
    """The files with chosen methods; those of sessions that have ended hold what their texts taught."""
    return [path for path in (cache / "known").glob("*.json") if '"choices"' in path.read_text()]


def forget(cache):
    for path in cache.rglob("*.json"):
        path.unlink()


def test_from_end_to_end(run, pair, texts, cache):
    result = succeeded(run("tune", *pair, "--input", texts, *QUICK, "--temperature", "0", "--temperature", "1"))
    [path] = tuned(cache)
    assert str(path) in result.stdout
    assert result.stdout.startswith("temperature  method ")
    for word in ("ar", "lookup", "adaptive"):
        assert f"{word} " in result.stdout
    assert result.stdout.count("<- choice") == 2
    assert result.stdout.count("(nothing was measured before).") == 2

    found = json.loads(path.read_text())
    assert [c["temperature"] for c in found["choices"]] == [0.0, 1.0]
    for choice in found["choices"]:
        checks = [c for c in found["checks"] if c["temperature"] == choice["temperature"]]
        speeds = {c["method"]["method"]: c["measured"]["tokens_per_second"] for c in checks}
        assert speeds.keys() == {"ar", "lookup", "adaptive"}
        name = choice["method"]["method"]  # plain decoding, unless another method is faster by more than the spread
        assert name == "ar" or speeds[name] > speeds["ar"]
        assert all(1 <= c["measured"]["tokens_per_round"] <= 13 for c in checks)
        assert len({c["texts"] for c in checks}) == 1

    result = json.loads(run("generate", "the fox", *pair, "--temperature", "0.8", "--max-new-tokens", "8", "--json").stdout)
    [chosen] = [c["method"] for c in found["choices"] if c["temperature"] == 1.0]
    assert result["method"] | {"verifier": chosen["verifier"]} == chosen  # the nearest temperature's
    assert result["method"]["verifier"] != "auto"
    [info] = json.loads(run("info", "--json").stdout)["profiles"]
    assert info["applies"]
    assert info["choices"] == found["choices"]
    assert "applies: True" in run("info").stdout


def test_the_measured_methods_know_what_the_pair_has_learnt(models):
    loaded = load(models / "target", models / "draft", options=LoadOptions(backend="torch"))
    method = loaded.method(Method(method="adaptive"), temperature=0.0)
    assert loaded.learnt[f"{method.method}, temperature 0"].by_rows[1].timed
    measured = compare.ids_decoder(loaded, method, 0.0).pipeline
    drafter, own = measured.drafter, loaded.decoder(method, temperature=0.0).pipeline.drafter
    assert (drafter.lookup, drafter.grower.expander.model) == (own.lookup, own.grower.expander.model)
    assert drafter._budgets(1) is own._budgets(1)
    assert (measured.tokenizer, measured.verifier.name) == (None, "greedy")


def test_the_choice_is_used_by_file_too(run, pair, texts, cache):
    forget(cache)
    mine = texts.with_name("mine.json")
    result = succeeded(run("tune", *pair, "--input", texts, *QUICK, "--temperature", "1", "--out", mine))
    assert f"--profile {mine}" in result.stdout
    assert not tuned(cache)
    # Written over, so that the outcome is known whatever was fastest.
    document = json.loads(mine.read_text())
    document["choices"] = [{"temperature": 1.0, "method": {"method": "rsd-s", "shape": "2x2", "verifier": "traversal"}}]
    mine.write_text(json.dumps(document))
    wanted = asdict(Method(method="rsd-s", shape="2x2", verifier="traversal"))
    options = [*pair, "--max-new-tokens", "8", "--seed", "1"]
    with_it = json.loads(run("generate", "the fox", *options, "--json", "--profile", mine).stdout)
    assert with_it["method"] == wanted
    lines = run("generate", "--input", texts, *options, "--profile", mine).stdout.splitlines()
    assert [json.loads(line)["method"] for line in lines] == [wanted, wanted]
    checked = run("check", *pair, "--profile", mine, "--samples", "40", "--new-tokens", "16", "--json")
    assert json.loads(checked.stdout)["method"] == "rsd-s + traversal"
    # Where no draft pays, plain decoding is not compared with itself.
    document["choices"] = [{"temperature": 1.0, "method": {"method": "ar"}}]
    mine.write_text(json.dumps(document))
    compared = [run("generate", "the fox", *options, "--profile", mine, "--compare", *more) for more in ([], ["--json"])]
    assert NOTHING in " ".join(compared[0].stderr.split())
    assert json.loads(compared[1].stdout)["compare"] is None


def test_a_run_that_is_stopped_leaves_what_there_was(run, pair, texts, cache, monkeypatch):
    forget(cache)
    mine, calls = texts.with_name("mine.json"), []
    mine.write_text("older")

    def stopped(seconds):
        calls.append(seconds)
        if len(calls) > 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(compare, "sleep", stopped)
    result = run("tune", *pair, "--input", texts, *QUICK, "--out", mine)
    assert result.exit_code == 130
    assert "Stopped" in result.stderr
    assert mine.read_text() == "older"
    assert sorted(p.name for p in mine.parent.iterdir()) == ["mine.json", "texts.jsonl"]
    assert not tuned(cache)


def test_info_says_why_a_profile_does_not_apply(run, pair, texts, cache):
    forget(cache)
    folder = cache / "known"
    folder.mkdir(exist_ok=True)
    (folder / "broken.json").write_text("{")
    succeeded(run("tune", *pair[:2], "--input", texts, *QUICK, "--temperature", "1"))
    [path] = tuned(cache)
    document = json.loads(path.read_text())
    assert {c["method"]["method"] for c in document["checks"]} == {"ar", "lookup"}, "of a target without a draft model"
    document["profile_key"]["machine"]["cpu"] = "another"
    path.write_text(json.dumps(document))
    text = run("info").stdout
    assert "reason: there cpu is 'another'" in text
    assert "broken.json is not a file that this version writes" in text
