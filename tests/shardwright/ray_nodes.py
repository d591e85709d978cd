"""A real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_cluster_of_two() -> Iterator[str]:
    """The address of a cluster of two nodes with one CPU each; skips where there is no Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'shardwright[cluster]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as RayCluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    # Processes that no task needs: they pass on logs, and start nodes where tasks wait for some.
    node |= {"include_log_monitor": False, "no_monitor": True}
    cluster = RayCluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster.address
    finally:
        cluster.shutdown()
