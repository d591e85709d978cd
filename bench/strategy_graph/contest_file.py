"""Reads problems as the contest on intra-operator parallelism writes them (JSON, plain or gzipped).

Format: Moffitt and Fegade (2025), github.com/google/iopddl: `nodes.intervals`, `nodes.costs`,
`nodes.usages`, `edges.nodes`, `edges.costs` (the table flattened, last node fastest) and
`usage_limit`, all under `problem`. An edge of one node is added to its costs, an edge of three or
more becomes a node whose strategies are the combinations that are allowed.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from shardwright_placements.strategy_graph.problem import FORBIDDEN, Ints, StrategyGraph, added

from profiles.errors import DocumentError, InputError
from profiles.text_file import read_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ContestProblem:
    """A problem of a file."""

    name: str
    graph: StrategyGraph
    """Nodes `0..file_nodes-1` are the file's, further ones stand for edges of three or more."""
    file_nodes: int


def read_contest_problem(path: Path) -> ContestProblem:
    """The problem of a file; raises DocumentError that names the file and the key."""
    raw = read_file(path)
    try:
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        document = json.loads(text)
    except (OSError, EOFError, zlib.error) as error:
        raise DocumentError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path}: is not JSON: {error}") from error
    where = _Where(path)
    problem = where.mapping(document, "problem", "")
    nodes = where.mapping(problem, "nodes", "problem.")
    edges = where.mapping(problem, "edges", "problem.")
    costs = where.rows(nodes, "costs", "problem.nodes.")
    usages = where.rows(nodes, "usages", "problem.nodes.")
    intervals = where.rows(nodes, "intervals", "problem.nodes.")
    if not len(costs) == len(usages) == len(intervals):
        raise where.wrong(
            "problem.nodes",
            f"{len(intervals)} intervals, {len(costs)} costs and {len(usages)} usages",
            "give one of each for every node",
        )
    for node, interval in enumerate(intervals):
        if len(interval) != 2:
            raise where.wrong(
                f"problem.nodes.intervals[{node}]", f"{len(interval)} numbers", "give [start, end]"
            )
    builder = _Builder(where, costs, usages, intervals)
    builder.add_edges(
        where.lists(edges, "nodes", "problem.edges."),
        where.rows(edges, "costs", "problem.edges."),
    )
    limit = problem.get("usage_limit")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise where.wrong("problem.usage_limit", repr(limit), "give a whole number of 0 or more")
    try:
        graph = StrategyGraph(
            node_costs=tuple(builder.costs),
            holders=np.arange(len(builder.usages)),
            usages=tuple(builder.usages),
            intervals=np.array(builder.intervals, dtype=np.int64).reshape(-1, 2),
            edges=np.array(builder.edges, dtype=np.int64).reshape(-1, 2),
            edge_costs=tuple(builder.tables),
            usage_limit=limit,
        )
    except InputError as error:
        raise DocumentError(f"{path}: problem: {error}") from error
    name = problem.get("name", path.name)
    return ContestProblem(name=str(name), graph=graph, file_nodes=len(costs))


