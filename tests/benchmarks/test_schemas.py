"""Schemas of the official suite are judged by their cases."""

import json

from benchmarks.schemas import judge, markdown


def test_wrong_and_missing_values_are_found():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}
    said = [({"b": 1, "a": 2}, True), ({"a": 1}, False), ({"a": 1.0}, True), ({"c": 1}, False), ([1], False)]
    tests = [{"data": data, "valid": valid, "description": json.dumps(data)} for data, valid in said]
    group = {"description": "d", "schema": schema, "tests": tests}
    assert judge(group) == ("", ['d: {"a": 1}'], ['d: {"a": 1.0}'])
    refused = {"description": "e", "schema": {"uniqueItems": True}, "tests": tests}
    assert "uniqueItems" in judge(refused)[0]
    report = markdown([("properties", group), ("uniqueItems", refused)])
    assert "| uniqueItems | 1 |" in report
    assert "| 2 | 1 | 5 | 1 | 1 |" in report
    assert '* properties, wrong: d: {"a": 1}' in report
