"""``draftwood trace``: rounds as lines, as a file, and explained."""

import re
from dataclasses import replace

from draftwood.cli.trace import traces_text
from draftwood.trace.files import read_traces
from tests.cli.jobs import succeeded
from tests.trace.runs import run as recorded

SHORT = ["--max-new-tokens", "8", "--seed", "1", "--temperature", "1", "--method", "rsd-c", "--shape", "2-2"]


def test_rounds_as_lines(run, pair):
    found = succeeded(run("trace", "the fox", *pair, *SHORT))
    assert found.stdout.startswith("the fox -> ")
    assert "\nround 1: rsd-c 2-2, recursive verifier, temperature 1\n" in found.stdout
    assert re.search(r"^  [├└]─[✓✗·] 1 .* +p [\d.]+  q [\d.]+$", found.stdout, re.MULTILINE)
    assert re.search(r"^  node 1 .*: q0 [\d.]+, p0 [\d.]+, chance [\d.]+, u [\d.]+  [✓✗]", found.stdout, re.MULTILINE)


def test_a_file_is_written_and_shown_again(run, pair, tmp_path):
    path = tmp_path / "trace.json"
    made = succeeded(run("trace", "the fox", *pair, *SHORT, "--json", path, "--compare", "--rounds", "2", "--tokens", "3"))
    assert made.stdout == ""
    traces = read_traces(path)
    assert [trace.method for trace in traces] == ["rsd-c", "ar"]
    assert all(len(trace.rounds) <= 2 for trace in traces)
    assert traces[1].dropped == 6
    shown = run("trace", "--input", path)
    assert shown.stdout == traces_text(traces) + "\n"
    assert "\nplain: 2 forwards" in shown.stdout
    explained = run("trace", "--input", path, "--explain")
    assert "Accepted by depth: " in explained.stdout
    assert "round 1:" not in explained.stdout


def test_a_translation(run, translation, tmp_path):
    german = ["--target", translation / "target", "--draft", translation / "block", "--dtype", "float32"]
    succeeded(run("trace", "--translate", "ein Hund", *german, "--beta", "2", "--json", tmp_path / "trace.json"))
    [trace] = read_traces(tmp_path / "trace.json")
    assert (trace.verifier, trace.beta) == ("tolerance", 2)
    assert trace.source
    shown = run("trace", "--input", tmp_path / "trace.json")
    assert "ein Hund -> " in shown.stdout
    assert "after node 0 the target chooses" in shown.stdout


def test_the_page(run, pair, tmp_path):
    page = tmp_path / "page.html"
    made = succeeded(run("trace", "the fox", *pair, *SHORT, "--rounds", "2", "--compare", "--html", page))
    assert made.stdout == ""
    assert page.read_text().startswith("<!doctype html>")


def test_texts_cannot_steer_a_terminal():
    [trace] = recorded("rsd-c")
    trace.texts.update({token: "\x1b\u202e" for token in range(5)})
    shown = traces_text([replace(trace, prompt_text="\x1b[31m\u202eb")])
    assert "\x1b" not in shown
    assert "\u202e" not in shown
