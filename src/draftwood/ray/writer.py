"""Texts for the rows of a dataset of Ray Data."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final, TypeAlias, final

from draftwood.core.checks import integer, short_repr
from draftwood.core.errors import CacheError, ConfigError, NumericsError
from draftwood.core.settings import MAX_SEED
from draftwood.core.token_logprobs import LogprobSettings
from draftwood.ray.cluster import Fleet, installed
from draftwood.ray.spec import ReplicaSpec, on_this_node

TURNS: Final = 4
"""Rows of a batch that Ray hands out, for each text that is written at a time: the next takes the place of one that ends."""
ADDED: Final = ("text", "token_ids", "finish_reason", "error", "record")
"""The columns of the texts."""
Facts: TypeAlias = Callable[..., Mapping[str, Any]]
"""Describes how texts are written, from the keywords ``pair``, ``decoder``, ``sampling`` and ``method``."""


@final
@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """What is written for a row.

    Attributes:
        prompt: the column with the texts to continue.
        id: the column with the rows' ids, integers or texts; no two rows have the same one.
        seed: of the job. A row's own is this plus its id, as ``draftwood generate --input`` counts lines; of a text as id,
            its digest is added. A column ``seed`` with integers overrules it, row by row.
        sampling: fields of :class:`draftwood.Sampling` that replace the target's own.
        limits: fields of :class:`draftwood.Limits`.
        logprobs: the log-probabilities in ``record``; None for none.
        rows: texts that a process writes at a time.

    Raises:
        ConfigError: a value of another type or out of range.
    """

    prompt: str = "prompt"
    id: str = "id"
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    logprobs: LogprobSettings | None = None
    rows: int = 8

    def __post_init__(self) -> None:
        integer("seed", self.seed, 0, MAX_SEED)
        integer("rows", self.rows, 1)

    def seed_of(self, name: Any, own: Any = None) -> int:
        """The seed of a row, from the job's and its id alone, so that it is the same on every node and after every fault.

        Raises:
            ConfigError: an id or a seed that cannot be one.
        """
        if own is not None and own == own:  # not NaN, which stands for a missing integer
            seed = integer("seed", int(own) if isinstance(own, float) and own.is_integer() else own)
        elif isinstance(name, str):
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:8]
            seed = (self.seed + int.from_bytes(digest)) % (MAX_SEED + 1)
        elif isinstance(name, int) and not isinstance(name, bool):
            seed = self.seed + name
        else:
            raise ConfigError(f"{self.id} is {short_repr(name)}: give an integer or a text as id")
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"the seed of row {short_repr(name)} would be {seed}: seeds are from 0 to {MAX_SEED}")
        return seed


@final
class Writer:
    """Writes the texts of blocks, for ``dataset.map_batches``; Ray Data starts some of them, and replaces those that die.

    A row that cannot be written has an ``error``, and the others go on.

    Args:
        spec: what it loads.
        settings: what it writes.
        facts: describes the settings of the texts in ``record``.
    """

    def __init__(self, spec: ReplicaSpec, settings: WriteSettings, facts: Facts | None = None) -> None:
        self._spec, self._settings, self._facts = spec, settings, facts

    @cached_property
    def _texts(self) -> _Texts:
        """Made for the first batch: Ray tries a constructor again and again, and reports its errors at length."""
        return _Texts(self._spec, self._settings, self._facts)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a batch, and further ones.

        They are ``text``, ``token_ids``, ``finish_reason``, ``error`` and ``record``: everything that ``draftwood generate
        --input`` says of a text, as JSON. Of a row with an error, the first three are empty.

        Raises:
            ConfigError, ModelError: as :meth:`ReplicaSpec.load`, or settings that the models refuse: each names the node. Or
                a column is missing, or has the name of a new one.
        """
        wanted, texts = self._settings, self._texts
        check_columns(list(batch), wanted)
        names, prompts = batch[wanted.id].tolist(), batch[wanted.prompt].tolist()
        seeds = batch["seed"].tolist() if "seed" in batch else [None] * len(names)
        return {**batch, **_columns(texts.records(list(zip(names, prompts, seeds, strict=True))))}


