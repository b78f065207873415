"""Every command in README and docs runs from a checkout as it stands; options are added that only make it shorter."""

import re
import shlex
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

import draftwood
from benchmarks.__main__ import main as benchmarks
from draftwood import LoadOptions
from draftwood.cli import comparison, main
from draftwood.serve.run import Server
from tests.serve.conftest import live_server, make_service

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"draftwood ": main, "python -m benchmarks ": benchmarks}
BENCH = "--repeats 1 --max-new-tokens 2 --temperatures 1"
SLOWER = "--backend native --drafts none --states new --batch 1 --temperatures 0 --max-new-tokens 2 --repeats 1"
SHORTER = {  # the longest beginning of a command -> options that make it shorter
    "generate": "--max-new-tokens 3",
    "chat": "--max-new-tokens 3",
    "translate": "--max-new-tokens 3",
    "check": "--samples 64 --new-tokens 10",
    "check --enumerate": "--top-k 2",
    "tune": "--minutes 0.01 --max-new-tokens 16 --temperature 1",
    "tune --input": "--minutes 0.01 --max-new-tokens 16",
    "trace": "--max-new-tokens 3",
    "trace --input": "",
    "info": "",
    "models": "",
    "pull": "--help",
    "serve": "--port 0",
    "serve --target": "--help",  # of files that are not here; tests/serve/test_several.py runs such servers
    "ray": "--help",
    "benchmarks generate": f"{BENCH} --methods ar,generate --prompts-per-source 1",
    "benchmarks never-slower": SLOWER,
    "benchmarks never-slower --target smollm2": "--help",
    "benchmarks divergence": "--pieces 1 --tokens 4",
    "benchmarks cost --backend native --target random-1b": "--help",  # a file of 700 MB
    "benchmarks cost": "--tokens 1 --tokens 2 --context 8 --repeats 1 --backend torch",
    "benchmarks start": "--help",  # tests/benchmarks/test_start.py runs it
    "benchmarks clients": "--help",
    "benchmarks schemas": "--help",
    "benchmarks serve-load": "--url {url} --concurrency 2 --requests 4 --repeats 1 --max-new-tokens 8",
    "benchmarks serve-soak": "--url {url} --requests 10 --growth 1",
    "benchmarks serve-fuzz": "--url {url} --requests 20 --cases 0",
    "benchmarks serve-prefix": "--help",
}


def commands(page):
    """Lines of its blocks that begin with a program's name, in order, without comments."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").split("\n")
    return [re.sub(r"\s+#.*", "", line) for line in lines if line.startswith(tuple(PROGRAMS))]


def parts(command):
    """The program, and its arguments."""
    name = next(name for name in PROGRAMS if command.startswith(name))
    return PROGRAMS[name], shlex.split(command.removeprefix(name))


def shortened(command, url=""):
    """Its arguments and what makes it shorter: given twice, an option's last value counts; ``url`` is that of a server."""
    arguments = parts(command)[1]
    line = " ".join(shlex.split(command.removeprefix("python -m ").removeprefix("draftwood ")))
    longest = max((start for start in SHORTER if f"{line} ".startswith(f"{start} ")), key=len, default=None)
    assert longest is not None, f"say in SHORTER what makes {command!r} shorter"
    return [*arguments, *SHORTER[longest].format(url=url).split()]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The cache of all pages: a model is converted once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def seen():
    """Commands that ran and wrote no files: they would do the same on every page."""
    return set()


@pytest.fixture
def checkout(tmp_path, cache, monkeypatch):
    """A folder that holds what a checkout holds, and may be written to."""
    for name in ("src", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DRAFTWOOD_CACHE", str(cache))
    monkeypatch.setattr(Server, "main_loop", ends_at_once)
    monkeypatch.setattr(comparison, "SECONDS", 0.0)  # one run of each
    return tmp_path


@pytest.fixture(scope="module")
def url():
    """The address of a server of the bundled pair."""
    pair = draftwood.load(options=LoadOptions(backend="native", dtype="float32", profile="none"))
    with live_server(make_service(pair)) as live:
        assert httpx2.get(f"{live.url}/health").status_code == 200  # it is in its main loop
        yield live.url


async def ends_at_once(server):
    """A server that runs no longer than it takes to start."""
    assert server.started


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs_from_a_checkout_as_it_stands(url, page, checkout, seen):
    for command in commands(page):
        if command in seen:
            continue
        files = set(checkout.rglob("*"))
        run = CliRunner().invoke(parts(command)[0], shortened(command, url))
        assert run.exit_code == 0, f"{command}\n{run.output}\n{run.exception!r}"
        if set(checkout.rglob("*")) == files:
            seen.add(command)


def test_commands_name_no_model_or_file_that_a_checkout_lacks():
    found = [command for page in PAGES for command in commands(page)]
    assert len(found) > 40
    for command in found:
        assert not re.search(r"\b(TARGET|DRAFT|TEXTS|PAIRS|FILE|FOLDER)\b|\.\.\.|\bdata/", command), command
