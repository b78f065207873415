"""Which programs' clients work with the server: each one unmodified, at a fixed version, with its most ordinary examples.

An example is a file of ``examples/clients``. Its first line names the packages, and comments such as ``# ---- tools ----``
divide it: what stands before the first one belongs to every part.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import click

from benchmarks.lists import chosen
from draftwood.cli.options import dataclass_options
from draftwood.cli.progress import steps
from draftwood.core.checks import setting
from draftwood.core.errors import ConfigError

EXAMPLES: Final = Path(__file__).parents[1] / "examples" / "clients"
AGENTS: Final = EXAMPLES.with_name("agents")
PARTS: Final = ("plain", "stream", "structured output", "tools")
URL: Final = "http://127.0.0.1:8000"
MODEL: Final = "smollm2"
INSTALL_SECONDS: Final = 1800
RUN_SECONDS: Final = 300
_MARK: Final = re.compile(r"^(?:#|//) ---- (.+) ----$\n", re.MULTILINE)


@final
@dataclass(frozen=True, kw_only=True)
class Example:
    """The example of a client.

    Attributes:
        name: of the client, with the language where there are several.
        kind: ``py``, ``mjs`` or ``sh``.
        packages: what is installed, with versions.
        head: what belongs to every part.
        parts: by name.
    """

    name: str
    kind: str
    packages: Sequence[str]
    head: str
    parts: dict[str, str]

    @staticmethod
    def read(path: Path) -> Example:
        first, _, rest = path.read_text(encoding="utf-8").partition("\n")
        head, *parts = _MARK.split(rest)
        found = dict(zip(parts[::2], parts[1::2], strict=True))
        packages = first.removeprefix("# ").removeprefix("// ").split()
        return Example(name=path.name, kind=path.suffix[1:], packages=packages, head=head, parts=found)


def examples(folder: Path = EXAMPLES) -> list[Example]:
    """All examples of a folder, by name."""
    return [Example.read(path) for path in sorted(folder.iterdir()) if path.suffix in (".py", ".mjs", ".sh")]


@final
@dataclass(frozen=True, kw_only=True)
class ClientsConfig:
    """Which clients run, and against which server.

    Raises:
        ConfigError: an unknown client, or a server for agents.
    """

    url: str | None = setting(None, f"a running server such as {URL}; without it one with {MODEL} is started")
    agents: bool = setting(False, "those of examples/agents, with a model that writes a script")
    only: str = setting("all", "files of the folder, comma-separated")
    output: Path = setting(Path("draftwood-bench"), "folder for the report")

    def __post_init__(self) -> None:
        if self.agents and self.url is not None:
            raise ConfigError(f"url is {self.url}, and agents need a server whose model writes a script: leave --url out")

    def chosen(self) -> list[Example]:
        known = {example.name: example for example in examples(AGENTS if self.agents else EXAMPLES)}
        return [known[name] for name in (known if self.only == "all" else chosen("only", self.only, tuple(known)))]


@final
class Environment:
    """Where the packages of an example are installed: a folder of its own in the cache, which stays for the next run."""

    def __init__(self, example: Example) -> None:
        from draftwood.hardware.machine import cache_folder

        self._example = example
        self.folder = cache_folder() / "clients" / example.name

    def install(self) -> str | None:
        """Install what is not; returns why that failed."""
        listed = self.folder / "packages.txt"
        wanted = "\n".join(self._example.packages)
        if listed.is_file() and listed.read_text() == wanted:
            return None
        npm = "==" not in self._example.packages[0]
        program = "npm" if npm else sys.executable
        if shutil.which(program) is None:
            return f"not run: there is no {program}"
        self.folder.mkdir(parents=True, exist_ok=True)
        commands = [[sys.executable, "-m", "venv", "."], ["bin/pip", "install", "--quiet", *self._example.packages]]
        if npm:
            commands = [["npm", "install", "--no-audit", "--no-fund", "--prefix", ".", *self._example.packages]]
        for command in commands:
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
            if done.returncode:
                return f"not installed: {outcome(done.stderr)}"
        listed.write_text(wanted)
        return None

    def run(self, source: str) -> str:
        """Run a part; returns what came of it."""
        path = self.folder / f"part.{self._example.kind}"
        path.write_text(source, encoding="utf-8")
        program = {"py": "bin/python", "mjs": "node", "sh": "bash"}[self._example.kind]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        own = [str(self.folder / name) for name in ("bin", "node_modules/.bin")]
        environment["PATH"] = os.pathsep.join([*own, environment["PATH"]])
        process = subprocess.Popen(
            [program, "-P", path.name] if program == "bin/python" else [program, path.name],
            cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        try:
            said, errors = process.communicate(timeout=RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"error: it took longer than {RUN_SECONDS} seconds"
        return "works" if process.returncode == 0 else outcome(errors.strip() or said)


def outcome(errors: str) -> str:
    """What a client's errors say: whether the server refused, and its sentence; else the last error."""
    lines = [line.rstrip() for line in errors.splitlines() if line.strip()] or ["it says nothing"]
    lines.sort(key=lambda line: not line[0].isspace())  # source and details, which are indented, come first
    for word, known in (("refused", r"\b(?:400|404)\b|BadRequest|ResponseError|leave it out"), ("error", r"Error\b")):
        if found := [line.strip() for line in lines if re.search(known, line)]:
            return f"{word}: {found[-1][:300]}"
    return f"error: {lines[-1].strip()[:300]}"