class _Where:
    """Takes entries out of a document and names file and key where one is wrong."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, key: str, found: str, wanted: str) -> DocumentError:
        return DocumentError(f"{self.path}: {key}: found {found}; {wanted}")

    def mapping(self, holder: object, key: str, prefix: str) -> dict[str, object]:
        value = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(value, dict):
            found = "nothing" if value is None else type(value).__name__
            raise self.wrong(prefix + key, found, "give a JSON object")
        return value

    def lists(self, holder: dict[str, object], key: str, prefix: str) -> list[list[object]]:
        value = holder.get(key)
        if not isinstance(value, list) or not all(isinstance(row, list) for row in value):
            found = "nothing" if value is None else type(value).__name__
            raise self.wrong(prefix + key, found, "give a list of lists")
        return cast(list[list[object]], value)

    def rows(self, holder: dict[str, object], key: str, prefix: str) -> list[Ints]:
        """Rows of whole numbers; those above FORBIDDEN become FORBIDDEN where 64 bits end."""
        found = self.lists(holder, key, prefix)
        return [self._whole(row, f"{prefix}{key}[{k}]") for k, row in enumerate(found)]

    def _whole(self, row: list[object], key: str) -> Ints:
        for place, value in enumerate(row):
            if type(value) is not int and not (isinstance(value, float) and value >= FORBIDDEN):
                raise self.wrong(f"{key}[{place}]", repr(value), "give a whole number")
        numbers = cast(list[float], row)
        try:
            return np.array(row, dtype=np.int64)
        except (OverflowError, ValueError):
            top = np.iinfo(np.int64).max
            return np.array(
                [int(min(max(v, -top), top)) if math.isfinite(v) else top for v in numbers],
                dtype=np.int64,
            )


class _Builder:
    """A pairwise graph out of edges of any number of nodes."""

    def __init__(
        self, where: _Where, costs: list[Ints], usages: list[Ints], intervals: list[Ints]
    ) -> None:
        self.where = where
        self.costs, self.usages = list(costs), list(usages)
        self.intervals = [row.tolist() for row in intervals]
        self.edges: list[tuple[int, int]] = []
        self.tables: list[Ints] = []
        self.file_nodes = len(costs)

    def add_edges(self, ends: list[list[object]], tables: list[Ints]) -> None:
        if len(ends) != len(tables):
            raise self.where.wrong(
                "problem.edges", f"{len(ends)} nodes and {len(tables)} costs", "give one of each"
            )
        for edge, (members, flat) in enumerate(zip(ends, tables, strict=True)):
            self._add(edge, members, flat)

    def _add(self, edge: int, members: list[object], flat: Ints) -> None:
        key = f"problem.edges.nodes[{edge}]"
        nodes: list[int] = []
        for node in members:
            if type(node) is not int or not 0 <= node < self.file_nodes:
                raise self.where.wrong(key, repr(node), f"give nodes of 0..{self.file_nodes - 1}")
            nodes.append(node)
        if not nodes:
            raise self.where.wrong(key, "no node", "give at least one")
        shape = tuple(len(self.costs[node]) for node in nodes)
        if len(flat) != math.prod(shape):
            raise self.where.wrong(
                f"problem.edges.costs[{edge}]",
                f"{len(flat)} costs",
                f"nodes {nodes} have {' x '.join(map(str, shape))} strategies",
            )
        table = flat.reshape(shape)
        if len(set(nodes)) < len(nodes):
            # A node named twice takes one strategy: only the diagonal counts.
            letters = [nodes.index(node) for node in nodes]
            table = np.einsum(table, letters, sorted(set(letters)))
            nodes = [nodes[k] for k in sorted(set(letters))]
        if len(nodes) == 1:
            self.costs[nodes[0]] = added(self.costs[nodes[0]], table)
        elif len(nodes) == 2:
            self.edges.append((nodes[0], nodes[1]))
            self.tables.append(table)
        else:
            self._add_combinations(nodes, table)

    def _add_combinations(self, nodes: list[int], table: Ints) -> None:
        flat = table.ravel()
        allowed = np.flatnonzero(flat < FORBIDDEN)
        if not len(allowed):
            allowed = np.zeros(1, dtype=np.int64)
        own = len(self.costs)
        self.costs.append(flat[allowed])
        self.usages.append(np.zeros(len(allowed), dtype=np.int64))
        self.intervals.append([0, 0])
        for node, takes in zip(nodes, np.unravel_index(allowed, table.shape), strict=True):
            agrees = np.full((len(allowed), len(self.costs[node])), FORBIDDEN, dtype=np.int64)
            agrees[np.arange(len(allowed)), takes] = 0
            self.edges.append((own, node))
            self.tables.append(agrees)
