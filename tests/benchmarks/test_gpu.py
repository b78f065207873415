"""``benchmarks/gpu.py``: all of it runs in a small mode on a CPU, with nothing installed but what the GPU machine has."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.cuda import correct, speed
from benchmarks.cuda.models import inflated
from benchmarks.cuda.plan import SMALL
from tests.benchmarks.tiny import made_up_sample
from tests.differences import difference

PROGRAM = Path(gpu.__file__)
MISSING = ("jaxtyping", "click", "rich", "accelerate", "beartype")
BARE = f"""import runpy, sys
sys.modules.update(dict.fromkeys({MISSING}))
runpy.run_path({str(PROGRAM)!r}, run_name="__main__")
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The document and the table of a small run without the packages in ``MISSING``, called from another folder."""
    folder = tmp_path_factory.mktemp("gpu")
    done = subprocess.run(
        [sys.executable, "-c", BARE, "--small", "--out", "found"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return json.loads((folder / "found" / "gpu.json").read_text()), done.stdout


def test_every_part_runs_on_a_machine_with_little_installed(small):
    document, shown = small
    assert list(document["parts"]) == ["correct", "speed"]
    assert not [part for part in document["parts"].values() if "error" in part]
    assert document["stand_ins"] == ["jaxtyping"]
    found = document["parts"]["correct"]
    assert found["correct"]
    assert found["complete"]
    assert found["tree_logits_difference"] < 1e-4
    assert (found["greedy_texts"], found["greedy_differing"]) == (2 * 2 * 4, 0)  # prompts, batch sizes, methods
    assert shown.rstrip().endswith(gpu.report(document).splitlines()[-1])


def test_every_system_is_measured_at_every_batch_size_it_takes(small):
    shape = small[0]["parts"]["speed"]["shapes"]["13M"]
    wanted = {(s.name, b, t) for s in speed.SETTINGS for b in (1, 2) for t in (0, 1) if b == 1 or s.method != "assisted"}
    found = {(r["setting"], r["batch"], r["temperature"]): r for r in shape["results"]}
    assert found.keys() == wanted
    for (name, _, _), result in found.items():
        assert result["tokens_per_second"]["median"] > 0
        assert result["of_bandwidth_limit"] == pytest.approx(shape["weights_once_ms"] / result["ms_per_round"])
        assert (result["split_ms_per_round"] is None) == (name == "static")
        assert result["over_generate"]["median"] > 0
        assert name != "ar" or result["tokens_per_pass"] == 1
    assert found["chain 4", 1, 0]["tokens_per_pass"] > 1
    assert [one["tokens"] for one in shape["forward_ms"]] == list(SMALL["nodes"])


def test_a_machine_without_cuda_is_told_and_so_is_a_wrong_part(capsys):
    wrong = {"--small": [], "choose from correct": ["--parts", "speeds"], "above 0": ["--seconds", "0"]}
    for message, arguments in wrong.items():
        with pytest.raises(SystemExit) as end:
            gpu.main(arguments)
        assert end.value.code == 2
        assert message in capsys.readouterr().err


def test_a_part_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(correct, "run", broken)
    monkeypatch.setattr(speed, "run", lambda plan, deadline: {"shapes": {}})
    assert gpu.main(["--small", "--out", str(tmp_path)]) == 1
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert document["parts"]["correct"]["error"] == "RuntimeError: out of luck"
    assert document["parts"]["speed"]["shapes"] == {}


def test_wrong_texts_and_failed_shapes_are_failures():
    good = {"correct": {"correct": True}}
    assert not gpu.failed({"parts": good})
    assert gpu.failed({"parts": good | {"correct": {"correct": False}}})
    assert gpu.failed({"parts": good | {"speed": {"shapes": {"8B": {"error": "no room"}}}}})


def test_a_tree_whose_nodes_read_their_siblings_is_seen(pair, monkeypatch):
    assert correct.tree_logits(pair) < 1e-4
    extend = pair.target.extend
    see_all = lambda tokens, depths, sees: extend(tokens, depths, torch.ones_like(sees).tril())  # noqa: E731
    monkeypatch.setattr(pair.target, "extend", see_all)
    assert correct.tree_logits(pair) > 1e-2


def test_an_inflated_model_costs_more_and_has_the_same_scores(pair):
    model, tokens = pair.target.model, torch.arange(40)[None]
    grown = inflated(model, 30_000_000)
    assert (len(grown.model.layers), grown.num_parameters()) == (5, pytest.approx(30_000_000, rel=0.01))

    def off():
        with torch.inference_mode():
            return difference(*(one(tokens).logits.double() for one in (model, grown)))

    assert off() < 1e-4
    with torch.no_grad():
        grown.model.layers[3].mlp.down_proj.weight[3] = 1.0  # control: it writes what is to change nothing
    assert off() > 1e-2


def test_seconds_of_a_round_are_those_of_whole_calls():
    counted, uncounted = (replace(made_up_sample(8), forwards=forwards, seconds=2.0) for forwards in (4, 0))
    awaited = replace(made_up_sample(4), forwards=2, seconds=9.0)
    assert speed._seconds_per_round([[counted]], [[awaited]]) == 0.5
    assert speed._seconds_per_round([[uncounted]], [[awaited]]) == 0.5  # two tokens a round
    assert speed._seconds_per_round([[uncounted]], []) == 0.25  # a token a round
