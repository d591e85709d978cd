"""Lower bounds on the largest load that need no ideals: the work, and what must go to hosts."""

from __future__ import annotations

from bench.graph_partition.problem import GraphProblem


def work_bound_s(problem: GraphProblem) -> float:
    """No split has a smaller largest load; 0 or more.

    The largest of: the least load of each block by itself; all blocks divided at will over hosts
    and accelerators, transfers free; the bytes that accelerators cannot hold, on hosts at their
    cheapest.
    """
    return max(_block_bound_s(problem), _divided_bound_s(problem), _overflow_bound_s(problem))


def runs_on_accelerator(problem: GraphProblem, block: int) -> bool:
    """Whether the block may be on an accelerator, and by itself fits one."""
    return (
        problem.accelerators > 0
        and problem.on_accelerator[block]
        and problem.memory_bytes[block] <= problem.capacity_bytes
    )


def _block_bound_s(problem: GraphProblem) -> float:
    least = []
    for block, (fast, slow) in enumerate(zip(problem.accelerator_s, problem.host_s, strict=True)):
        choices = [fast] if runs_on_accelerator(problem, block) else []
        choices += [slow] if problem.hosts else []
        least.append(min(choices, default=0.0))
    return max(least, default=0.0)


def _divided_bound_s(problem: GraphProblem) -> float:
    """The least T: host work <= hosts x T, accelerator work <= accelerators x T, blocks divisible.

    Hosts take first what must be theirs, then what saves the most accelerator time a host second.
    """
    forced = [b for b in range(len(problem.names)) if not runs_on_accelerator(problem, b)]
    on_hosts = sum(problem.host_s[b] for b in forced)
    free = [b for b in range(len(problem.names)) if runs_on_accelerator(problem, b)]
    left = sum(problem.accelerator_s[b] for b in free)
    if problem.hosts == 0:
        return left / problem.accelerators if problem.accelerators else 0.0
    if problem.accelerators == 0:
        return on_hosts / problem.hosts
    free.sort(key=lambda b: problem.host_s[b] / max(problem.accelerator_s[b], 1e-300))
    for block in free:
        fast, slow = problem.accelerator_s[block], problem.host_s[block]
        if (on_hosts + slow) / problem.hosts >= (left - fast) / problem.accelerators:
            # The fraction f of this block on hosts: (on_hosts + f slow) / H = (left - f fast) / A.
            rate = slow / problem.hosts + fast / problem.accelerators
            gap = left / problem.accelerators - on_hosts / problem.hosts
            part = min(max(gap / rate, 0.0), 1.0) if rate > 0 else 0.0
            return max(
                (on_hosts + part * slow) / problem.hosts,
                (left - part * fast) / problem.accelerators,
            )
        on_hosts, left = on_hosts + slow, left - fast
    return on_hosts / problem.hosts


def _overflow_bound_s(problem: GraphProblem) -> float:
    over = sum(problem.memory_bytes) - problem.capacity_bytes * problem.accelerators
    if over <= 0 or problem.hosts == 0:
        return 0.0
    seconds = 0.0
    heavy = [b for b in range(len(problem.names)) if problem.memory_bytes[b] > 0]
    for block in sorted(heavy, key=lambda b: problem.host_s[b] / problem.memory_bytes[b]):
        part = min(1.0, over / problem.memory_bytes[block])
        seconds += part * problem.host_s[block]
        over -= part * problem.memory_bytes[block]
        if over <= 0:
            break
    return seconds / problem.hosts
