"""``draftwood ray serve`` and ``draftwood ray write``: as ``serve`` and ``generate --input``, on a cluster of Ray."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import click

from draftwood.cli import serve as one_server
from draftwood.cli.options import Sectioned, Sections, pick
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import SECTIONS, DisplayOptions, Models, Settings, check_fit, check_input
from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions, Method
from draftwood.ray.cluster import Fleet, installed
from draftwood.ray.spec import ReplicaSpec
from draftwood.serve.http.settings import ServeOptions, name_of, read_keys

SERVE_SECTIONS: Sections = {"Cluster": (Fleet,), **one_server.SECTIONS, "Models": (Models, LoadOptions)}
WRITE_SECTIONS: Sections = {"Cluster": (Fleet,), **SECTIONS}


@click.group(name="ray")
def group() -> None:
    """Serve or write texts with several processes, here or on a cluster, by Ray."""


@group.command(
    name="serve", cls=Sectioned, sections=SERVE_SECTIONS, leave_out=("keep_alive", "beta", "tau"),
    changes={"port": {"help": "port of Ray's proxies"}}, short_help="Serve a model with several replicas.",
)  # fmt: skip
def serve(**options: Any) -> None:
    """Serve a model as 'draftwood serve' does, by several replicas of it behind one address.

    Ray starts the replicas, hands each request to one of them, and replaces one that dies. A text follows from its seed and
    settings, whichever replica writes it. SIGTERM or Ctrl-C ends the replicas: running texts get --drain seconds to end.
    """
    spec = _spec(options, pick(ServeOptions, options))
    check_fit(Models(target=spec.target, draft=spec.draft), spec.method, 1.0)
    read_keys(spec.serving.api_key_file)
    installed()

    from draftwood.ray.replica import serve as run

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    names = ", ".join(spec.serving.name or (name_of(spec.target),))
    run(spec, pick(Fleet, options), lambda address: click.echo(f"Serving {names} at {address}/v1", err=True))


@group.command(
    name="write", cls=Sectioned, sections=WRITE_SECTIONS, leave_out=DisplayOptions.__dataclass_fields__,
    short_help="Continue every prompt of a file.",
)  # fmt: skip
def write(**options: Any) -> None:
    """Continue every prompt of a file (--input), as 'draftwood generate --input' does, with several processes.

    Input and output are the same, and each line's text is the same. Lines are written as they are done, so their order may
    differ. The same command resumes a stopped run, and so does 'draftwood generate'. Ray starts the processes, shows the
    progress, and repeats what a lost one has not finished.
    """
    spec = _spec(options, ServeOptions())
    settings = Settings.of(options)
    check_input(settings, None, single=False)
    if settings.files.output is None:
        raise ConfigError("there is no --output: Ray reports on standard output, so the texts go to a file")
    installed()
    with loading_libraries():
        from draftwood.cli.job.cluster import complete
        from draftwood.cli.job.file import run_file
    if run_file(settings, partial(complete, spec, pick(Fleet, options))):
        raise click.exceptions.Exit(1)


def _spec(options: dict[str, Any], serving: ServeOptions) -> ReplicaSpec:
    """What each process loads."""
    models, loading, method = pick(Models, options), pick(LoadOptions, options), pick(Method, options)
    return ReplicaSpec(target=models.target, draft=models.draft, loading=loading, method=method, serving=serving)
