"""A file of prompts: JSON lines. An invalid line gets an error; the others are answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn

from draftwood.cli.job.lines import NOT_UTF8, Line, name_of_input, read_lines
from draftwood.cli.output_options import GrammarOptions, LogprobOptions
from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError
from draftwood.core.limits import Limits
from draftwood.core.settings import MAX_SEED, Method
from draftwood.sampling.settings import ONLY_PYTHON, Sampling

_LEVELS = 100  # the deepest nesting of an id
_PER_RUN = {f.name for cls in (Sampling, Limits, Method, GrammarOptions, LogprobOptions) for f in fields(cls)}.difference(
    ONLY_PYTHON
)


def read_prompts(path: Path) -> list[Line]:
    """All lines of a file, or of standard input if the path is ``-``. Blank lines are skipped but numbered."""
    lines = [line for i, data in enumerate(read_lines(path)) if (line := _line(i, data)) is not None]
    if not lines:
        raise ConfigError(
            f'{name_of_input(path)} holds no prompts: give a JSON object per line, such as {{"prompt": "Once upon a time"}}'
        )
    return lines


def read_texts(path: Path) -> list[str]:
    """All prompts of a file, in which every line must be valid."""
    lines = read_prompts(path)
    for line in lines:
        if line.error is not None:
            raise ConfigError(f"{name_of_input(path)}, line {line.index + 1}: {line.error}")
    return [line.text for line in lines]


def _line(index: int, data: bytes) -> Line | None:
    source = data.removesuffix(b"\r").decode("utf-8", errors="replace")
    if not source.strip():
        return None
    line, found = Line(index=index, source=source), None
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=_no_constant)
        line = replace(line, carried=_carried(found))
        return replace(line, text=_prompt(found, source), seed=_seed(found))
    except UnicodeDecodeError:
        return replace(line, error=NOT_UTF8)
    except ConfigError as error:
        return replace(line, error=str(error))
    except (ValueError, RecursionError) as error:
        return replace(line, error=f'this is not JSON ({error}); write {{"prompt": "..."}}')


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _carried(found: Any) -> dict[str, Any]:
    """Keys that are copied to the answer."""
    if not isinstance(found, dict) or "id" not in found:
        return {}
    inside = [found["id"]]
    for _ in range(_LEVELS):
        inside = [e for v in inside if isinstance(v, list | dict) for e in (v.values() if isinstance(v, dict) else v)]
    if inside:  # JSON that nests this deep can be read but not written
        raise ConfigError(f"the id is nested {_LEVELS} levels deep or more; give a number or a text")
    return {"id": found["id"]}


def _prompt(found: Any, source: str) -> str:
    """The prompt in a line. Keys of settings for the whole run are refused."""
    if not isinstance(found, dict):
        raise ConfigError(f'this is not a JSON object but {source.strip()[:40]}; write {{"prompt": "..."}}')
    prompt = found.get("prompt")
    if not isinstance(prompt, str):
        came = f"prompt is {json.dumps(prompt)[:40]}, not text" if "prompt" in found else "there is no prompt"
        raise ConfigError(f'{came}; write {{"prompt": "..."}}')
    if not is_unicode(prompt):
        raise ConfigError("the prompt holds half of a surrogate pair; write \\ud83d\\ude00 or 😀 in full")
    if refused := sorted(_PER_RUN & found.keys()):
        option = "--" + refused[0].replace("_", "-")
        raise ConfigError(f"{refused[0]!r} is set for the whole run, with {option}, not line by line")
    return prompt


def _seed(found: Mapping[str, Any]) -> int | None:
    seed = found.get("seed")
    if seed is not None and (type(seed) is not int or not 0 <= seed <= MAX_SEED):
        raise ConfigError(f"seed is {json.dumps(seed)[:40]}; give an integer from 0 to {MAX_SEED}, or leave it out")
    return seed
