"""The contracted graph end to end in flat arrays, as the compiled loops read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.strategy_graph.contraction import Contracted, Floats
from planner.op_sharding.strategy_graph import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """Nodes 0..n-1; the strategies of node i are ``node_start[i]:node_start[i+1]``."""

    node_start: Ints
    cost: Floats
    """By strategy."""
    arc_start: Ints
    """Arcs of node i are ``arc_start[i]:arc_start[i+1]``; each edge is two arcs, sorted by head."""
    arc_head: Ints
    """By arc: the neighbour."""
    arc_table: Ints
    """By arc: where in `tables` its table starts, rows by this node's strategy."""
    arc_reverse: Ints
    """By arc: the arc the other way."""
    arc_message: Ints
    """By arc: where its message starts, one number per strategy of this node."""
    tables: Floats
    """All tables end to end; where a pair is forbidden, a number above every allowed choice."""
    constant: float
    forbidding: float
    """The number that stands for forbidden."""

    @property
    def nodes(self) -> int:
        """How many nodes are left."""
        return len(self.node_start) - 1


def flatten(contracted: Contracted) -> Core:
    """The arrays of a contracted graph."""
    sizes = np.array([len(values) for values in contracted.costs], dtype=np.int64)
    count = len(sizes)
    node_start = _starts(sizes)
    forbidding = _above_everything(contracted)
    arcs = sorted(
        [(u, v, k, False) for k, (u, v, _) in enumerate(contracted.tables)]
        + [(v, u, k, True) for k, (u, v, _) in enumerate(contracted.tables)]
    )
    position: dict[tuple[int, int], int] = {(u, v): a for a, (u, v, _, _) in enumerate(arcs)}
    parts: list[Floats] = []
    for _, _, k, turned in arcs:
        table = contracted.tables[k][2]
        parts.append(np.minimum(table.T if turned else table, forbidding).ravel())
    tails = np.array([u for u, _, _, _ in arcs], dtype=np.int64)
    return Core(
        node_start=node_start,
        cost=np.concatenate(contracted.costs) if count else np.zeros(0),
        arc_start=_starts(np.bincount(tails, minlength=count)),
        arc_head=np.array([v for _, v, _, _ in arcs], dtype=np.int64),
        arc_table=_starts(np.array([len(part) for part in parts], dtype=np.int64))[:-1],
        arc_reverse=np.array([position[v, u] for u, v, _, _ in arcs], dtype=np.int64),
        arc_message=_starts(sizes[tails])[:-1],
        tables=np.concatenate(parts) if parts else np.zeros(0),
        constant=contracted.constant,
        forbidding=forbidding,
    )


def is_allowed(core: Core, choice: Ints) -> bool:
    """Whether a choice takes no forbidden pair (memory apart)."""
    tails = np.repeat(np.arange(core.nodes), np.diff(core.arc_start))
    columns = np.diff(core.node_start)[core.arc_head]
    at = core.arc_table + choice[tails] * columns + choice[core.arc_head]
    return bool((core.tables[at] < core.forbidding).all())


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _above_everything(contracted: Contracted) -> float:
    """More than any allowed choice can cost above the cheapest; nothing where nothing is inf."""
    spread = 1.0
    for values in contracted.costs:
        spread += float(values.max() - values.min())
    lowest = 0.0
    for _, _, table in contracted.tables:
        finite = table[np.isfinite(table)]
        lowest = min(lowest, float(finite.min()))
        spread += float(finite.max() - min(finite.min(), 0.0))
    return spread + lowest
