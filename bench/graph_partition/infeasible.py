"""Why no split exists, and the least memory with which one would.

One host can hold every block, so a problem with a host always has a split; without hosts only
memory and blocks that need a host can forbid one.
"""

from __future__ import annotations

import dataclasses

from bench.graph_partition.problem import GraphProblem


def plain_obstacle(problem: GraphProblem) -> str:
    """What forbids every split at first sight, or "" where nothing does."""
    if problem.hosts:
        return ""
    for name, allowed, memory in zip(
        problem.names, problem.on_accelerator, problem.memory_bytes, strict=True
    ):
        if not allowed:
            return f"no split: {name} runs on hosts only, and there are none; add a host"
        if memory > problem.capacity_bytes:
            return (
                f"no split: {name} needs {memory:.0f} bytes, an accelerator has"
                f" {problem.capacity_bytes:.0f}; it needs more memory or a host"
            )
    total, room = sum(problem.memory_bytes), problem.capacity_bytes * problem.accelerators
    if total > room * (1 + 1e-12):
        return (
            f"no split: all blocks need {total:.0f} bytes, {problem.accelerators} accelerators have"
            f" {room:.0f} together; the fewest that could do are"
            f" {_least_count(total, problem.capacity_bytes)}"
        )
    return ""


def _least_count(total: float, capacity: float) -> str:
    return f"{-int(-total // capacity)}" if capacity > 0 else "none"


def memory_problem(problem: GraphProblem) -> GraphProblem:
    """The problem whose largest load is the largest memory of an accelerator, in bytes.

    Its optimum is the least capacity with which `problem`, without hosts, has a split; its splits
    fit that capacity.
    """
    return dataclasses.replace(
        problem,
        accelerator_s=problem.memory_bytes,
        memory_bytes=(0.0,) * len(problem.names),
        tensors=(),
        hosts=0,
        capacity_bytes=float("inf"),
    )


def memory_obstacle(problem: GraphProblem, least_bytes: float) -> str:
    """The message where every split has an accelerator with `least_bytes` or more."""
    return (
        f"no split: in every contiguous split some accelerator holds {least_bytes:.0f} bytes or"
        f" more, it has {problem.capacity_bytes:.0f} (each of {problem.accelerators}"
        " accelerators); it needs that much memory, more accelerators or a host"
    )
