"""A text for every line of a file, by processes of a cluster."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import Any, Final, final

import click

from draftwood.cli.job.file import reported, run_file, task_of
from draftwood.cli.job.lines import Line
from draftwood.cli.job.output import Output
from draftwood.cli.job.resume import facts_of
from draftwood.cli.settings import Opened, Settings
from draftwood.core.seeds import seed_or_random
from draftwood.core.token_texts import TokenTexts
from draftwood.ray.cluster import Fleet, connected, sentence_of
from draftwood.ray.spec import ReplicaSpec, on_this_node

_TURNS: Final = 4
"""Lines of a block that Ray hands out, for each text written at a time: the next takes the place of one that ends."""


def run_cluster(settings: Settings, spec: ReplicaSpec, fleet: Fleet) -> int:
    """As :func:`run_file`, by processes of a cluster.

    Raises:
        ConfigError: as :func:`run_file` and :func:`connected`.
        ModelError: models that a process cannot load; it names the node.
    """
    return run_file(settings, partial(_complete, spec, fleet))


def _complete(spec: ReplicaSpec, fleet: Fleet, settings: Settings, out: Output, lines: Sequence[Line]) -> None:
    """Do the remaining lines with the settings of the resumed run. A record is written as soon as its block is done."""
    first_seed = seed_or_random(out.first_seed if settings.seed is None else settings.seed)
    left = [line for line in lines if line.index not in out.done]
    rows = [
        {"line": json.dumps(asdict(replace(line, seed=line.seed_after(first_seed))))}
        for line in left or lines[:1]  # a line that is done shows the settings of this run
    ]
    size = settings.files.batch_size * _TURNS
    try:
        with connected(fleet) as ray:
            written = ray.data.from_items(rows, override_num_blocks=math.ceil(len(rows) / size)).map_batches(
                Writer,
                batch_size=size,
                compute=ray.data.ActorPoolStrategy(size=fleet.replicas),
                fn_constructor_args=(spec, settings, first_seed),
                num_cpus=fleet.cpus,
                num_gpus=fleet.gpus,
            )
            for number, block in enumerate(written.iter_batches(batch_size=None)):
                records = [json.loads(record) for record in block["record"]]
                if number == 0:
                    out.begin(records[0]["settings"])
                new = [record for record in records if record["index"] not in out.done]
                out.write(map(reported, new))
    except KeyboardInterrupt:
        raise out.interrupted(f"seed {first_seed}") from None
    except Exception as error:
        raise sentence_of(str(error)) or error from error
    click.echo(f"{len(left)} prompts by {fleet.replicas} processes, seed {first_seed}", err=True)


@final
class Writer:
    """Writes the texts of blocks of lines, for ``map_batches``. Ray Data starts and replaces the processes."""

    def __init__(self, spec: ReplicaSpec, settings: Settings, first_seed: int) -> None:
        self._spec, self._settings, self._first_seed = spec, settings, first_seed

    @cached_property
    def _opened(self) -> Opened[Any]:
        """Loaded for the first block: Ray tries a constructor again and again, and reports its errors at length."""
        pair = self._spec.load()
        with on_this_node():
            return self._settings.opened(pair)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The records of lines, of which one that cannot be written has an error.

        Raises:
            ConfigError, ModelError: as :meth:`ReplicaSpec.load`, or settings that the models refuse: each names the node.
        """
        opened, settings = self._opened, self._settings
        held = {"settings": facts_of(settings, opened, self._first_seed)}
        tasks = [task_of(Line(**json.loads(line)), settings, opened, self._first_seed, held) for line in batch["line"]]
        records = [record for request, record in tasks if request is None]
        begun = [(request, record) for request, record in tasks if request is not None]
        texts = TokenTexts(opened.session.tokenizer)
        extra = {"method": asdict(opened.method), "engine": opened.session.target.engine, **held}
        requests, size = [request for request, _ in begun], settings.files.batch_size
        for at, result in opened.decoder.results(requests, opened.sampling, rows=size):
            records.append({**begun[at][1], **result.to_json(texts), **extra})
        return {"record": [json.dumps(record) for record in records]}
