"""A file of prompts: JSON lines, checked to the last before anything is generated."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, final

from draftwood.api import Pair
from draftwood.decode import Decoder, Request
from draftwood.errors import CacheError, ConfigError
from draftwood.methods import Method
from draftwood.noise import MAX_SEED
from draftwood.output import Limits
from draftwood.sampling import Sampling

_PER_RUN = {f.name for cls in (Sampling, Limits, Method) for f in fields(cls)}


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One prompt of the file.

    Attributes:
        index: line number, from 0.
        prompt, seed: as in the file.
        carried: keys that are copied to the answer.
    """

    index: int
    prompt: str
    seed: int | None
    carried: dict[str, Any]


def read_prompts(path: Path) -> list[Line]:
    """All lines of a file, or of standard input if the path is ``-``; blank lines count but are skipped.

    Raises:
        ConfigError: a file that cannot be read, or a line that is not a prompt; names file and line.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}, line {line}: this is not UTF-8 text; convert the file, for example with iconv") from None
    except OSError as error:
        raise ConfigError(f"input file {name} cannot be read: {error.strerror}") from error
    # Not splitlines(): JSON may hold U+2028 and its like unescaped.
    lines = [_line(name, i, line) for i, line in enumerate(text.split("\n")) if line.strip()]
    if not lines:
        raise ConfigError(f'{name} holds no prompts: give one JSON object a line, such as {{"prompt": "Once upon a time"}}')
    return lines


def _line(name: str, index: int, text: str) -> Line:
    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{name}, line {index + 1}: {what}")

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f'this is not JSON ({error}); write {{"prompt": "..."}}') from None
    if not isinstance(found, dict):
        raise wrong(f'this is not a JSON object but {text.strip()[:40]}; write {{"prompt": "..."}}')
    prompt, seed = found.get("prompt"), found.get("seed")
    if not isinstance(prompt, str):
        came = f"prompt is {json.dumps(prompt)[:40]}, not text" if "prompt" in found else "there is no prompt"
        raise wrong(f'{came}; write {{"prompt": "..."}}')
    if any("\ud800" <= c <= "\udfff" for c in prompt):
        raise wrong("the prompt holds half of a surrogate pair, which is no character; write \\ud83d\\ude00 or 😀 in full")
    if seed is not None and (type(seed) is not int or not 0 <= seed <= MAX_SEED):
        raise wrong(f"seed is {json.dumps(seed)[:40]}; give an integer from 0 to {MAX_SEED}, or leave it out")
    if refused := sorted(_PER_RUN & found.keys()):
        raise wrong(f"{refused[0]!r} is set for the whole run, with --{refused[0].replace('_', '-')}, not line by line")
    return Line(index=index, prompt=prompt, seed=seed, carried={"id": found["id"]} if "id" in found else {})


def encode(lines: Sequence[Line], name: str, pair: Pair, decoder: Decoder, limits: Limits, first_seed: int) -> list[Request]:
    """Requests for the lines; a line without a seed has the first seed plus its index.

    Raises:
        ConfigError: an empty prompt for a tokenizer without a beginning-of-text token.
        CacheError: a prompt that leaves no room in the models' context.
    """
    requests = []
    for line in lines:
        try:
            ids = pair.encode(line.prompt)
        except ConfigError as error:
            raise ConfigError(f"{name}, line {line.index + 1}: {error}") from error
        if decoder.max_length is not None and len(ids) >= decoder.max_length:
            raise CacheError(
                f"{name}, line {line.index + 1}: the prompt has {len(ids)} tokens, but the models' context is "
                f"{decoder.max_length} and the text needs room; shorten it, or remove the line"
            )
        requests.append(Request(prompt=ids, seed=seed_of(line, first_seed), limits=limits, final=pair.final_token))
    return requests


def seed_of(line: Line, first_seed: int) -> int:
    """The line's own seed, else one that depends on its place only.

    Raises:
        ConfigError: the sum is out of range.
    """
    seed = line.seed if line.seed is not None else first_seed + line.index
    if seed > MAX_SEED:
        raise ConfigError(f"seed {first_seed} plus line number {line.index} is above {MAX_SEED}: give a smaller --seed")
    return seed
