"""The routes that write texts, each in the words of its interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias, final

from benchmarks.serving.client import CHATS, COMPLETIONS
from benchmarks.serving.config import Served
from draftwood.loading.names import bundled_pairs

Json: TypeAlias = dict[str, Any]
_TEMPLATE: Final = (  # with a sign that calls are written as by Hermes
    "{% for tool in tools or [] %}<tool_call>{{ tool['function']['name'] }}</tool_call>\n{% endfor %}"
    "{% for message in messages %}{{ message['content'] or message['tool_calls'] }}\n{% endfor %}"
)
_PLACE: Final = {"type": "object", "properties": {"place": {"enum": ["Oslo", "Rome"]}}, "required": ["place"]}
FUNCTION: Final = {"name": "weather", "parameters": _PLACE}
_OPTIONS: Final = {"max_tokens": "num_predict", "temperature": "temperature", "seed": "seed"}


@final
@dataclass(frozen=True, kw_only=True)
class Route:
    """A route that writes texts.

    Attributes:
        path: of the route.
        translated: the body that asks for what a completion's body asks for.
    """

    path: str
    translated: Callable[[Json], Json]


def _renamed(body: Mapping[str, Any], **names: str) -> Json:
    return {names.get(name, name): value for name, value in body.items()}


def _chat(body: Json) -> Json:
    return {name: value for name, value in body.items() if name != "prompt"} | {
        "messages": [{"role": "user", "content": body["prompt"]}]
    }


def _ollama(body: Json) -> Json:
    options = {_OPTIONS[name]: body[name] for name in _OPTIONS if name in body}
    return {name: value for name, value in body.items() if name not in _OPTIONS} | {"options": options}


def _with_tools(body: Json) -> Json:
    return _chat(body) | {"tools": [{"type": "function", "function": FUNCTION}]}


ROUTES: Final = (
    Route(path=COMPLETIONS, translated=dict),
    Route(path="/api/generate", translated=_ollama),
    Route(path=CHATS, translated=_chat),
    Route(path="/v1/responses", translated=lambda body: _renamed(body, prompt="input", max_tokens="max_output_tokens")),
    Route(path="/v1/messages", translated=_chat),
    Route(path="/api/chat", translated=lambda body: _ollama(_chat(body))),
    Route(path=CHATS, translated=_with_tools),
)
"""The first two are those of a model without a chat template; the last one has the longest prompts."""
PLAIN: Final = ROUTES[:2]


@contextmanager
def chatting(served: Served) -> Iterator[Served]:
    """The same models; the bundled pair gets a chat template, without which most routes refuse it."""
    if served.url is not None or served.target is not None:
        yield served
        return
    with TemporaryDirectory(prefix="draftwood-bench-") as folder:
        parts = {part: Path(folder) / part for part in ("target", "draft")}
        for part, here in parts.items():
            here.mkdir()
            for file in bundled_pairs()["language"][part].iterdir():
                (here / file.name).symlink_to(file)
        (parts["target"] / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
        yield replace(served, target=str(parts["target"]), draft=str(parts["draft"]))
