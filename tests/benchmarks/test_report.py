"""The report says what the raw numbers say."""

from statistics import median

from benchmarks.report import best, markdown


def section(text, temperature, title):
    """Cells of the table behind a heading."""
    part = text.split(f"## Temperature {temperature}\n")[1].split(f"### {title}")[1]
    lines = part[part.index("|") :].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def raw(document, setting, temperature):
    return next(r for r in document["results"] if (r["setting"], r["temperature"]) == (setting, temperature))


def rates(result):
    return [sum(r["new_tokens"]) / sum(r["seconds"]) for r in result["repeats"]]


def test_the_table_of_all_settings_matches_the_raw_numbers(measured):
    document = measured.document
    header, *rows = section(measured.report, "1", "All settings")
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


def test_the_best_of_each_method_is_shown():
    rivals = [{"method": "iid", "x": 1.0}, {"method": "iid", "x": 2.0}, {"method": "chain", "x": 0.5}]
    rivals.append({"method": "gone+traversal", "x": 3.0})  # stored results of a method that is gone
    assert [r["x"] for r in best(rivals, lambda r: r["x"]).values()] == [0.5, 2.0]


def test_the_file_of_raw_numbers_says_where_they_come_from(measured):
    document = measured.document
    assert markdown(document) == measured.report
    assert document["partial"] is False
    assert set(document["versions"]) == {"draftwood", "python", "torch", "transformers"}
    assert document["machine"]["torch_threads"] == 1
    assert document["models"]["draft"]["dtype"] == "float32"
    assert [r["first_seed"] for r in document["results"][0]["repeats"]] == [5, 1_000_008]
    checks = document["greedy"]
    assert {c["setting"] for c in checks} == {"ar", "chain 2", "rsd-s 2x2", "rsd-s 3x2", "generate", "assisted 2"}
    assert all(c["compared"] == 3 and c["differing"] == [] for c in checks)
    assert "Not checked: `generate` was not measured at temperature 0." in markdown(document | {"greedy": []})
