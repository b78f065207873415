"""The options of the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Final, Literal, TypeAlias, final, get_args, get_origin, get_type_hints

from draftwood.core.checks import choice, integer, number, setting, several
from draftwood.core.errors import ConfigError
from draftwood.loading.names import models_in
from draftwood.serve.http.log import LogFormat

UnknownFields: TypeAlias = Literal["remark", "refuse"]
ToolParser: TypeAlias = Literal[
    "auto", "hermes", "llama3_json", "mistral", "qwen3_coder", "glm45", "deepseek_v3", "deepseek_v31", "harmony", "gemma4",
    "granite", "phi4_mini", "lfm2",
]  # fmt: skip
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/*?#@]+")
_NUMBER: Final = r"(?:\d+\.?\d*|\.\d+)"
_DURATION: Final = re.compile(rf"[-+]?(?:{_NUMBER}|(?:{_NUMBER}(?:ns|us|µs|μs|ms|s|m|h))+)")
_PART: Final = re.compile(rf"({_NUMBER}(?:e[-+]?\d+)?)([a-zµμ]*)")
_UNITS: Final = {"": 1, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
KEEP_ALIVE_SECONDS: Final = 8.0
"""A stream that is silent for so long gets a comment: clients and proxies wait for 10, also where a machine is busy."""


@final
@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """Address, keys and limits.

    Raises:
        ConfigError: a value out of range, or a host that others reach without a key.
    """

    host: str = setting("127.0.0.1", "address; others than this machine's own need a key")
    port: int = setting(8000, "port; 0 takes a free one")
    name: tuple[str, ...] = setting((), "name of the model in the interface; can be repeated; default: the target's")
    keep_alive: str = setting("5m", "how long each of several models stays without a request; -1: for ever")
    any_model: bool = setting(False, "answer requests for models of any name")
    unknown_fields: UnknownFields = setting(
        "remark", "fields that are not known: ignored with a remark in the answer, or refused"
    )
    api_key_file: Path | None = setting(None, "file with keys, one per line; requests need one")
    cors_origin: tuple[str, ...] = setting(
        (), "origin whose pages may call the server from a browser, such as http://localhost:3000; can be repeated"
    )
    no_key: bool = setting(False, "let everybody who reaches the host write texts")
    max_rows: int = setting(8, "the most texts that are written at a time")
    max_queue: int = setting(64, "the most texts that wait; further requests get status 429")
    max_length: int | None = setting(None, "the most tokens of prompt and text together; default: the target's context")
    max_memory: float | None = setting(
        None, "GiB for keys and values of all texts; default: half of what is free at the start"
    )
    prefix_memory: float = setting(
        1.0,
        "GiB of these that texts may take after their end, for later ones that begin alike; the last one stays at any size",
    )
    cache_dir: Path | None = setting(
        None, "folder in which texts of the prefix cache stay when they leave the memory, also after the server's end"
    )
    cache_size: float = setting(8.0, "GiB of files in it; the least recently used ones go first")
    no_prefix_cache: bool = setting(False, "read every prompt as a whole, also where a text that has ended begins alike")
    share_prefixes: bool = setting(False, "let requests of all keys share the prefix cache, not only those of one key")
    history: Literal["none", "key", "all"] = setting(
        "none",
        "drafts from earlier texts: none, of the same key, or of all keys: speed then shows what others have written",
    )
    adapt: Path | None = setting(
        None, "folder of texts that the drafter learns from while the server runs, for its next start; see 'draftwood adapt'"
    )
    max_traces: int = setting(16, "the most traces that are kept; 0 keeps none, and has no page")
    special_tokens_in_content: bool = setting(False, "names of special tokens in messages become these tokens, not text")
    no_tools: bool = setting(False, "refuse requests with tools")
    tool_parser: ToolParser = setting("auto", "how the model writes tool calls; auto: as its chat template does")
    reasoning_parser: Literal["auto", "none"] = setting(
        "auto", "auto splits what is between think tags off the content; none leaves it there"
    )
    thinking_budget: Literal["remark", "force"] = setting(
        "remark", "budgets of thoughts: not counted, with a remark in the answer, or force, which closes a thought there"
    )
    log: LogFormat = setting("text", "log on standard error: a line for each request, or off for warnings and errors only")
    drain: float = setting(30.0, "seconds that running texts get to end after SIGTERM")

    def __post_init__(self) -> None:
        integer("port", self.port, 0, 65535)
        for name, least in (("max_rows", 1), ("max_queue", 0), ("max_length", 2), ("max_traces", 0)):
            if (value := getattr(self, name)) is not None:
                integer(name, value, least)
        if number("drain", self.drain) < 0:
            raise ConfigError(f"drain is {self.drain}: give 0 or more seconds")
        for name in ("max_memory", "prefix_memory", "cache_size"):
            value = getattr(self, name)
            if value is not None and number(name, value) <= 0:
                raise ConfigError(f"{name} is {value}: give more than 0 GiB, or leave it out")
        try:
            seconds_of(self.keep_alive)
        except ValueError as error:
            raise ConfigError(f"keep_alive is {self.keep_alive!r}: {error}") from None
        for name, kind in get_type_hints(ServeOptions).items():
            if get_origin(kind) is Literal:
                choice(name, getattr(self, name), get_args(kind))
        several("name", self.name, str, "names")
        if not all(name.strip() for name in self.name):
            raise ConfigError("name is empty: give the name of the model in the interface, or leave it out")
        several("cors_origin", self.cors_origin, str, "origins")
        for origin in self.cors_origin:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origin is {origin!r}: give a scheme and a host as browsers send them, without a path"
                )
        if "*" in self.cors_origin and self.api_key_file is not None:
            raise ConfigError("cors_origin is *, but there are keys, which any page could then try: name the origins")
        for one, other, why in (
            ("history", "no-prefix-cache", "--history keeps texts that have ended, and --no-prefix-cache keeps none"),
            ("cache-dir", "no-prefix-cache", ""),
            ("api-key-file", "no-key", ""),
        ):
            wanted, without = (getattr(self, name.replace("-", "_")) for name in (one, other))
            if wanted not in (None, "none") and without:
                raise ConfigError(f"{why or f'--{one} and --{other} exclude each other'}: leave one of them out")
        if not is_loopback(self.host) and self.api_key_file is None and not self.no_key:
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and there is no key: give --api-key-file FILE, or "
                "--no-key if everybody may write texts"
            )


def seconds_of(duration: float | str) -> float:
    """The seconds of a number, or of a duration such as ``5m``; a negative one is for ever. Raises a ValueError."""
    text = str(duration)
    if isinstance(duration, str) and not _DURATION.fullmatch(text):
        raise ValueError('give seconds, or a duration such as "5m"')
    found = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return inf if text.startswith("-") and found else found


@final
@dataclass(frozen=True, kw_only=True)
class Targets:
    """The models of a server, by options that may be repeated."""

    target: tuple[str, ...] = setting(
        (), "hub name, folder, GGUF file or short name ('draftwood models'), or a folder of models; can be repeated; "
        "NAME=TARGET gives it a name; default: the bundled model",
    )  # fmt: skip
    draft: tuple[str, ...] = setting(
        (), "small model that drafts, best with the target's tokenizer; none: no model drafts; of several targets NAME=DRAFT"
    )

    @property
    def several(self) -> bool:
        """Whether there are several, which are loaded on request."""
        return len(self.target) > 1 or any(self._folder(target) for target in self.target)

    @staticmethod
    def _folder(target: str) -> list[Path]:
        """The models of a folder that stands for several."""
        found = models_in(Path(target)) if Path(target).is_dir() else []
        return [] if [path.parent for path in found] == [Path(target)] and found[0].is_file() else found

    @property
    def models(self) -> dict[str, tuple[str | None, str | None]]:
        """Target and draft of each model by its name in the interface.

        Raises:
            ConfigError: two models of one name, or a draft for none of several.
        """
        found: dict[str, tuple[str | None, str | None]] = {}
        for given in self.target or (None,):
            alias, target = _named(given)
            inside = [] if target is None else self._folder(target)
            if alias and inside:
                raise ConfigError(f"--target {given} names a folder of {len(inside)} models: leave {alias}= out")
            parts: list[tuple[str, str | None]] = [(path.relative_to(str(target)).as_posix(), str(path)) for path in inside]
            for name, one in parts or [(alias or name_of(target), target)]:
                if name in found:
                    raise ConfigError(
                        f"two targets have the name {name!r}: give one of them another, as --target NAME={one}"
                    )
                found[name] = one, None
        for given in self.draft:
            alias, draft = _named(given)
            if not alias and (len(found) == 1 or draft == "none"):
                found |= {name: (target, draft) for name, (target, _) in found.items()}
            elif alias in found:
                found[alias] = found[alias][0], draft
            else:
                listed = ", ".join(found)
                raise ConfigError(f"--draft {given} is for none of the targets: give NAME={draft} with a NAME of {listed}")
        return found


def _named(given: str | None) -> tuple[str, str | None]:
    """A name and what it stands for; without a name it is empty."""
    name, sign, rest = (given or "").partition("=")
    return (name, rest) if sign and rest and "/" not in name and not Path(str(given)).exists() else ("", given)


def name_of(target: str | None) -> str:
    """The name of a model in the interface: of a folder or file its last part."""
    if target is None:
        return "draftwood"  # the bundled pair
    return Path(target).resolve().name if Path(target).exists() else target


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def read_keys(path: Path | None) -> tuple[str, ...]:
    """The keys of a file, one per line; none without a file.

    Raises:
        ConfigError: a file without a key, or with one that HTTP headers cannot hold.
        OSError: the file cannot be read.
    """
    if path is None:
        return ()
    keys = tuple(line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip())
    if not keys:
        raise ConfigError(f"the file {path} holds no key: write one per line")
    if any(not key.isascii() or not key.isprintable() for key in keys):
        raise ConfigError(f"the file {path} holds a key with characters other than printable ASCII: write another one")
    return keys
