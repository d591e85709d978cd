"""`provenance`: version and command with which a file was written."""

from __future__ import annotations

import sys
from typing import Any

from profiles.hardware.catalogue.cluster import Cluster


def provenance(cluster: Cluster | None = None) -> dict[str, Any]:
    """Version and command with which a file is written."""
    from shardwright import __version__

    made: dict[str, Any] = {
        "version": __version__,
        "command": " ".join(["shardwright", *sys.argv[1:]]),
    }
    return made if cluster is None else {**made, "cluster_devices": cluster.num_devices}
