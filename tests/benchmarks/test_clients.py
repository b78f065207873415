"""The examples of clients: divided into parts, shown in the docs, run in environments, and listed."""

import re
import sys

from benchmarks.clients import PARTS, Environment, Example, examples, markdown, measure, outcome
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


def test_every_example_names_its_versions_and_has_known_parts():
    found = examples()
    assert len(found) >= 18
    for example in found:
        assert example.packages
        assert all(re.search(r"(?:==|.@)\d", package) for package in example.packages)
        assert set(example.parts) <= set(PARTS)
        assert example.parts
        if example.kind == "py":
            compile(example.head + "".join(example.parts.values()), example.name, "exec")


def test_the_page_lists_every_example():
    listed = re.findall(r"\(\.\./examples/clients/([^)]+)\)", PAGE)
    assert sorted(listed) == sorted(example.name for example in examples())


def test_parts_run_apart_and_their_errors_are_told_from_refusals(tmp_path, monkeypatch):
    path = tmp_path / "client.py"
    path.write_text(
        "# nothing==1\nurl = 'http://127.0.0.1:8000 smollm2'\n\n# ---- plain ----\nassert url == 'http://b:1 tiny'\n"
        "# ---- stream ----\nraise RuntimeError('status 400: no')\n# ---- tools ----\nraise RuntimeError('broken')\n"
    )
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", "unseen")
    example = Example.read(path)
    environment = Environment(example)
    (environment.folder / "bin").mkdir(parents=True)
    (environment.folder / "bin" / "python").symlink_to(sys.executable)
    (environment.folder / "packages.txt").write_text("nothing==1")  # as if it were installed
    results = measure([example], "http://b:1", "tiny", lambda: None)
    assert results == {"client.py": {
        "plain": "works", "stream": "refused: RuntimeError: status 400: no", "tools": "error: RuntimeError: broken",
    }}  # fmt: skip
    report = markdown([example], results)
    assert "| client.py | nothing==1 | works | refused |  | error |" in report
    assert "* client.py, tools: error: RuntimeError: broken" in report


def test_the_last_error_is_found_among_other_lines():
    assert outcome("ValueError: a\nFor more, see b\n") == "error: ValueError: a"
    assert outcome("") == "error: it says nothing"
