"""Merge blocks that must share a device: given groups, then every cycle that merging creates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx

from bench.graph_partition.problem import GraphProblem, Share, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Contraction:
    """A smaller problem; its block i stands for blocks `members[i]` of the one before."""

    problem: GraphProblem
    members: tuple[tuple[int, ...], ...]

    def expand(self, shares: Sequence[Share]) -> tuple[Share, ...]:
        """The same shares in blocks of the problem before."""
        return tuple(
            Share(
                kind=share.kind,
                blocks=tuple(sorted(b for block in share.blocks for b in self.members[block])),
            )
            for share in shares
        )


def contract(
    problem: GraphProblem,
    groups: Sequence[int],
    *,
    order: Sequence[tuple[int, int]] = (),
) -> Contraction:
    """The problem with the blocks of equal `groups` as one block.

    A difference of two ideals that holds two blocks holds every block on a path between them; so
    groups on a common cycle of the contracted order become one block as well.

    order   more pairs of blocks, such as ones that hold between groups only
    """
    arrows = [(groups[a], groups[b]) for a, b in (*problem.order, *order)]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(groups)
    graph.add_edges_from(pair for pair in arrows if pair[0] != pair[1])
    component = {
        group: at
        for at, part in enumerate(nx.strongly_connected_components(graph))
        for group in part
    }
    # Numbered by their first block, so that the result does not depend on how components are found.
    number: dict[int, int] = {}
    for block in range(len(problem.names)):
        number.setdefault(component[groups[block]], len(number))
    of = [number[component[group]] for group in groups]
    members: list[list[int]] = [[] for _ in number]
    for block, at in enumerate(of):
        members[at].append(block)

    def total(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(sum(values[b] for b in part) for part in members)

    pairs = {
        (number[component[a]], number[component[b]])
        for a, b in arrows
        if component[a] != component[b]
    }
    return Contraction(
        problem=GraphProblem(
            names=tuple(problem.names[part[0]] for part in members),
            accelerator_s=total(problem.accelerator_s),
            host_s=total(problem.host_s),
            memory_bytes=total(problem.memory_bytes),
            on_accelerator=tuple(all(problem.on_accelerator[b] for b in part) for part in members),
            order=tuple(sorted(pairs)),
            tensors=tuple(
                Tensor(
                    producer=of[tensor.producer],
                    consumers=tuple(sorted({of[b] for b in tensor.consumers})),
                    transfer_s=tensor.transfer_s,
                )
                for tensor in problem.tensors
            ),
            accelerators=problem.accelerators,
            hosts=problem.hosts,
            capacity_bytes=problem.capacity_bytes,
        ),
        members=tuple(tuple(part) for part in members),
    )
