"""JSON schemas as people write them. Strings, arrays and numbers are short, so that the texts of tiny models end."""

WORD = {"type": "string", "maxLength": 6}
SMALL = {"type": "integer", "minimum": -99, "maximum": 999}


def record(properties, required=None, **more):
    """An object of these properties only; all are required unless some are named."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **more,
    }


def items(of, least=0, most=3, **more):
    return {"type": "array", "items": of, "minItems": least, "maxItems": most, **more}


SCHEMAS = [
    {"type": "null"},
    {"type": "boolean"},
    {"const": "the fox"},
    {"const": {"a": [1, None, True]}},
    {"enum": ["red", "green", 3, None, {"x": 1}]},
    {"type": "string", "enum": ["sat", "ran"]},
    SMALL,
    {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 8},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 95},
    {"type": "number", "minimum": 0.25, "maximum": 0.75},
    {"type": ["integer", "null"], "minimum": 1, "maximum": 9},
    WORD,
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    {"type": "string", "pattern": "^(hen|fox)( hen| fox){0,3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    items(SMALL),
    items(WORD, 2, 2),
    items({"type": "boolean"}, 1, 4),
    items(items(SMALL, 1, 2), 1, 2),
    {"type": "array", "prefixItems": [WORD, SMALL, {"type": "boolean"}], "items": False, "minItems": 3},
    {"type": "array", "prefixItems": [SMALL], "items": WORD, "minItems": 1, "maxItems": 3},
    record({}),
    record({"name": WORD, "age": SMALL}),
    record({"name": WORD, "age": SMALL, "email": WORD}, ["name"]),
    record({"a": {"type": "boolean"}, "b": {"type": "null"}}, []),
    record({"title": WORD, "tags": items(WORD), "draft": {"type": "boolean"}}),
    record({"point": record({"x": SMALL, "y": SMALL}), "label": WORD}),
    record({"list": items(record({"id": SMALL, "ok": {"type": "boolean"}}), 1, 2)}),
    record({"kind": {"const": "circle"}, "radius": SMALL}),
    {"anyOf": [record({"kind": {"const": "a"}, "n": SMALL}), record({"kind": {"const": "b"}, "s": WORD})]},
    {"anyOf": [{"type": "null"}, SMALL, {"type": "string", "enum": ["none"]}]},
    {"oneOf": [{"type": "boolean"}, {"type": "null"}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 30}]},
    {"$defs": {"word": WORD}, **record({"first": {"$ref": "#/$defs/word"}, "last": {"$ref": "#/$defs/word"}})},
    {
        "$defs": {"leaf": record({"v": {"enum": [1, 2]}}), "node": record({"l": {"$ref": "#/$defs/leaf"}, "r": SMALL})},
        "$ref": "#/$defs/node",
    },
    record({'quote "q"': WORD, "back\\slash": SMALL, "snow ☃": {"type": "null"}}),
    {"type": "object", "patternProperties": {"^k[0-9]$": SMALL}, "additionalProperties": False, "maxProperties": 2},
    {"type": "object", "additionalProperties": {"enum": [0, 1]}, "maxProperties": 1},
]
"""With the whitespace of the schema's own text only."""


def compact(schema):
    """The schema without optional blanks in its texts: tiny models would write nothing else."""
    return {**schema, "x-guidance": {"whitespace_flexible": False}}
