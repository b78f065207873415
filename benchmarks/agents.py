"""Coding agents against the server: one task from prompt to last event, with a tiny model that writes a script.

An agent is a file of ``examples/agents``: its packages in the first line, then what it configures in a home of its own, and
its command. It passes if its command does, which looks for the model's last words. The model says them when it has seen what
stands in ``note.txt``; before, it writes the line behind ``# call:``, and after, the one behind ``# last:``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any, Final, final
from unittest.mock import patch

import torch

import draftwood
from benchmarks.clients import MODEL, URL, Environment, Example
from draftwood.cli.progress import steps
from draftwood.core.settings import LoadOptions, Method
from draftwood.sampling.processors import ByPrompt, Stateless
from draftwood.serve.http.settings import ServeOptions
from draftwood.serve.openai import prepare
from draftwood.serve.openai.sampling import sampling_of
from draftwood.serve.registry import Registry
from draftwood.serve.run import listen, make_server
from draftwood.serve.service import Service

NOTE: Final = "note.txt"
SECRET: Final = "forty-one"
LAST: Final = "The note says so."
BEFORE: Final = f"""\
set -eo pipefail
rm -rf home work && mkdir -p home work && export HOME=$PWD/home && cd work
echo {SECRET} > {NOTE}
"""
THOUGHT: Final = "<think>\nWhat does it say?\n</think>\n\n"
CONTEXT: Final = 131_072
TEMPLATE: Final = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m['role'] }}\n{{ m['content'] }}{% for call in m['tool_calls'] or [] %}<tool_call>\n{{ call['function'] | tojson }}"
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    "{# <think> </think> #}"
)


@final
@dataclass(kw_only=True)
class Scripted:
    """A server whose model writes ``call`` until a request holds the secret, and then ``last``.

    Attributes:
        url: its address.
        app: the application, which it wraps.
        seen: of every request its route, its status, and the seconds of its longest silence.
    """

    url: str
    app: Any
    call: str = ""
    last: str = LAST
    seen: list[tuple[str, int, float]] = field(default_factory=list)

    def text(self, body: Any) -> str:
        """What the model writes for a request; it calls nothing where there are no tools, as for a title."""
        said = str([message.content for message in body.messages])
        if NOTE not in said:
            return "What was the question?"
        return THOUGHT + (self.last if SECRET in said or not self.call else self.call if body.tools else "A note")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        status, longest, last = 0, 0.0, perf_counter()

        async def noted(message: Any) -> None:
            nonlocal status, longest, last
            status, now = message.get("status", status), perf_counter()
            longest, last = max(longest, now - last), now
            await send(message)

        await self.app(scope, receive, noted)
        if scope["type"] == "http":
            self.seen.append((f"{scope['method']} {scope['path']}", status, longest))


def forced(tokens: Sequence[int]) -> ByPrompt:
    """A logits processor by which a model writes these tokens."""

    def behind(length: int) -> Stateless:
        def only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            found = torch.full_like(scores, -torch.inf)
            found[:, tokens[min(max(0, ids.shape[1] - length), len(tokens) - 1)]] = 0
            return found

        return Stateless(only)

    return ByPrompt(behind)


def tiny(folder: Path) -> Path:
    """A folder with a tiny Llama: the tokenizer of the bundled pair, room for the prompts of agents, and thoughts."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = draftwood.load(options=LoadOptions(profile="none")).tokenizer
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "num_hidden_layers": 1}
    LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=CONTEXT, eos_token_id=tokenizer.eos_token_id, **sizes)
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


@contextmanager
def scripted() -> Iterator[Scripted]:
    """The server, on a port of its own."""
    with TemporaryDirectory() as folder, listen("127.0.0.1", 0) as port:
        pair = draftwood.load(tiny(Path(folder)), options=LoadOptions(profile="none"))
        service = Service(pair, ServeOptions(any_model=True), name=MODEL, method=Method(method="lookup"))
        server = make_server(Registry.of(service))
        found = Scripted(url=f"http://127.0.0.1:{port.getsockname()[1]}", app=server.config.app)
        server.config.app = found

        def written(pair: Any, body: Any, *rest: Any) -> Any:
            ids = pair.tokenizer(found.text(body), add_special_tokens=False)["input_ids"]
            return replace(sampling_of(pair, body, *rest), processors=[forced([*ids, pair.tokenizer.eos_token_id])])

        thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
        with patch.object(prepare, "sampling_of", written):
            thread.start()
            try:
                while not server.started:
                    sleep(0.01)
                yield found
            finally:
                server.should_exit = True
                thread.join()


def turn(agent: Example, server: Scripted) -> str:
    """The row of an agent: its packages, how its turn ended, its requests, their errors, the longest silence in seconds."""
    lines = dict(re.findall(r"^# (call|last): (.*)$", agent.head, re.MULTILINE))
    server.call, server.last, server.seen[:] = lines.get("call", ""), lines.get("last", LAST), []
    environment = Environment(agent)
    said = environment.install() or environment.run(BEFORE + agent.head.replace(URL, server.url)).replace("|", "/")
    refused = sorted({f"{status} {path}" for path, status, _ in server.seen if status >= 400})
    silence = max((gap for *_, gap in server.seen), default=0.0)
    cells = [agent.name, ", ".join(agent.packages), said, str(len(server.seen)), ", ".join(refused), f"{silence:.1f}"]
    return f"| {' | '.join(cells)} |"


def run(found: Sequence[Example]) -> str:
    """The report on agents."""
    head = "| agent | packages | turn | requests | refused | longest silence, s |"
    rows = [head, "|---|---|---|---|---|---|"]
    with scripted() as server, steps("agents", len(found)) as advance:
        for agent in found:
            rows.append(turn(agent, server))
            advance()
    return "\n".join(["# Coding agents", "", *rows, ""])
