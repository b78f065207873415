"""The examples of clients: divided into parts, shown in the docs, run in environments, and listed."""

import re
import sys

import pytest

from benchmarks import agents, clients
from benchmarks.clients import AGENTS, EXAMPLES, PARTS, Environment, Example, examples, markdown, measure, outcome
from draftwood.core.errors import ConfigError
from tests.test_docs import ROOT

PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")


def test_every_example_names_its_versions_and_has_known_parts():
    found = examples()
    assert len(found) >= 18
    for example in [*found, *examples(AGENTS)]:
        assert example.packages
        assert all(re.search(r"(?:==|.@)\d", package) for package in example.packages)
    for example in found:
        assert set(example.parts) <= set(PARTS)
        assert example.parts
        if example.kind == "py":
            compile(example.head + "".join(example.parts.values()), example.name, "exec")


def test_the_page_lists_every_example():
    for folder in (EXAMPLES, AGENTS):
        listed = re.findall(rf"\(\.\./examples/{folder.name}/([^)]+)\)", PAGE)
        assert sorted(listed) == [example.name for example in examples(folder)]


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


AGENT = """# nothing==1
# call: <tool_call>{"name": "read", "arguments": {}}</tool_call>
%s - <<END
import json, urllib.request
messages = [{"role": "user", "content": "What does note.txt say?"}]
tools = [{"type": "function", "function": {"name": "read"}}]
for kind in ("tool_calls", "content"):
    body = json.dumps({"messages": messages, "tools": tools}).encode()
    request = urllib.request.Request("http://127.0.0.1:8000/v1/chat/completions", body, {"Content-Type": "application/json"})
    [choice] = json.load(urllib.request.urlopen(request))["choices"]
    messages += [choice["message"], {"role": "tool", "tool_call_id": "a", "content": open("note.txt").read()}]
assert choice["message"]["content"] == "%s"
END
"""


@pytest.mark.parametrize(("words", "said"), [(agents.LAST, "works"), ("Other words.", "error: AssertionError")])
def test_an_agent_works_if_the_last_words_come(tmp_path, monkeypatch, words, said):
    (tmp_path / "clients" / "a.sh").mkdir(parents=True)
    (tmp_path / "clients" / "a.sh" / "packages.txt").write_text("nothing==1")
    (tmp_path / "a.sh").write_text(AGENT % (sys.executable, words))
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(tmp_path))
    assert f"| a.sh | nothing==1 | {said} | 2 |  | " in agents.run([Example.read(tmp_path / "a.sh")])


def test_agents_on_a_server_of_the_user_are_refused():
    with pytest.raises(ConfigError, match="leave --url out"):
        clients.ClientsConfig(agents=True, url="http://127.0.0.1:8000")
