"""A cluster of raylets on this machine, and their processes."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

REPLICA = b"ray::ServeReplica:"
WRITER = b"ray::MapWorker(MapBatches(Writer))"
_SETTINGS = {
    "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",  # else replicas of the proxy's node come first
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
}


@contextmanager
def raylets(nodes=2):
    """A head without CPUs, and nodes with one each."""
    with patch.dict(os.environ, _SETTINGS):
        import ray
        from ray.cluster_utils import Cluster

        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        try:
            for _ in range(nodes):
                made.add_node(num_cpus=1)
            made.wait_for_nodes()
            yield made
        finally:
            ray.shutdown()
            made.shutdown()


def workers(name):
    """Processes of the raylets that this process has started, by the beginning of their names."""
    return [pid for pid in _processes(name) if _parent(_parent(pid)) == os.getpid()]


def _processes(name):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(name):
                yield int(path.parent.name)


def _parent(pid):
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
