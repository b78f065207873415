"""A text for every line of a file, by processes of a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from draftwood.cli.job.file import failed
from draftwood.cli.job.lines import Line
from draftwood.cli.job.output import Output
from draftwood.cli.job.resume import facts_of
from draftwood.cli.settings import Opened, Settings
from draftwood.core.seeds import seed_or_random
from draftwood.ray.cluster import Fleet, connected, sentence_of
from draftwood.ray.spec import ReplicaSpec
from draftwood.ray.writer import TURNS, WriteSettings, mapped


def complete(spec: ReplicaSpec, fleet: Fleet, settings: Settings, out: Output, lines: Sequence[Line]) -> None:
    """Do the remaining lines, for :func:`run_file`. A record is written as soon as its block is done."""
    first_seed = seed_or_random(out.first_seed if settings.seed is None else settings.seed)
    wanted = WriteSettings(
        id="index",
        sampling=settings.given_of(settings.sampling),
        limits=settings.given_of(settings.limits),
        logprobs=settings.logprobs.wanted,
        rows=settings.files.batch_size,
    )
    left = [line for line in lines if line.index not in out.done]
    todo = left or lines[:1]  # a line that is done shows the settings of this run
    rows = [
        {"index": line.index, "prompt": None if line.error else line.text, "seed": line.seed_after(first_seed)}
        for line in todo
    ]
    by_index = {line.index: line for line in todo}
    try:
        with connected(fleet) as ray:
            blocks = ray.data.from_items(rows, override_num_blocks=math.ceil(len(rows) / (wanted.rows * TURNS)))
            written = mapped(blocks, spec, wanted, fleet, partial(_facts, settings, first_seed))
            for number, block in enumerate(written.iter_batches(batch_size=None, batch_format="pyarrow")):
                found = block.select(_COLUMNS).to_pylist()
                if not number:
                    out.begin(json.loads(found[0]["record"])["settings"])
                out.write(_record(by_index[row["index"]], row) for row in found if row["index"] not in out.done)
    except KeyboardInterrupt:
        raise out.interrupted(f"seed {first_seed}") from None
    except Exception as error:
        raise sentence_of(str(error)) or error from error
    click.echo(f"{len(left)} lines by {fleet.replicas} processes, seed {first_seed}", err=True)


_COLUMNS = ["index", "error", "record"]


def _record(line: Line, row: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a line, as :mod:`draftwood.cli.job.file` makes it."""
    made = json.loads(row["record"])
    if error := line.error or row["error"]:
        return failed(line, error, {"settings": made["settings"]})
    return {"index": line.index, **line.carried, "prompt": line.text, **made}


def _facts(settings: Settings, seed: int, *, pair: Any, decoder: Any, sampling: Any, method: Any) -> dict[str, Any]:
    """The settings of a record; a process of the cluster calls it, since it has the models."""
    return facts_of(settings, Opened(pair, decoder, sampling, method), seed)
