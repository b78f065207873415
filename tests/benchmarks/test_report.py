"""The report says what the raw numbers say."""

from __future__ import annotations

import json
from statistics import median
from types import SimpleNamespace

from benchmarks.report import best, markdown, table


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
    assert [row[0] for row in rows] == ["ar", "chain 2", "rsd-s 2x2", "rsd-s 3x2", "generate", "assisted 2"]
    ar = rates(raw(document, "ar", 1.0))
    for cells in rows:
        line = dict(zip(header, cells, strict=True))
        result = raw(document, line["setting"], 1.0)
        repeats, speeds = result["repeats"], rates(result)
        tokens, forwards = (sum(sum(r[name]) for r in repeats) for name in ("new_tokens", "forwards"))
        assert line["nodes"] == str(result["nodes"])
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
        assert abs(sum(float(line[f"{s} %"]) for s in ("draft", "target", "verify", "other")) - 100) < 0.3


def test_the_best_shape_of_each_method_is_marked_and_stands_in_the_protocols_table(measured: SimpleNamespace) -> None:
    document = measured.document
    two = [raw(document, name, 1.0) for name in ("rsd-s 2x2", "rsd-s 3x2")]
    efficient = max(two, key=lambda r: r["block_efficiency"])
    fast = max(two, key=lambda r: r["tokens_per_second"]["median"])
    text = markdown(document)
    header, *rows = section(text, "1", "All settings")
    marks = {row[0]: row[header.index("best shape at")] for row in rows}
    assert marks[efficient["setting"]].startswith("length 2 (E")
    assert "S" in marks[fast["setting"]]
    assert marks["ar"] == ""
    _, *lengths = section(text, "1", "Fixed draft length")
    cell = dict(lengths)["rsd-s"]
    assert cell.startswith(f"{efficient['block_efficiency']:.3f}")
    assert cell.endswith(f"({efficient['shape']})")


def test_ratios_over_transformers_say_how_much_faster_the_row_is(measured: SimpleNamespace) -> None:
    document = measured.document
    header, *rows = section(markdown(document), "0", "Against transformers")
    assert header[-2:] == ["÷ generate", "÷ assisted 2"]
    line = next(row for row in rows if row[0] == "chain 2")
    pairs = zip(rates(raw(document, "chain 2", 0.0)), rates(raw(document, "generate", 0.0)), strict=True)
    assert line[-2].split()[0] == f"{median([a / b for a, b in pairs]):.2f}"
    own = next(row for row in rows if row[0] == "generate")
    assert own[-2] == "1.00 (1.00 to 1.00)"


def test_sources_and_the_greedy_check_are_reported(measured: SimpleNamespace) -> None:
    text = markdown(measured.document)
    assert section(text, "1", "By source")[0] == ["fastest setting", "a", "b"]
    assert "| chain 2 | 3 | 0 |  |" in text
    assert "Arithmetic in float32" in text


def test_a_slower_setting_is_not_best() -> None:
    rivals = [{"method": "iid", "x": 1.0}, {"method": "iid", "x": 2.0}, {"method": "chain", "x": 0.5}]
    assert [r["x"] for r in best(rivals, lambda r: r["x"]).values()] == [0.5, 2.0]


def test_stored_results_of_a_method_that_is_gone_are_left_out() -> None:
    rivals = [{"method": "gone+traversal", "x": 3.0}, {"method": "chain", "x": 0.5}]
    assert list(best(rivals, lambda r: r["x"])) == ["chain"]


def test_tables_are_markdown() -> None:
    assert table(["a", "b"], [["x", "1"]]).splitlines() == ["| a | b |", "| --- | ---: |", "| x | 1 |"]


def test_the_file_of_raw_numbers_says_where_they_come_from(measured: SimpleNamespace) -> None:
    document = json.loads((measured.writer.config.output / "bench.json").read_text())
    assert document["partial"] is False
    assert document["config"]["max_new_tokens"] == 6
    assert set(document["versions"]) - {"openvino"} == {"draftwood", "python", "torch", "transformers"}  # if it was imported
    assert document["machine"]["torch_threads"] == 1
    assert document["models"]["draft"]["dtype"] == "float32"
    assert [r["first_seed"] for r in document["results"][0]["repeats"]] == [5, 1_000_008]
    assert len(document["prompts"]) == 3


def test_a_round_behind_a_context_stands_beside_plain_decodings(measured: SimpleNamespace) -> None:
    document = json.loads(json.dumps(measured.document))
    assert "By context" not in markdown(document)
    document["config"]["contexts"] = "3,4"
    header, *rows = section(markdown(document), "0", "By context")
    assert header == ["fastest setting", "a", "b"]
    cells = {row[0]: row[1] for row in rows}

    def taken(name: str) -> float:  # of the prompts 0 and 2, which are the source's
        repeats = raw(document, name, 0.0)["repeats"]
        seconds, forwards = (sum(r[key][0] + r[key][2] for r in repeats) for key in ("seconds", "forwards"))
        return 1e3 * seconds / forwards

    assert cells["chain 2"] == f"{taken('chain 2'):.2f} ({taken('chain 2') / taken('ar'):.2f})"
    assert cells["assisted 2"] == f"{taken('assisted 2'):.2f} ({taken('assisted 2') / taken('generate'):.2f})"
    assert cells["ar"].endswith("(1.00)")
