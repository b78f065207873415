"""The functions that a chat may call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field

from draftwood.core.checks import short_repr
from draftwood.core.errors import ConfigError
from draftwood.grammar.grammar import Grammar
from draftwood.serve.errors import bad
from draftwood.serve.fields import Body
from draftwood.serve.tool_formats import ToolFormat

_NOTHING: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_LARGE: Final = ("too big", "longer than", "too large", "too deeply")  # in reasons of a grammar that is refused


class Function(Body):
    """A function; its parameters are a JSON schema."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def form(self) -> dict[str, Any]:
        """The schema of its arguments, which are an object. Without parameters it is empty."""
        if self.parameters is None:
            return _NOTHING
        return self.parameters if "type" in self.parameters else {"type": "object", **self.parameters}


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: Function

    def to_template(self) -> dict[str, Any]:
        """As chat templates read it."""
        function = self.function
        given = {"name": function.name, "description": function.description, "parameters": function.parameters}
        return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The function that an answer calls."""

    type: Literal["function"]
    function: FunctionName


Tools = Annotated[list[Tool], Field(fail_fast=True)]
ToolChoice: TypeAlias = Literal["none", "auto", "required"] | NamedTool


def check_tools(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Refuse functions of one name, and a choice that the tools do not have."""
    names = [tool.function.name for tool in tools or ()]
    seen = set[str]()
    for name in names:
        if name in seen:
            raise bad(f"tools holds two functions of the name {short_repr(name)}: give each its own", param="tools")
        seen.add(name)
    if choice == "required" and not names:
        raise bad("tool_choice is 'required', but there are no tools: send some", param="tool_choice")
    if isinstance(choice, NamedTool) and choice.function.name not in seen:
        name = short_repr(choice.function.name)
        raise bad(f"tool_choice names the function {name}, but tools does not hold it: send it too", param="tool_choice")


def grammar_of_calls(
    form: ToolFormat, functions: Sequence[Function], special: Mapping[str, int], *, many: bool, answer: Any = None
) -> Grammar:
    """The grammar of answers that call functions, or that follow the schema of an answer if there is one.

    Raises:
        ApiError: too many functions, or parameters that no grammar can hold; names the function.
        ConfigError: another reason.
    """
    schemas = {function.name: function.form for function in functions}
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
