"""A replica of the server for Ray Serve, and the application of several, in a cluster until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, final

from draftwood.core.errors import ConfigError
from draftwood.core.settings import LoadOptions, Method
from draftwood.ray.cluster import Fleet, connected, installed, sentence_of
from draftwood.ray.spec import ReplicaSpec, on_this_node
from draftwood.serve.http.log import start_log
from draftwood.serve.http.settings import ServeOptions, is_loopback, name_of, read_keys

NAME: Final = "draftwood"
_SCALE: Final = ("replicas", "cpus", "gpus", "autoscaling")  # arguments of :func:`app`
_SPARE: Final = 8
"""Requests beyond those for which a replica has room: what it refuses, and those for its health, metrics and models."""
_RETRIES: Final = 3
"""A replica that fails to start so often is given up: a model that is missing will not appear, a dead node is replaced."""


@final
class Replica:
    """One server of several, as Ray Serve runs it. :func:`app` makes the deployment.

    Args:
        spec: what it loads.

    Raises:
        ConfigError, ModelError: as :meth:`ReplicaSpec.load`; keys that cannot be read; an address that others reach, without
            a key. Each names the node.
    """

    async def __init__(self, spec: ReplicaSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        self._service, self._keys = await asyncio.to_thread(_opened, spec)

    async def __serve_build_asgi_app__(self) -> Any:
        """The application, whose lifespan starts the scheduler and stops it."""
        from draftwood.serve.app import make_app
        from draftwood.serve.registry import Registry

        return make_app(Registry.of(self._service), self._keys)

    def check_health(self) -> None:
        """Raise a RuntimeError if no texts are written here any more; Ray then replaces the replica."""
        if (state := self._service.scheduler.state) != "ready":
            raise RuntimeError(f"the scheduler is {state}")


def _opened(spec: ReplicaSpec) -> tuple[Any, Sequence[str]]:
    """The service and its keys."""
    from draftwood.serve.decoding.metrics import Metrics
    from draftwood.serve.service import Service

    with on_this_node():
        replica = _checked_address(spec.serving)
        keys = read_keys(spec.serving.api_key_file)
    if replica is not None:
        start_log(spec.serving.log)
    name = name_of(spec.target)
    metrics = None if replica is None else Metrics("replica").of(replica)
    service = Service(spec.load(), spec.serving, name=name, method=spec.method, metrics=metrics)
    return service, keys


def _checked_address(options: ServeOptions) -> str | None:
    """The id of this replica; None outside of a cluster.

    Raises:
        ConfigError: others reach the address at which Ray's proxies listen, and there is no key.
    """
    ray = installed()
    if not ray.is_initialized():
        return None
    from ray.serve.context import _get_global_client

    replace(options, host=_get_global_client().http_config.host or options.host)
    return str(ray.serve.get_replica_context().replica_id.unique_id)


def app(
    spec: ReplicaSpec,
    *,
    replicas: int = 1,
    cpus: float = 1.0,
    gpus: float = 0.0,
    autoscaling: Mapping[str, Any] | None = None,
) -> Any:
    """The application for ``ray.serve.run``: a text follows from its seed and settings, whichever replica writes it.

    Several replicas keep no traces, since a trace is where its text was written and the next request may go elsewhere.

    Args:
        spec: what each replica loads and how it serves. Address and port are Ray's (``serve.start(http_options=...)``).
        replicas: processes; not with ``autoscaling``.
        cpus, gpus: of each one; the CPUs are its threads too.
        autoscaling: fields of Ray's ``AutoscalingConfig``, such as ``min_replicas`` and ``max_replicas``. By default a
            replica aims at ``max_rows`` requests.

    Raises:
        ConfigError: no Ray, a value out of range, or both ``replicas`` and ``autoscaling``.
    """
    ray = installed()
    fleet, options = Fleet(replicas=replicas, cpus=cpus, gpus=gpus), spec.serving
    if autoscaling is not None and replicas != 1:
        raise ConfigError(f"replicas is {replicas}, and autoscaling chooses their number: leave one of them out")
    if autoscaling is not None or replicas > 1:
        spec = replace(spec, serving=replace(options, max_traces=0))
    scaled = {"target_ongoing_requests": options.max_rows, **(autoscaling or {})}
    number = {"num_replicas": replicas} if autoscaling is None else {"autoscaling_config": scaled}
    deployment = ray.serve.deployment(
        name=NAME,
        max_ongoing_requests=options.max_rows + options.max_queue + _SPARE,
        max_constructor_retry_count=_RETRIES,
        graceful_shutdown_timeout_s=options.drain,
        ray_actor_options={"num_cpus": fleet.cpus, "num_gpus": fleet.gpus},
        **number,
    )
    return deployment(ray.serve.ingress()(Replica)).bind(spec)


def _serving(**values: Any) -> ServeOptions:
    """Options of the server from values that JSON knows."""
    if values.get("api_key_file") is not None:
        values["api_key_file"] = Path(values["api_key_file"])
    name = values.get("name") or ()
    return ServeOptions(**values | {"name": (name,) if isinstance(name, str) else tuple(name)})


def build(args: Mapping[str, Any]) -> Any:
    """:func:`app` from plain values, as the ``args`` of an application in a configuration of Ray Serve.

    Args:
        args: ``target`` and ``draft``; ``loading``, ``method`` and ``serving`` with fields of
            :class:`draftwood.LoadOptions`, :class:`draftwood.Method` and ``ServeOptions``; and the other arguments of
            :func:`app`.

    Raises:
        ConfigError: an unknown name, or a value out of range.
    """
    known = {f.name for f in fields(ReplicaSpec)} | {*_SCALE}
    if unknown := sorted(args.keys() - known):
        raise ConfigError(f"args hold {unknown[0]!r}, which is none of {', '.join(sorted(known))}: leave it out")
    given = dict(args)
    scale = {name: given.pop(name) for name in _SCALE if name in given}
    for name, kind in (("loading", LoadOptions), ("method", Method), ("serving", _serving)):
        if name in given:
            given[name] = kind(**given[name])
    return app(ReplicaSpec(**given), **scale)


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
    with connected(fleet) as ray:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # after Ray, which sets a handler of its own
        others = bool(ray.serve.status().proxies)
        where = "HeadOnly" if is_loopback(options.host) else "EveryNode"
        ray.serve.start(http_options={"host": options.host, "port": options.port, "location": where})
        _check_proxies(ray, options.host, options.port)
        try:
            _run(ray, app(spec, replicas=fleet.replicas, cpus=fleet.cpus, gpus=fleet.gpus))
            host = f"[{options.host}]" if ":" in options.host else options.host
            ready(f"http://{host}:{options.port}")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
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
