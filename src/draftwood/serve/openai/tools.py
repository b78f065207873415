"""The functions that a chat may call, and answers that must call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import Field

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.grammar.grammar import Grammar, without_unheld
from draftwood.serve.http.errors import bad
from draftwood.serve.http.fields import Body
from draftwood.serve.openai.formats import ToolFormat

T = TypeVar("T")
_NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_OPEN: Final = frozenset(  # keywords that may admit more properties than those named
    {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"}
    | {"patternProperties", "unevaluatedProperties", "minProperties"}
)
_LARGE: Final = ("too big", "longer than", "too large", "too deeply")  # in reasons of a grammar that is refused


class Function(Body):
    """A function; its parameters are a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def form(self, remarks: list[str]) -> dict[str, Any]:
        """The schema of its arguments: an object that has those which it names, unless it says ``additionalProperties``, and
        none without parameters. Raises an ApiError for parameters of another type."""
        if self.parameters is None:
            return _NOTHING
        name, kind = f"the parameters of the function {short_repr(self.name)}", self.parameters.get("type", "object")
        if "object" not in (kind if isinstance(kind, list) else [kind]):
            raise bad(
                f"{name} have the type {short_repr(kind)}, but a function's arguments are an object: send type object with "
                "properties",
                param="tools",
            )
        named = "properties" in self.parameters and not self.parameters.keys() & _OPEN
        closed = {"additionalProperties": False} if named else {}
        return held(name, {**closed, **self.parameters, "type": "object"}, remarks)


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function

    def to_template(self, *, described: bool = False) -> dict[str, Any]:
        """As chat templates read it; ``described`` for those that fail without a description."""
        function = self.function.model_dump(include={"name", "description", "parameters"}, exclude_none=True)
        return {"type": "function", "function": {**({"description": ""} if described else {}), **function}}


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The function that an answer calls."""

    type: Literal["function"]
    function: FunctionName

    @property
    def names(self) -> list[str]:
        return [self.function.name]


class AllowedFunctions(Body):
    """Those of the functions that an answer may call, or must with mode ``required``."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, fail_fast=True)]


class AllowedTools(Body):
    """A choice of several functions. The model is shown no others."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions

    @property
    def names(self) -> list[str]:
        return [name for tool in self.allowed_tools.tools for name in tool.names]


def held(where: str, schema: T, remarks: list[str]) -> T:
    """A schema without what no grammar holds, on which there are remarks."""
    left: list[str] = []
    found: T = without_unheld(schema, left)
    remarks += [f"{where}: {line}" for line in left]
    return found


Tools = Annotated[list[Tool], Field(fail_fast=True)]
ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool | AllowedTools


def check_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Refuse functions of one name, and a choice that the tools do not have."""
    names = Counter(tool.function.name for tool in tools or ())
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise bad(f"tools holds two functions of the name {short_repr(twice)}: give each its own", param="tools")
    if choice == "required" and not names:
        raise bad("tool_choice is 'required', but there are no tools: send some", param="tool_choice")
    chosen = choice.names if isinstance(choice, AllowedTools | NamedTool) else []
    if (name := next((name for name in chosen if name not in names), None)) is not None:
        why = "but tools does not hold it: send it too"
        raise bad(f"tool_choice names the function {short_repr(name)}, {why}", param="tool_choice")


def grammar_of_calls(
    form: ToolFormat, schemas: Mapping[str, Any], special: Mapping[str, int], *, many: bool, answer: Any = None
) -> Grammar:
    """The grammar of answers that call functions, given by the schemas of their arguments, or that follow the schema of an
    answer if there is one.

    Raises:
        ApiError: too many functions, or parameters that no grammar can hold; names the function.
        ConfigError: another reason.
    """
    try:
        return Grammar.lark(form.lark(schemas, special, many=many, answer=answer))
    except ConfigError as error:
        if any(word in str(error) for word in _LARGE):
            raise bad(
                f"the schemas of {len(schemas)} functions are too large to hold an answer to them: send fewer or smaller "
                "ones, name one by tool_choice, or leave tool_choice and response_format out",
                param="tools",
            ) from error
        for name, schema in schemas.items():
            try:
                Grammar.json_schema(schema)
            except ConfigError as reason:
                raise bad(f"the parameters of the function {short_repr(name)}: {reason}", param="tools") from reason
        raise
