"""The JSON Schema of trace files, from the types and docstrings of the records."""

import dataclasses
import inspect
import re
import types
from typing import Literal, Union, get_args, get_origin, get_type_hints

from draftwood.trace.files import FORMAT, VERSION
from draftwood.trace.records import Choice, Distribution, Node, Part, Trace, TracedRound, Trial

NAMES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def schema():
    """The schema of a file, with the fields' descriptions."""
    records = (Trace, TracedRound, Part, Node, Trial, Choice, Distribution)
    fields = {"format": {"const": FORMAT}, "version": {"const": VERSION}}
    fields["digests"] = {"type": "array", "items": {"type": "string"}}
    fields["traces"] = {"type": "array", "items": {"$ref": "#/$defs/Trace"}}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Traces of Draftwood"}
    return {**head, **an_object(fields), "$defs": {cls.__name__: definition(cls) for cls in records}}


def an_object(fields):
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def definition(cls):
    hints, said = get_type_hints(cls), descriptions(cls)
    return an_object({f.name: {**of(hints[f.name]), "description": said.get(f.name, "")} for f in dataclasses.fields(cls)})


def of(hint):
    if dataclasses.is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return {"anyOf": [of(arg) if arg is not type(None) else {"type": "null"} for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is list:
        return {"type": "array", "items": of(args[0])}
    return {"type": "object", "additionalProperties": of(args[1])} if origin is dict else {"type": NAMES[hint]}


def descriptions(cls):
    """What a record's docstring says of each field."""
    text = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2]
    found = {}
    for names, words in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {6,}.*)*)", text, flags=re.MULTILINE):
        found.update(dict.fromkeys(names.split(", "), " ".join(words.replace("``", "").split())))
    return found
