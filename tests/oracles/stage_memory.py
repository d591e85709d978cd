"""Memory of the stages of a partitioned chain, from scratch."""

from __future__ import annotations

import numpy as np

from planner.chain.problem import Partition, PartitionProblem


def stage_memory_bytes(
    problem: PartitionProblem, stage: int, start: int, strategies: tuple[int, ...]
) -> float:
    """Peak of a stage: the largest of its loads.

    In forward and in backward a micro-batch's own saved bytes are there up to the block that runs:
    the rise is the largest transient, each less what blocks behind it save.
    """
    slot = problem.slots[stage]
    costs = problem.costs[slot.costs]
    end = start + len(strategies)
    blocks = np.arange(start, end)
    chosen = np.asarray(strategies)
    saved = costs.saved_bytes[blocks, chosen]
    saved[0] = costs.first_saved_bytes[start, chosen[0]]
    behind = np.concatenate([np.cumsum(saved[::-1])[::-1][1:], [0.0]])
    running = costs.transient_bytes[blocks, chosen]
    running[0] = costs.first_transient_bytes[start, chosen[0]]
    rise = float((running - behind).max())
    kept = float(problem.edge_bytes[start, end] + saved.sum())
    return max(
        float(problem.static_bytes[load.static][start, end])
        + load.in_flight * kept
        + (rise if load.rises else 0.0)
        for load in slot.loads
    )


def fits(problem: PartitionProblem, partition: Partition) -> bool:
    """True where every stage's memory is within its capacity."""
    return all(
        stage_memory_bytes(problem, stage, i, partition.strategies[i:j])
        <= problem.slots[stage].capacity_bytes
        for stage, (i, j) in enumerate(zip(partition.starts, partition.ends(), strict=True))
    )
