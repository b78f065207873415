"""Traces as files: what is written is read again, and other files are refused in one sentence."""

import json
import math
from pathlib import Path

import jsonschema
import pytest

import draftwood
from draftwood.core.errors import ConfigError
from draftwood.trace.files import from_json, read_traces, to_json, write_traces
from tests.trace.runs import run
from tests.trace.schema import schema

SCHEMA = Path(draftwood.__file__).parents[2] / "docs" / "trace.schema.json"


@pytest.fixture(scope="module")
def stored():
    """The object of a file with several traces."""
    made = [run("rsd-c", "recursive")[0], run("rsd-s", "traversal")[0], run("shared-noise")[0], run("ar")[0]]
    return to_json(made)


@pytest.mark.parametrize(
    ("method", "verifier"), [("rsd-s", "recursive"), ("iid", "traversal"), ("dynamic", "coupled"), ("adaptive", "auto")]
)
def test_a_file_holds_the_traces(method, verifier, tmp_path):
    made = run(method, verifier, rows=3)
    write_traces(tmp_path / "trace.json", made)
    assert read_traces(tmp_path / "trace.json") == made


def test_the_schema_in_the_documentation_is_that_of_the_records(stored):
    document, found = json.loads(SCHEMA.read_text(encoding="utf-8")), json.loads(json.dumps(stored))
    assert document == schema()
    jsonschema.validate(found, document)
    assert all(field["description"] for part in document["$defs"].values() for field in part["properties"].values())
    found["traces"][0]["rounds"][0]["nodes"][0]["token"] = "a"  # control
    with pytest.raises(jsonschema.ValidationError, match="'a' is not of type 'integer'"):
        jsonschema.validate(found, document)


def change(*path, to):
    """Set one value of a file."""

    def apply(found):
        at = found
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return apply


ROUND = ("traces", 0, "rounds", 1)
EDITS = [
    (change("version", to=2), "its version is 2"),
    (change("version", to=True), "its version is True"),
    (change("format", to="other"), "format"),
    (change("digests", to=""), "edited"),
    (change("digests", 1, to=""), "edited"),
    (change("traces", to={}), "edited"),
    (change("traces", 0, "seed", to="7"), "edited"),
    (change("traces", 0, "tokens", 0, to=99), "edited"),
    (change(*ROUND, "seconds", "draft", to=math.inf), "edited"),
    (change(*ROUND, "nodes", 1, "target_prob", to=0.5), "edited"),
]


@pytest.mark.parametrize(("edit", "message"), EDITS, ids=range(len(EDITS)))
def test_edited_files_are_refused(edit, message, stored):
    found = json.loads(json.dumps(stored))
    from_json(found)
    edit(found)
    with pytest.raises(ConfigError, match=message):
        from_json(found)


def test_files_that_javascript_has_written_and_joined_are_read(stored):
    def written(value):
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, dict):
            return {name: written(part) for name, part in reversed(value.items())}
        return [written(part) for part in value] if isinstance(value, list) else value

    found = written(json.loads(json.dumps(stored)))
    assert json.dumps(found, sort_keys=True) != json.dumps(stored, sort_keys=True)
    assert from_json(found) == from_json(stored)
    twice = {name: 2 * found[name] for name in ("traces", "digests")}
    assert from_json(found | twice) == 2 * from_json(stored)
    with pytest.raises(ConfigError, match="edited"):  # control
        from_json(found | {"traces": twice["traces"]})


def test_cut_and_missing_files_are_refused_in_one_sentence(stored, tmp_path):
    path, whole = tmp_path / "trace.json", json.dumps(stored)
    for text, message in (
        (whole[: len(whole) // 2].encode(), "no complete trace"), (b"[" * 100_000, "no complete trace"),
        (whole.replace(": 0.0,", ": NaN,", 1).encode(), "no complete trace"), (b"{}", "format"),
        (b"\xff\xfe", "no complete trace"),
    ):  # fmt: skip
        path.write_bytes(text)
        with pytest.raises(ConfigError, match=message) as error:
            read_traces(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_traces(tmp_path / "missing.json")