def measure(found: Sequence[Example], url: str, model: str, advance: Callable[[], object]) -> dict[str, dict[str, str]]:
    """What came of every part of every example."""
    results: dict[str, dict[str, str]] = {}
    for example in found:
        environment = Environment(example)
        failed = environment.install()
        results[example.name] = {}
        for part, source in example.parts.items():
            whole = (example.head + source).replace(URL, url).replace(MODEL, model)
            results[example.name][part] = failed or environment.run(whole)
            advance()
    return results


def markdown(found: Sequence[Example], results: dict[str, dict[str, str]]) -> str:
    """The table, and below it what does not work."""
    lines = ["| client | packages | " + " | ".join(PARTS) + " |", "|---|---|" + "---|" * len(PARTS)]
    remarks = []
    for example in found:
        cells = [results[example.name].get(part, "") for part in PARTS]
        lines.append(
            f"| {example.name} | {', '.join(example.packages)} | "
            + " | ".join(cell.partition(":")[0] for cell in cells)
            + " |"
        )
        remarks += [
            f"* {example.name}, {part}: {said}" for part, said in zip(PARTS, cells, strict=True) if said not in ("", "works")
        ]
    return "\n".join(["# Clients", "", *lines, "", *remarks]).rstrip() + "\n"


def run(config: ClientsConfig) -> str:
    """The report on clients, with the small model; raises what :func:`serving` raises."""
    from benchmarks.serving.config import Served
    from benchmarks.serving.servers import serving

    found, served = config.chosen(), Served(url=config.url, target=None if config.url else MODEL)
    with serving(served, "--name", MODEL) as server, steps("clients", sum(len(one.parts) for one in found)) as advance:
        return markdown(found, measure(found, server.url, server.model, advance))


@click.command(name="clients")
@dataclass_options(ClientsConfig)
def command(**options: Any) -> None:
    """Run the examples of real clients, or coding agents, each in an environment of its own, and list what works.

    Asked by docs/clients.md.
    """
    from benchmarks import agents
    from draftwood.core.files import replace_file

    config = ClientsConfig(**options)
    report = agents.run(config.chosen()) if config.agents else run(config)
    config.output.mkdir(parents=True, exist_ok=True)
    path = config.output / ("agents.md" if config.agents else "clients.md")
    replace_file(path, report)
    click.echo(report)
    if "| error" in report:
        raise ConfigError(f"some clients failed: {path} says how")
