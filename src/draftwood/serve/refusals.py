"""Fields of OpenAI's interface that this server does not have: refused by name, unless their value changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from draftwood.core.checks import shown
from draftwood.serve.errors import ApiError

_TOOLS = "this server runs no tools"
_STORE = "this server stores nothing"
_TEXT = "the models of this server read and write text"

REFUSED: Final[Mapping[str, tuple[str, tuple[Any, ...]]]] = {
    # field -> why it is refused, and the values that change nothing, as null does
    "tools": (_TOOLS, ([],)),
    "tool_choice": (_TOOLS, ("none",)),
    "parallel_tool_calls": (_TOOLS, (True, False)),
    "functions": (_TOOLS, ([],)),
    "function_call": (_TOOLS, ("none",)),
    "web_search_options": (_TOOLS, ()),
    "store": (_STORE, (False,)),
    "metadata": (_STORE, ({},)),
    "prompt_cache_key": (_STORE, ()),
    "audio": (_TEXT, ()),
    "modalities": (_TEXT, (["text"],)),
    "suffix": ("the models of this server write what follows a prompt only", ("",)),
    "best_of": ("every text is drawn once", (1,)),
    "prediction": ("this server drafts with models of its own", ()),
    "reasoning_effort": ("the models of this server have no such setting", ()),
    "verbosity": ("the models of this server have no such setting", ()),
    "service_tier": ("this server has one tier", ("auto", "default")),
}


def without_refused(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body without fields that this server does not have and whose values change nothing.

    Raises:
        ApiError: another value of such a field; names it.
    """
    for name, value in body.items():
        if name in REFUSED and value is not None:
            why, neutral = REFUSED[name]
            if not any(type(value) is type(one) and value == one for one in neutral):
                raise ApiError(
                    400, f"{name} is {shown(value)}, but {why}: leave it out", param=name, code="unsupported_parameter"
                )
    return {name: value for name, value in body.items() if name not in REFUSED}
