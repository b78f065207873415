"""What a process of a cluster is made of: names and settings."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

from draftwood.core.errors import ConfigError, DraftwoodError, ModelError
from draftwood.core.settings import LoadOptions, Method
from draftwood.serve.http.settings import ServeOptions

if TYPE_CHECKING:
    from draftwood.api import Pair


@final
@dataclass(frozen=True, kw_only=True)
class ReplicaSpec:
    """What every process loads and how it writes. Names travel, models never do.

    A folder or file that exists here is named in full, since processes on other machines start in other folders.

    Attributes:
        target, draft: names as for :func:`draftwood.load`; without a target the bundled pair.
        loading: how the models are loaded; ``threads`` are by default the CPUs that Ray gives to the process.
        method: of drafting.
        serving: of the server. A file of keys is read by each replica, so every node has one at this path.

    Raises:
        ConfigError: an unknown argument.
    """

    target: str | None = None
    draft: str | None = None
    loading: LoadOptions = field(default_factory=LoadOptions)
    method: Method = field(default_factory=Method)
    serving: ServeOptions = field(default_factory=ServeOptions)

    def __post_init__(self) -> None:
        keys = self.serving.api_key_file
        found = {
            "target": _full(self.target),
            "draft": _full(self.draft),
            "loading": replace(self.loading, profile=_full(self.loading.profile) or "auto"),
            "serving": replace(self.serving, api_key_file=None if keys is None else keys.absolute()),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def load(self) -> Pair:
        """The models, in this process, with its threads.

        Raises:
            ConfigError, ModelError: as :func:`draftwood.load`; the sentence names this node.
        """
        from draftwood.api import load
        from draftwood.loading.models import quiet_loading

        quiet_loading()
        threads = self.loading.threads or given_cpus()
        with on_this_node():
            return load(self.target, self.draft, options=replace(self.loading, threads=threads))


def _full(name: str | None) -> str | None:
    return str(Path(name).absolute()) if name is not None and Path(name).exists() else name


def given_cpus() -> int | None:
    """The CPUs that Ray gave to this process, rounded down, at least 1; None where Ray gave none."""
    import ray

    if not ray.is_initialized():  # a replica of Ray's local testing mode
        return None
    found = ray.get_runtime_context().get_assigned_resources().get("CPU")
    return None if not found else max(1, int(found))


@contextmanager
def on_this_node() -> Iterator[None]:
    """A context whose errors name the node.

    Raises:
        ConfigError, ModelError: what was raised, with the node's name.
    """
    try:
        yield
    except (DraftwoodError, OSError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else ModelError
        raise kind(f"on node {socket.gethostname()}: {error}") from None
