"""Replicas of the server on several machines, by Ray (``ray.serve``).

Ray starts, watches, replaces and scales the processes. Each one has models of its own and writes as on one machine. Only
names of models and settings travel. The extra ``ray`` installs what this room needs.
"""

from draftwood.ray.replica import Replica, app
from draftwood.ray.spec import ReplicaSpec

__all__ = ["Replica", "ReplicaSpec", "app"]
