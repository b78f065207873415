"""The cluster: where it is, and whether it has what is wanted."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any, Final, final

from draftwood.core.checks import integer, number, setting
from draftwood.core.errors import ConfigError, ModelError, needs

_SECONDS: Final = 5.0
"""An address that does not answer for so long is refused. Ray itself would ask for a minute."""
JOIN_SECONDS: Final = 30.0
"""Nodes of a cluster that is just starting get so long to join it."""
_OURS: Final = re.compile(r"draftwood\.core\.(?:errors|unknown)\.(\w+): (.+)")


@final
@dataclass(frozen=True, kw_only=True)
class Fleet:
    """How many processes there are, what each one gets, and where.

    Raises:
        ConfigError: a value out of range.
    """

    replicas: int = setting(1, "processes, each with models of its own")
    cpus: float = setting(1.0, "CPUs of each process, and its threads unless --threads is given")
    gpus: float = setting(0.0, "GPUs of each process")
    address: str | None = setting(
        None, "a cluster's address, such as auto or 10.0.0.1:6379; default: RAY_ADDRESS, else this machine"
    )

    def __post_init__(self) -> None:
        integer("replicas", self.replicas, 1)
        for name in ("cpus", "gpus"):
            if number(name, getattr(self, name)) < 0:
                raise ConfigError(f"{name} is {getattr(self, name):g}: give 0 or more")

    def check(self, nodes: list[dict[str, float]]) -> None:
        """Refuse what the cluster has not, for which Ray would wait for ever.

        Args:
            nodes: the resources of every node.

        Raises:
            ConfigError: names the resource.
        """
        for name, each in (("CPU", self.cpus), ("GPU", self.gpus)):
            have = [node.get(name, 0.0) for node in nodes]
            if each and sum(int(one / each + 1e-9) for one in have) < self.replicas:
                raise ConfigError(
                    f"replicas is {self.replicas} with {each:g} {name}s each, but the cluster has {sum(have):g} {name}s, at "
                    f"most {max(have, default=0.0):g} on one node: give fewer, or add nodes"
                )


def installed() -> Any:
    """The package ``ray``.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import ray.data
        import ray.serve
    except ModuleNotFoundError as error:
        raise ConfigError(needs("this", str(error.name), "ray")) from error
    return ray


@contextmanager
def connected(fleet: Fleet) -> Iterator[Any]:
    """The package ``ray``, connected to the cluster, or to one of this machine that ends with the block.

    Raises:
        ConfigError: no Ray, nobody at the address, or a cluster that is too small.
    """
    ray = installed()
    _check_answers(fleet.address)
    try:
        ray.init(address=fleet.address, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no cluster was found at {fleet.address or 'RAY_ADDRESS'} ({str(error).splitlines()[0]}): start one with ray "
            "start --head, or give its --address"
        ) from error
    try:
        _check_room(ray, fleet)
        yield ray
    finally:
        ray.shutdown()


def _check_room(ray: Any, fleet: Fleet) -> None:
    """Raise a ConfigError where the cluster is too small, also after the time that its nodes get to join."""
    end = monotonic() + (JOIN_SECONDS if fleet.address else 0.0)
    while True:
        try:
            return fleet.check([node["Resources"] for node in ray.nodes() if node["Alive"]])
        except ConfigError:
            if monotonic() >= end:
                raise
        sleep(0.5)


def _check_answers(address: str | None) -> None:
    """Raise a ConfigError where nobody listens at ``host:port``, with or without ``ray://`` before it."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS).close()
    except OSError as error:
        raise ConfigError(
            f"nobody answers at {address} ({error.strerror or error}): give the address that ray start --head has shown"
        ) from None


def sentence_of(text: str) -> ConfigError | ModelError | None:
    """The error of Draftwood that a report of Ray ends with; None if there is none."""
    found = _OURS.findall(text)
    if not found:
        return None
    name, said = found[-1]
    return ModelError(said) if name == "ModelError" else ConfigError(said)
