"""The JSON Schema of trace files, from the types and docstrings of the records."""

import inspect
import re

from pydantic import TypeAdapter

from draftwood.trace.files import FORMAT, VERSION
from draftwood.trace.records import Choice, Distribution, Node, Part, Trace, TracedRound, Trial


def schema():
    """The schema of a file, with the fields' descriptions."""
    traces = TypeAdapter(list[Trace]).json_schema()
    records = traces.pop("$defs")
    for cls in (Trace, TracedRound, Part, Node, Trial, Choice, Distribution):
        fields = records[cls.__name__]["properties"]
        for name, said in descriptions(cls).items():
            fields[name]["description"] = said
        records[cls.__name__] = an_object(fields)
    fields = {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    fields |= {"digests": {"type": "array", "items": {"type": "string"}}, "traces": traces}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Traces of Draftwood"}
    return {**head, **an_object(fields), "$defs": records}


def an_object(fields):
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def descriptions(cls):
    """What a record's docstring says of each field."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    found = {}
    for names, words in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {6,}.*)*)", text, flags=re.MULTILINE):
        found.update(dict.fromkeys(names.split(", "), " ".join(words.replace("``", "").split())))
    return found
