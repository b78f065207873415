"""Lines of an input file, prompts as JSON or sentences; and checks of input and output. A bad line gets an error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn, final

from draftwood.cli.output_options import GrammarOptions, LogprobOptions
from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError
from draftwood.core.files import check_readable, check_writable
from draftwood.core.limits import Limits
from draftwood.core.settings import MAX_SEED, Method
from draftwood.sampling.settings import ONLY_PYTHON, Sampling

NOT_UTF8 = "this is not UTF-8 text: convert the file, for example with iconv"
_MARK = b"\xef\xbb\xbf"  # byte order mark, which some editors write

_LEVELS = 100  # the deepest nesting of an id
_PER_RUN = {f.name for cls in (Sampling, Limits, Method, GrammarOptions, LogprobOptions) for f in fields(cls)}.difference(
    ONLY_PYTHON
)


@final
@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the input.

    Attributes:
        index: line number, from 0.
        source: the whole line without its end; U+FFFD replaces invalid UTF-8.
        text: the text to continue or to translate.
        seed: the line's own seed.
        carried: keys of the line that are copied to its record.
        error: why the line cannot be used.
    """

    index: int
    source: str
    text: str = ""
    seed: int | None = None
    carried: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    def seed_after(self, first: int) -> int:
        """The line's own seed, else the first line's plus the index."""
        seed = self.seed if self.seed is not None else first + self.index
        if seed > MAX_SEED:
            raise ConfigError(f"seed {first} plus line number {self.index} is above {MAX_SEED}: give a smaller --seed")
        return seed


def name_of_input(path: Path) -> str:
    """The name of an input in messages."""
    return "standard input" if str(path) == "-" else str(path)


def read_lines(path: Path) -> list[bytes]:
    """All lines of a file without their line feeds, or of standard input if the path is ``-``.

    Not ``splitlines()``: JSON and sentences may hold separators such as U+2028.
    """
    try:
        if str(path) == "-" and sys.stdin is None:
            raise ConfigError("the input is -, but standard input is closed: name a file")
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise ConfigError(f"input file {name_of_input(path)} cannot be read: {error.strerror}") from error
    *lines, last = data.removeprefix(_MARK).split(b"\n")
    return [*lines, last] if last else lines


def read_sentences(path: Path) -> list[Line]:
    """A text per line of a file, or of standard input if the path is ``-``."""
    return [_sentence(i, line.removesuffix(b"\r")) for i, line in enumerate(read_lines(path))]


def _sentence(index: int, data: bytes) -> Line:
    text = data.decode("utf-8", errors="replace")
    return Line(index=index, source=text, text=text, error=None if text.encode() == data else NOT_UTF8)


def read_prompts(path: Path) -> list[Line]:
    """All lines of a file, or of standard input if the path is ``-``. Blank lines are skipped but numbered."""
    lines = [line for i, data in enumerate(read_lines(path)) if (line := _prompt_line(i, data)) is not None]
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


def _prompt_line(index: int, data: bytes) -> Line | None:
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


def check_files(source: Path | None, output: Path | None) -> None:
    """Refuse files that cannot be read and written, before models are loaded; ``-`` is standard input."""
    if source is None:
        return
    if str(source) != "-":
        check_readable(source)
    if output is None:
        return
    check_output(output)
    if output.exists() and source.exists() and output.samefile(source):
        raise ConfigError(f"--input and --output are the same file, {source}: name another --output")


def check_output(path: Path) -> None:
    """Raise a ConfigError for a file that cannot be written, before the work begins."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"output {path} is not a regular file: name one, or leave --output out for standard output")
    check_writable(path, "--output")
    if path.exists() and not os.access(path, os.W_OK):  # records are appended
        raise ConfigError(f"output {path} cannot be written: permission denied; name another --output")
