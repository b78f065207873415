"""Options that make no sense are refused with a sentence before anything runs."""

import shlex

import pytest

from tests.benchmarks.tiny import call

REFUSED = [
    ("generate --repeats 0", "repeats is 0"),
    ("generate --temperatures 0,warm", "temperatures is '0,warm': give numbers from 0"),
    ("generate --temperatures ,", "temperatures is ','"),
    ("generate --temperatures=-1", "temperatures is '-1': give numbers from 0"),
    ("generate --methods chain,beam", "'beam': choose from ar, chain"),
    ("cost --context 5 --context 5", "context is 5, 5"),
    ("cost --repeats 0", "repeats is 0"),
    ("cost --weights same", "give int8, int4 or both"),
    ("cost --weights int8 --weights int8", "give int8, int4 or both"),
    ("cost --activations 4", "activations (4,): give 0 or more, and 8, 16 or both"),
    ("divergence --pieces 0", "pieces is 0"),
    ("never-slower --drafts own,other", "'other'"),
    ("never-slower --states old", "'old'"),
    ("never-slower --batch 0", "batch holds '0'"),
    ("never-slower --temperatures warm", "temperatures is 'warm': give numbers from 0"),
    ("never-slower --repeats 0", "repeats is 0: give 1 or more"),
    ("never-slower --json-schema x", "json_schema is 'x'"),
    ("serve-load --systems x", "systems holds 'x'"),
    ("serve-soak --requests 9", "requests is 9"),
    ("serve-fuzz --clients 0", "clients is 0"),
    ("serve-prefix --tokens 9", "tokens is 9"),
    ("clients --only other.py", "only holds 'other.py'"),
    ("start --systems x", "systems holds 'x'"),
    ("start --repeats 0", "repeats is 0"),
    ("start --prompt-words 0", "prompt_words is 0"),
]


@pytest.mark.parametrize(("command", "message"), REFUSED)
def test_commands_refuse_what_they_cannot_do(command, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in " ".join(call(*shlex.split(command), code=2).output.split())
    assert not list(tmp_path.iterdir())
