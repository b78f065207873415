"""The report says what the raw numbers say, and the check of greedy texts sees what it should see."""

from __future__ import annotations

import copy
import json
from statistics import median
from types import SimpleNamespace

import pytest
import torch

from benchmarks.greedy import compare, first_difference, top_two_gap
from benchmarks.report import best, markdown
from tests.benchmarks.tiny import PROMPTS


def section(text: str, temperature: str, title: str) -> list[list[str]]:
    """Cells of the table behind a heading."""
    part = text.split(f"## Temperature {temperature}\n")[1].split(f"### {title}")[1]
    lines = part[part.index("|") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def raw(document: dict, setting: str, temperature: float) -> dict:
    return next(r for r in document["results"] if (r["setting"], r["temperature"]) == (setting, temperature))


def rates(result: dict) -> list[float]:
    return [sum(r["new_tokens"]) / sum(r["seconds"]) for r in result["repeats"]]


def test_the_table_of_all_settings_matches_the_raw_numbers(measured: SimpleNamespace) -> None:
    document = json.loads((measured.writer.config.output / "bench.json").read_text())
    header, *rows = section(markdown(document), "1", "All settings")
    assert len(rows) == 6
    ar = rates(raw(document, "ar", 1.0))
    for cells in rows:
        line = dict(zip(header, cells, strict=True))
        result = raw(document, line["setting"], 1.0)
        repeats, speeds = result["repeats"], rates(result)
        tokens, forwards = (sum(sum(r[name]) for r in repeats) for name in ("new_tokens", "forwards"))
        assert line["drafted/round"] == f"{sum(sum(r['drafted']) for r in repeats) / forwards:.2f}"
        assert line["block efficiency"].split()[0] == f"{tokens / forwards:.3f}"
        assert line["tokens/s"] == f"{median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})"
        over = [a / b for a, b in zip(speeds, ar, strict=True)]
        assert line["÷ ar"] == f"{median(over):.2f} ({min(over):.2f} to {max(over):.2f})"
        whole = sum(sum(r["seconds"]) for r in repeats)
        inside = sum(sum(r["target_seconds"]) + sum(r["draft_seconds"]) for r in repeats)
        # The report adds other parts of the same seconds, so the last digit may be rounded another way.
        assert abs(float(line["outside %"]) - 100 * (whole - inside) / whole) < 0.051
        assert abs(float(line["outside ms/round"]) - 1000 * (whole - inside) / forwards) < 0.00051


def test_the_best_shape_of_each_method_stands_in_the_protocols_table(measured: SimpleNamespace) -> None:
    document = measured.document
    two = [raw(document, name, 1.0) for name in ("rsd-s 2x2", "rsd-s 3x2")]
    efficient = max(two, key=lambda r: r["block_efficiency"])
    cell = dict(section(markdown(document), "1", "Fixed draft length")[1:])["rsd-s"]
    assert cell.startswith(f"{efficient['block_efficiency']:.3f}")
    assert cell.endswith(f"({efficient['shape']})")
    rivals = [{"method": "iid", "x": 1.0}, {"method": "iid", "x": 2.0}, {"method": "chain", "x": 0.5}]
    rivals.append({"method": "gone+traversal", "x": 3.0})  # stored results of a method that is gone
    assert [r["x"] for r in best(rivals, lambda r: r["x"]).values()] == [0.5, 2.0]


def test_ratios_over_transformers_say_how_much_faster_the_row_is(measured: SimpleNamespace) -> None:
    document = measured.document
    header, *rows = section(markdown(document), "0", "Against transformers")
    cells = {row[0]: dict(zip(header, row, strict=True))["÷ generate"] for row in rows}
    pairs = zip(rates(raw(document, "chain 2", 0.0)), rates(raw(document, "generate", 0.0)), strict=True)
    assert cells["chain 2"].split()[0] == f"{median([a / b for a, b in pairs]):.2f}"
    assert cells["generate"] == "1.00 (1.00 to 1.00)"


def test_the_file_of_raw_numbers_says_where_they_come_from(measured: SimpleNamespace) -> None:
    document = json.loads((measured.writer.config.output / "bench.json").read_text())
    assert document["partial"] is False
    assert set(document["versions"]) == {"draftwood", "python", "torch", "transformers"}
    assert document["machine"]["torch_threads"] == 1
    assert document["models"]["draft"]["dtype"] == "float32"
    assert [r["first_seed"] for r in document["results"][0]["repeats"]] == [5, 1_000_008]


def test_a_round_behind_a_context_stands_beside_plain_decodings(measured: SimpleNamespace) -> None:
    document = json.loads(json.dumps(measured.document))
    document["config"]["contexts"] = "3,4"
    cells = {row[0]: row[1] for row in section(markdown(document), "0", "By context")[1:]}

    def taken(name: str) -> float:  # of the prompts 0 and 2, which are the source's
        repeats = raw(document, name, 0.0)["repeats"]
        seconds, forwards = (sum(r[key][0] + r[key][2] for r in repeats) for key in ("seconds", "forwards"))
        return 1e3 * seconds / forwards

    for name, plain in (("chain 2", "ar"), ("assisted 2", "generate"), ("ar", "ar")):
        assert cells[name] == f"{taken(name):.2f} ({taken(name) / taken(plain):.2f})"


def test_all_settings_write_what_generate_writes(measured: SimpleNamespace) -> None:
    checks = measured.document["greedy"]
    assert {c["setting"] for c in checks} == {"ar", "chain 2", "rsd-s 2x2", "rsd-s 3x2", "generate", "assisted 2"}
    assert all(c["compared"] == 3 and c["differing"] == [] for c in checks)
    log = copy.deepcopy(measured.log)
    keep = [i for i, (s, _) in enumerate(log.cases) if s.method != "generate"]
    log.cases, log.samples = [log.cases[i] for i in keep], [log.samples[i] for i in keep]
    assert compare(measured.bench.pair.target.model, PROMPTS, log) == []  # nothing to compare with
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


@pytest.mark.parametrize("repeat", [0, 1])
def test_a_planted_difference_is_found_with_its_gap(measured: SimpleNamespace, repeat: int) -> None:
    log, model = copy.deepcopy(measured.log), measured.bench.pair.target.model
    index = next(i for i, (s, t) in enumerate(log.cases) if s.name == "chain 2" and t == 0)
    [tokens] = log.samples[index][repeat][2].tokens
    right = list(tokens)
    tokens[4] = (tokens[4] + 1) % 96
    check = next(c for c in compare(model, PROMPTS, log) if c["setting"] == "chain 2")
    assert [(d["prompt"], d["at"]) for d in check["differing"]] == [(2, 4)]
    with torch.inference_mode():
        scores = model(torch.tensor([[*PROMPTS[2].tokens, *right[:4]]])).logits[0, -1].sort(descending=True).values
    assert check["differing"][0]["gap"] == pytest.approx(float(scores[0] - scores[1]), abs=1e-5)
    assert top_two_gap(model, [1, 2]) > 0