def _columns(made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of records. Each value is an object: token ids differ in number, and texts in length."""
    import numpy as np

    found = {name: [one.get(name, "") for one in made] for name in ("text", "finish_reason", "error")}
    found["record"] = [json.dumps(one, ensure_ascii=False) for one in made]
    found["token_ids"] = [np.array(one.get("token_ids", []), dtype=np.int64) for one in made]
    return {name: np.fromiter(values, dtype=object, count=len(made)) for name, values in found.items()}


@final
class _Texts:
    """Loaded models and the texts that they write."""

    def __init__(self, spec: ReplicaSpec, settings: WriteSettings, facts: Facts | None) -> None:
        from draftwood.core.token_texts import TokenTexts

        self._settings, self._pair = settings, spec.load()
        with on_this_node():
            self._sampling = self._pair.own_sampling(settings.sampling)
            self._limits = replace(self._pair.limits, **settings.limits)
            method = self._pair.method(spec.method, temperature=self._sampling.temperature)
            self._decoder = self._pair.decoder(spec.method, temperature=self._sampling.temperature)
            self._decoder.pipeline.check(self._sampling)
            parts = {"pair": self._pair, "decoder": self._decoder, "sampling": self._sampling, "method": method}
            held = {} if facts is None else {"settings": facts(**parts)}
        self._held: Mapping[str, Any] = held
        self._more = {"method": asdict(method), "engine": self._pair.target.engine, **held}
        self._texts = TokenTexts(self._pair.tokenizer)

    def records(self, rows: Sequence[tuple[Any, Any, Any]]) -> list[dict[str, Any]]:
        """What is known of the text of each row, or its error."""
        requests, made = {}, [dict[str, Any]() for _ in rows]
        for i, (name, prompt, own) in enumerate(rows):
            try:
                seed = self._settings.seed_of(name, own)
                [request] = self._pair.requests([prompt], self._limits, [seed], self._settings.logprobs)
                self._decoder.pipeline.check_room(request)
                requests[i] = request
            except (CacheError, ConfigError) as error:
                made[i] = {"error": str(error), **self._held}
        for i, found in self._written(requests):
            made[i] = found
        return made

    def _written(self, requests: Mapping[int, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The record of each request. After scores that are NaN, the rest are written one by one: the error is one row's."""
        left = dict(requests)
        try:
            order = list(left)
            for place, result in self._decoder.results(list(left.values()), self._sampling, rows=self._settings.rows):
                left.pop(order[place])
                yield order[place], {**result.to_json(self._texts), **self._more}
        except NumericsError as error:
            if len(left) == 1:
                yield from ((i, {"error": str(error), **self._held}) for i in left)
                return
            for i, request in left.items():
                yield from self._written({i: request})


def check_columns(columns: Sequence[str], settings: WriteSettings) -> None:
    """Raise a ConfigError if a column is missing, or has the name of one that is added."""
    for what, name in (("prompts", settings.prompt), ("ids", settings.id)):
        if name not in columns:
            raise ConfigError(
                f"the dataset has no column {name!r} for the {what}: it has {', '.join(map(repr, columns))}; name it in the "
                "settings"
            )
    if taken := [name for name in ADDED if name in columns]:
        raise ConfigError(f"the dataset has a column {taken[0]!r} already, which the texts would replace: rename it")


def write(dataset: Any, spec: ReplicaSpec, settings: WriteSettings, *, replicas: int = 1, cpus: float = 1.0,
          gpus: float = 0.0) -> Any:  # fmt: skip
    """The dataset with a text for every row, as :meth:`Writer.__call__` says. The ids are read at once, to compare them.

    Args:
        dataset: of Ray Data.
        spec: what each process loads.
        settings: what it writes.
        replicas: processes.
        cpus, gpus: of each one; the CPUs are its threads too.

    Raises:
        ConfigError: no Ray, a column that is missing or has the name of a new one, ids that repeat, or a value out of range.
    """
    check_columns(dataset.schema().names, settings)
    parts = dataset.select_columns([settings.id]).iter_batches(batch_size=None)
    counts = Counter(name for part in parts for name in part[settings.id].tolist())
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(f"ids repeat in column {settings.id!r}, such as {repeated[0]!r}: give every row its own")
    return mapped(dataset, spec, settings, Fleet(replicas=replicas, cpus=cpus, gpus=gpus))


def mapped(dataset: Any, spec: ReplicaSpec, settings: WriteSettings, fleet: Fleet, facts: Facts | None = None) -> Any:
    """As :func:`write`, where the rows are known to be in order."""
    data = installed().data
    return dataset.map_batches(
        Writer,
        batch_size=settings.rows * TURNS,
        compute=data.ActorPoolStrategy(size=fleet.replicas),
        fn_constructor_args=(spec, settings, facts),
        num_cpus=fleet.cpus,
        num_gpus=fleet.gpus,
    )
