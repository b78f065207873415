"""Bodies that are nearly right."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

from benchmarks.serving.right import GETS

STRANGE: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 2**31, 2**63, -(2**63), 10**400, "", " ", "a", "0", "null", "\0", "\ud800",
    1e308, "\U0010ffff", "é" * 300, "draftwood", "user", [], {}, [None], [[]], [[[]]], [0], [-1], [1, "a"],
    [2**31], ["", ""],
    {"": ""}, {"a": {"b": []}}, {"type": "text"}, {"0": 1e9}, {"method": "chain"}, {"include_usage": 1}, [{"role": "user"}],
)  # fmt: skip
FIELDS: Final = (
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "n",
    "seed", "stop", "stop_token_ids", "stream", "stream_options", "logprobs", "top_logprobs", "logit_bias",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "ignore_eos", "response_format", "regex",
    "grammar", "echo", "truncation", "betas", "context_management", "cache_control", "prediction", "metadata", "store",
    "suffix", "user", "speculative", "return_token_ids", "tools", "best_of", "tokens", "add_special_tokens", "x",
    "__proto__", "tool_choice", "parallel_tool_calls", "json_schema", "structured_outputs", "guided_choice", "trace",
    "chat_template_kwargs", "reasoning_effort", "continue_final_message", "input", "instructions", "max_output_tokens",
    "previous_response_id", "text", "reasoning", "include", "system", "stop_sequences", "thinking", "output_config",
    "options", "format", "think", "raw", "images", "keep_alive", "name",
)  # fmt: skip
LITERALS: Final = (
    b"NaN", b"-Infinity", b"1e999999", b"-", b"9" * 5000, b'"\\ud800"', b'"\\u0000"', b"\xff\xfe", b"[" * 20_000,
    b'{"a":' * 200, b"\xef\xbb\xbf", b"//", b"'", b",,",
)  # fmt: skip

ENDS: Final = ("/", "//", "/...", "/%00", "/%ff", "?width=-1", "?width=1e999", "?a=%f0%9f", "%2f", "/" + "a" * 3000, "/é")
_WITHOUT_BODY: Final = 0.05


def _slots(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key inside a value."""
    found, containers = list[tuple[Any, Any]](), [value]
    for inside in containers:  # it grows
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        found += [(inside, key) for key in keys]
        containers += [inside[key] for key in keys if isinstance(inside[key], dict | list)]
    return found


def _replace(body: Any, rng: random.Random) -> None:
    if slots := _slots(body):
        inside, key = rng.choice(slots)
        inside[key] = copy.deepcopy(rng.choice(STRANGE))


def _remove(body: Any, rng: random.Random) -> None:
    if slots := _slots(body):
        inside, key = rng.choice(slots)
        del inside[key]


def _add(body: Any, rng: random.Random) -> None:
    body[rng.choice(FIELDS)] = copy.deepcopy(rng.choice(STRANGE))


def _wrap(body: Any, rng: random.Random) -> None:
    if slots := _slots(body):
        inside, key = rng.choice(slots)
        for _ in range(rng.choice((1, 3, 70, 150))):
            inside[key] = [inside[key]] if rng.random() < 0.5 else {"a": inside[key]}


def _repeat(body: Any, rng: random.Random) -> None:
    lists = [inside[key] for inside, key in _slots(body) if isinstance(inside[key], list)]
    if lists:
        some = rng.choice(lists)
        some *= rng.choice((2, 100))


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _insert(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + rng.choice(LITERALS) + data[place:]


def _twice(data: bytes, rng: random.Random) -> bytes:
    first, last = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:last] + data[first:]


VALUES: Final[tuple[Callable[[Any, random.Random], None], ...]] = (_replace, _replace, _add, _add, _remove, _wrap, _repeat)
BYTES: Final[tuple[Callable[[bytes, random.Random], bytes], ...]] = (_cut, _flip, _insert, _twice)


def mutated(bodies: Sequence[tuple[str, dict[str, Any]]], number: int, seed: int) -> tuple[str, str, bytes]:
    """A method, a path and the bytes of a body; all depend on the number and the seed alone."""
    rng = random.Random(f"fuzz/{seed}/{number}")
    if rng.random() < _WITHOUT_BODY:
        path = rng.choice(GETS)
        return "GET", path + rng.choice(ENDS) if rng.random() < 0.5 else path, b""
    path, body = copy.deepcopy(rng.choice(bodies))
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(VALUES)(body, rng)
    data = json.dumps(body).encode()
    if rng.random() < 0.4:
        data = rng.choice(BYTES)(data, rng)
    return "POST", path, data
