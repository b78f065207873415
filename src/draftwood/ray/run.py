"""The application in a cluster, until a signal ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from draftwood.core.errors import ConfigError
from draftwood.ray.cluster import Fleet, connected, sentence_of
from draftwood.ray.replica import NAME, app
from draftwood.ray.spec import ReplicaSpec
from draftwood.serve.settings import is_loopback


def serve(spec: ReplicaSpec, fleet: Fleet, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; texts that are written then get ``drain`` seconds to end.

    Args:
        spec: what each replica loads and how it serves.
        fleet: how many there are, and where.
        ready: is called with the address when all replicas answer.

    Raises:
        ConfigError: as :func:`connected`; a port of 0, or another one than that of the cluster's proxies.
        ModelError: a replica that does not start; it names the node.
    """
    if not (options := spec.serving).port:
        raise ConfigError("port is 0, but Ray has to know the port: give a number, such as 8000")
    with connected(fleet) as ray, _signals() as ended:  # in this order: Ray sets handlers of its own
        others = bool(ray.serve.status().proxies)
        where = "HeadOnly" if is_loopback(options.host) else "EveryNode"
        ray.serve.start(http_options={"host": options.host, "port": options.port, "location": where})
        _check_proxies(ray, options.host, options.port)
        try:
            _run(ray, app(spec, replicas=fleet.replicas, cpus=fleet.cpus, gpus=fleet.gpus))
            host = f"[{options.host}]" if ":" in options.host else options.host
            ready(f"http://{host}:{options.port}")
            ended.wait()
        finally:
            ray.serve.delete(NAME)
            if not others:
                ray.serve.shutdown()


def _run(ray: Any, application: Any) -> None:
    """Start the application, and wait for its replicas; an error is in our own words where it is ours."""
    try:
        ray.serve.run(application, name=NAME, route_prefix="/")
    except RuntimeError as error:
        found = ray.serve.status().applications.get(NAME)
        parts = [str(error)] if found is None else [one.message for one in found.deployments.values()] + [str(error)]
        raise sentence_of("\n".join(parts)) or error from None


def _check_proxies(ray: Any, host: str, port: int) -> None:
    """Raise a ConfigError where Ray Serve runs in the cluster already, with another address, which it keeps."""
    from ray.serve.context import _get_global_client

    found = _get_global_client().http_config
    if (found.host, found.port) != (host, port):
        raise ConfigError(
            f"Ray Serve runs in this cluster already, at {found.host}:{found.port}, and keeps this address: give --host "
            f"{found.host} --port {found.port}, or end it with serve shutdown"
        )


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second Ctrl-C ends at once."""
    ended = threading.Event()

    def end(number: int, frame: object) -> None:
        if ended.is_set():
            raise KeyboardInterrupt
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
