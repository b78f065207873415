"""Grammars that a text must follow: a JSON schema, a regular expression or a Lark grammar."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from threading import Lock
from typing import Any, Final, Literal, TypeAlias, final, get_args

from draftwood.core.checks import choice, is_unicode, short_repr
from draftwood.core.errors import ConfigError, needs

LIMITS: Final = {"initial_lexer_fuel": 200_000, "max_grammar_size": 20_000, "verbose_errors": False}
"""Of ``LLParserLimits``: about half a second each; the library's defaults are 1,000,000 and 500,000."""
_SECONDS: Final = 1  # of a check; other work on the machine does not count
_SCRIPT: Final = """
import json, resource, sys, threading, time
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

def check():
    tokens = LLTokenizer("byte")
    for line in sys.stdin:
        source, given, seconds = json.loads(line)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))
        limits = LLParserLimits(**given)
        found = LLMatcher.validate_grammar_with_warnings(source, limits=limits)
        if not found[0]:
            LLMatcher(tokens, source, log_level=0, limits=limits).compute_bitmask()  # for its time only
        print(json.dumps(found[1][0] if found[0] else None), flush=True)

threading.stack_size(1 << 21)  # what compiles it later has four times as much
print("ready", flush=True)
thread = threading.Thread(target=check)
thread.start()
thread.join()
"""


@final
class Checker:
    """Checks grammars, one at a time, in a process that is started for the first one, and that can be ended: llguidance has
    no limit of time or of depth. A short grammar may take minutes, such as a number that is a multiple of a large one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def error(self, source: str) -> str | None:
        """Why a grammar cannot be used; None if it can."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps([source, LIMITS, _SECONDS]) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                self._process = None
                process.kill()
                process.communicate()
                return f"it is nested too deeply, or its check takes longer than {_SECONDS} s"
        reason: str | None = json.loads(answer)
        return reason

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()
        return self._process


FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
"""Those that a grammar holds. Other formats are annotations, as JSON Schema has it."""
_ONE: Final = frozenset(  # keywords whose value is a schema
    {"items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
_MANY: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_PARTS: Final = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<around>\(\?<?[=!]|\\[bBk1-9])|\\.|.", re.DOTALL)


def without_unheld(schema: Any, left: list[str], *, patterns: bool = True, at: str = "") -> Any:
    """A schema without what no grammar holds.

    Args:
        schema: decoded JSON.
        left: takes a line for each keyword that was left out.
        patterns: leave out patterns with look-around or back-references too, not only unknown formats.
        at: where the schema stands in a larger one.
    """
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        path = f"{at}.{name}".lstrip(".")
        if name == "format" and _unknown(value, schema.get("type", "string")):
            left.append(f"{path} is {short_repr(value)}, a format that no grammar holds")
        elif patterns and name == "pattern" and _looks_around(value):
            left.append(f"{path} is {short_repr(value)}, and no grammar holds look-around and back-references")
        elif name in _NAMED and isinstance(value, dict):
            found[name] = {}
            for key, inner in value.items():
                if patterns and name == "patternProperties" and _looks_around(key):
                    left.append(f"{path} has {short_repr(key)}, and no grammar holds look-around and back-references")
                else:
                    found[name][key] = without_unheld(inner, left, patterns=patterns, at=f"{path}.{key}")
        elif name in _MANY and isinstance(value, list):
            found[name] = [without_unheld(inner, left, patterns=patterns, at=f"{path}.{i}") for i, inner in enumerate(value)]
        else:
            found[name] = without_unheld(value, left, patterns=patterns, at=path) if name in _ONE else value
    return found


def _unknown(value: Any, types: Any) -> bool:
    """Whether a format is unknown and stands where texts may be; that of a number says nothing to a grammar."""
    texts = "string" in (types if isinstance(types, list) else [types])
    return isinstance(value, str) and value not in FORMATS and texts


def _looks_around(pattern: Any) -> bool:
    return isinstance(pattern, str) and any(part["around"] for part in _PARTS.finditer(pattern))


GrammarKind: TypeAlias = Literal["json_schema", "regex", "lark"]
_NAMES: Final = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "Lark grammar"}
_LONGEST: Final = 300  # characters of a reason in an error
_CHECKER: Final = Checker()
_OPTIONS: Final = {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: ""'}  # of the whole list that it stands in.
# Without "no_forcing" a mask holds one token where one text is left: the token that the tokenizer would write.
_ONE_OF: Final = (
    "branches of its oneOf may hold together, which no grammar can rule out: write anyOf, or give each branch a type, with "
    'a required property whose "const" differs where the types are the same'
)
_BLANKS: Final = r"\n?[ \t]{0,40}"  # between tokens of JSON; without a bound, small models write blanks for ever


def guidance() -> Any:
    """The library that matches grammars; raises a ConfigError if it is not installed."""
    try:
        return import_module("llguidance")
    except ImportError:
        raise ConfigError(needs("a grammar", "llguidance", "grammar")) from None


def _defaults(schema: object) -> dict[str, str] | None:
    """Options for a schema that has no options of its own for blanks."""
    own = schema.get("x-guidance") if isinstance(schema, dict) else None
    settled = isinstance(own, dict) and "whitespace_flexible" in own
    return {"whitespace_pattern": _BLANKS} if schema is True or (isinstance(schema, dict) and not settled) else None


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """A JSON schema as a part of a Lark grammar, with the blanks of :meth:`Grammar.json_schema`."""
    given = {} if schema is True else without_unheld(schema, [], patterns=False)
    if isinstance(given, Mapping) and (defaults := _defaults(dict(given))) is not None:
        given = {**given, "x-guidance": {**given.get("x-guidance", {}), **defaults}}
    return f"%json {json.dumps(given, ensure_ascii=False)}"


@final
@dataclass(frozen=True, kw_only=True)
class Grammar:
    """A grammar that generated text follows from its first token to its end. It is checked when it is made.

    Take :meth:`json_schema`, :meth:`json_object`, :meth:`regex` or :meth:`lark`.

    Attributes:
        kind: the language of ``text``.
        text: the grammar itself; for a JSON schema, its JSON.

    Raises:
        ConfigError: a syntax error, a schema that admits nothing or holds what cannot be honoured, a grammar that is too
            large, or the extra ``grammar`` is not installed.
    """

    kind: GrammarKind
    text: str

    def __post_init__(self) -> None:
        choice("kind", self.kind, get_args(GrammarKind))
        if not isinstance(self.text, str) or not is_unicode(self.text):
            raise ConfigError(f"the {_NAMES[self.kind]} is {short_repr(self.text)}: give Unicode text")
        if (reason := _CHECKER.error(self.source())) is not None:
            raise self.refused(reason)

    @staticmethod
    def json_schema(schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that validates against a schema, given as a mapping or as JSON. Unknown formats are annotations.

        Properties come in the schema's order. Between its tokens the JSON has at most a line break and 40 blanks, unless the
        schema has ``whitespace_flexible`` or ``whitespace_pattern`` in its ``x-guidance``.
        """
        if isinstance(schema, str):
            return Grammar(kind="json_schema", text=schema)
        if not isinstance(schema, Mapping):
            wanted = "give a mapping, such as model_json_schema() of a pydantic model, or its JSON as text"
            raise ConfigError(f"the JSON schema is {short_repr(schema)}: {wanted}")
        try:
            text = json.dumps(dict(schema), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"the JSON schema {short_repr(schema)} cannot be written as JSON: {error}") from error
        return Grammar(kind="json_schema", text=text)

    @staticmethod
    def json_object() -> Grammar:
        """Any JSON object."""
        return Grammar(kind="json_schema", text='{"type": "object"}')

    @staticmethod
    def regex(pattern: str) -> Grammar:
        """Text that a regular expression matches as a whole, in the syntax of Rust's ``regex``."""
        return Grammar(kind="regex", text=pattern)

    @staticmethod
    def lark(text: str) -> Grammar:
        """Text of a context-free grammar in the syntax of Lark, with the rule ``start``."""
        return Grammar(kind="lark", text=text)

    def source(self) -> str:
        """The grammar as llguidance reads it; raises a ConfigError for a schema that is not JSON."""
        return json.dumps({"grammars": [self._read(), _OPTIONS]}, ensure_ascii=False)

    def _read(self) -> Any:
        """The grammar without options, as an entry of llguidance's list."""
        matcher = guidance().LLMatcher
        if self.kind == "lark":
            return {"lark_grammar": self.text}
        if self.kind == "regex":
            return json.loads(matcher.grammar_from_regex(self.text))["grammars"][0]
        try:
            schema, left = json.loads(self.text), list[str]()
            known = without_unheld({} if schema is True else schema, left, patterns=False)  # True takes no options
            text = json.dumps(known) if left or schema is True else self.text
            return json.loads(matcher.grammar_from_json_schema(text, defaults=_defaults(schema)))["grammars"][0]
        except (ValueError, RecursionError) as error:
            raise self.refused(str(error)) from error

    def refused(self, reason: str) -> ConfigError:
        """The error of a grammar that cannot be used."""
        reason = re.split(r"\n\s*\d+ \||<non-verbose/>", reason)[0]  # without the lines of the grammar
        reason = " ".join(reason.split())
        if self.kind == "json_schema":
            reason = _ONE_OF if "coerce_one_of" in reason else re.sub("^(regex parse error)", r"a pattern, \1", reason)
        reason = reason if len(reason) <= _LONGEST else reason[: _LONGEST - 1] + "…"
        return ConfigError(f"{self.name} cannot be used: {reason}. Change it, or leave it out")

    @property
    def name(self) -> str:
        """The grammar in an error: its kind and the beginning and end of its text."""
        return f"the {_NAMES[self.kind]} {short_repr(self.text)}"
