"""Texts on several machines, by Ray: replicas of the server (``ray.serve``) and jobs over datasets (``ray.data``).

Ray starts, watches, replaces and scales the processes. Each one has models of its own and writes as on one machine. Only
names of models and settings travel. The extra ``ray`` installs what this room needs.
"""

from draftwood.ray.replica import Replica, app, build
from draftwood.ray.spec import ReplicaSpec
from draftwood.ray.writer import Writer, WriteSettings, write

__all__ = ["Replica", "ReplicaSpec", "WriteSettings", "Writer", "app", "build", "write"]
