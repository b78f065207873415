"""The application of ``rayservice.yaml``."""

from pathlib import Path

from draftwood.ray import ReplicaSpec, app
from draftwood.serve.settings import ServeOptions

# ReplicaSpec(target=...) names a hub model, or a folder that every node has; without one it is the bundled pair.
options = ServeOptions(api_key_file=Path("/run/keys/keys"), max_rows=8)
application = app(ReplicaSpec(serving=options), replicas=2, cpus=2)
