"""A problem without the blocks that can join a neighbour at no loss (see satellites.py)."""

from __future__ import annotations

from dataclasses import dataclass

from bench.graph_partition.contract import Contraction, contract
from bench.graph_partition.problem import GraphProblem
from bench.graph_partition.satellites import find_satellites


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A smaller problem, and which splits of it are splits of the given one.

    exact     an optimum of the smaller one is an optimum of the given one
    relaxed   memory of joined blocks is not counted: an optimum of it is a lower bound; where not
              exact and not relaxed, an optimum of it is a split, perhaps not the best
    """

    contraction: Contraction
    exact: bool
    relaxed: bool


def hosts_together(problem: GraphProblem) -> Contraction:
    """The problem with all that its only host must hold as one block, if it has one host."""
    forced = [
        block
        for block in range(len(problem.names))
        if not problem.on_accelerator[block] or problem.memory_bytes[block] > problem.capacity_bytes
    ]
    groups = list(range(len(problem.names)))
    if problem.hosts == 1:
        for block in forced:
            groups[block] = forced[0]
    return contract(problem, groups)


def reduce_problem(
    problem: GraphProblem, *, relax_memory: bool = False, heavy_joins: bool = True
) -> Reduction:
    """All joins, round by round, until none is left.

    heavy_joins   False: blocks with memory join only where memory cannot bind, so the result is
                  exact
    """
    identity = tuple(range(len(problem.names)))
    whole = contract(problem, identity)
    reduced, members = whole.problem, whole.members
    binding = sum(problem.memory_bytes) > problem.capacity_bytes
    exact = True
    while True:
        found = find_satellites(reduced, weightless=binding and not heavy_joins)
        if len(set(found.groups)) == len(reduced.names):
            break
        if binding and found.heavy:
            exact = False
        light = found.heavy if relax_memory else frozenset()
        step = contract(reduced, found.groups, light=light)
        members = tuple(
            tuple(sorted(b for at in part for b in members[at])) for part in step.members
        )
        reduced = step.problem
    return Reduction(
        contraction=Contraction(problem=reduced, members=members),
        exact=exact,
        relaxed=relax_memory and not exact,
    )
