"""Layer graphs of the throughput problem of Tarnawski et al. (NeurIPS 2020), from their files.

The format is that of the paper's code package (README of github.com/msr-fiddle/dnn-partitioning,
section "Input format"). "FPGA" there means any accelerator and "CPU" a host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.graph_partition.check import CheckedSplit, check_split
from bench.graph_partition.contract import Contraction, contract
from bench.graph_partition.problem import GraphProblem, Share, Tensor, find_cycle
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.text_file import read_text

_TOP = ("maxSizePerFPGA", "maxFPGAs", "maxCPUs", "nodes", "edges")
_NODE = ("id", "supportedOnFpga", "cpuLatency", "fpgaLatency", "isBackwardNode")
_NODE_MAY = ("name", "size", "colorClass", "layerId")
_EDGE = ("sourceId", "destId", "cost")
_EDGE_MAY = ("size",)
_SAME_COST = 1e-6  # as far as the paper's programme lets the costs of one node's edges differ


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Nodes as blocks in the order of the file, with the classes that tie them.

    problem   the nodes; only edges between forward nodes are its order
    groups    colour class of each node, as numbers; a node without one has its own
    tied      more pairs of nodes to keep in order: a class with backward nodes only has no place in
              the forward graph, and gets one by mirroring its backward edges, as the paper's
              programme does
    ids       the file's id of each node
    """

    problem: GraphProblem
    groups: tuple[int, ...]
    tied: tuple[tuple[int, int], ...]
    ids: tuple[int, ...]


def read_layer_graph(path: Path) -> LayerGraph:
    """The graph in a JSON file; raises DocumentError, InputError or UnknownNameError."""
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{path} is not JSON: {error}") from None
    return layer_graph_of(document, where=str(path))


def layer_graph_of(document: object, *, where: str) -> LayerGraph:
    """The graph in decoded JSON; `where` names it in errors."""
    if isinstance(document, dict) and "maxDevices" in document:
        raise DocumentError(
            f"{where} is a workload of Piper (it has maxDevices); this reads layer graphs, with"
            f" {', '.join(_TOP)}"
        )
    top = _fields(document, _TOP, (), where)
    nodes = [
        _fields(node, _NODE, _NODE_MAY, f"{where}: nodes[{at}]")
        for at, node in enumerate(_list(top["nodes"], f"{where}: nodes"))
    ]
    edges = [
        _fields(edge, _EDGE, _EDGE_MAY, f"{where}: edges[{at}]")
        for at, edge in enumerate(_list(top["edges"], f"{where}: edges"))
    ]
    if not nodes:
        raise DocumentError(f"{where}: nodes is empty; there is nothing to place")
    ids = tuple(_integer(node["id"], f"{where}: nodes[{at}].id") for at, node in enumerate(nodes))
    number = {node_id: at for at, node_id in enumerate(ids)}
    if len(number) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise DocumentError(f"{where}: node id {twice} appears twice")
    ends = [_ends(edge, number, f"{where}: edges[{at}]") for at, edge in enumerate(edges)]
    backward = [
        _truth(node["isBackwardNode"], f"{where}: nodes[{at}].isBackwardNode")
        for at, node in enumerate(nodes)
    ]
    names = tuple(f"{node.get('name', 'node')} (id {node['id']})" for node in nodes)
    cycle = find_cycle(ends)
    if cycle:
        path = " -> ".join(names[b] for b in (*cycle, cycle[0]))
        raise InputError(f"{where}: the graph has a cycle: {path}; remove one of its edges")
    groups = _groups(nodes, where)
    problem = GraphProblem(
        names=names,
        accelerator_s=_numbers(nodes, "fpgaLatency", where),
        host_s=_numbers(nodes, "cpuLatency", where),
        memory_bytes=_numbers(nodes, "size", where),
        on_accelerator=tuple(
            _truth(node["supportedOnFpga"], f"{where}: nodes[{at}].supportedOnFpga")
            for at, node in enumerate(nodes)
        ),
        order=tuple((a, b) for a, b in ends if not backward[a] and not backward[b]),
        tensors=_tensors(edges, ends, names, where),
        accelerators=_count(top["maxFPGAs"], f"{where}: maxFPGAs"),
        hosts=_count(top["maxCPUs"], f"{where}: maxCPUs"),
        capacity_bytes=_number(top["maxSizePerFPGA"], f"{where}: maxSizePerFPGA"),
    )
    placed = {group for group, late in zip(groups, backward, strict=True) if not late}
    tied = tuple(
        (b, a)
        for a, b in ends
        if backward[a] and backward[b] and (groups[a] not in placed or groups[b] not in placed)
    )
    return LayerGraph(problem=problem, groups=groups, tied=tied, ids=ids)


def blocks_of(graph: LayerGraph) -> Contraction:
    """The problem of the graph's colour classes, each one block."""
    return contract(graph.problem, graph.groups, order=graph.tied)


def check_layer_split(graph: LayerGraph, shares: tuple[Share, ...]) -> CheckedSplit:
    """Loads and faults of shares of nodes, by the definition; colour classes are together."""
    checked = check_split(graph.problem, shares)
    device = {node: at for at, share in enumerate(shares) for node in share.blocks}
    apart = sorted(
        {
            graph.groups[node]
            for node, at in device.items()
            if at != device.get(graph.groups.index(graph.groups[node]))
        }
    )
    faults = [
        f"the class of {graph.problem.names[graph.groups.index(group)]} is on several devices"
        for group in apart
    ]
    return CheckedSplit(loads_s=checked.loads_s, faults=(*checked.faults, *faults))


def _tensors(
    edges: list[Mapping[str, object]],
    ends: list[tuple[int, int]],
    names: tuple[str, ...],
    where: str,
) -> tuple[Tensor, ...]:
    readers: dict[int, list[int]] = {}
    cost: dict[int, float] = {}
    for at, (edge, (a, b)) in enumerate(zip(edges, ends, strict=True)):
        this = _number(edge["cost"], f"{where}: edges[{at}].cost")
        if abs(cost.setdefault(a, this) - this) > _SAME_COST:
            raise InputError(
                f"{where}: edges[{at}].cost is {this}, but another edge out of {names[a]} costs"
                f" {cost[a]}; all edges out of one node carry its one output"
            )
        readers.setdefault(a, []).append(b)
    return tuple(
        Tensor(producer=a, consumers=tuple(sorted(set(readers[a]))), transfer_s=cost[a])
        for a in sorted(readers)
    )


def _groups(nodes: list[Mapping[str, object]], where: str) -> tuple[int, ...]:
    number: dict[object, int] = {}
    groups = []
    for at, node in enumerate(nodes):
        key: object = ("node", at)
        if node.get("colorClass") is not None:
            key = _integer(node["colorClass"], f"{where}: nodes[{at}].colorClass")
        groups.append(number.setdefault(key, len(number)))
    return tuple(groups)


def _fields(
    value: object, must: tuple[str, ...], may: tuple[str, ...], where: str
) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise DocumentError(f"{where} is {type(value).__name__}, an object is needed")
    for key in value:
        if key not in must and key not in may:
            raise UnknownNameError("key", str(key), (*must, *may), where=where)
    for key in must:
        if key not in value:
            raise DocumentError(f"{where} has no {key!r}; it is needed")
    return value


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise DocumentError(f"{where} is {type(value).__name__}, a list is needed")
    return value


def _ends(edge: Mapping[str, object], number: Mapping[int, int], where: str) -> tuple[int, int]:
    ends = []
    for key in ("sourceId", "destId"):
        node_id = _integer(edge[key], f"{where}.{key}")
        if node_id not in number:
            raise DocumentError(f"{where}.{key} is {node_id}, but no node has that id")
        ends.append(number[node_id])
    return ends[0], ends[1]


def _numbers(nodes: list[Mapping[str, object]], key: str, where: str) -> tuple[float, ...]:
    return tuple(
        _number(node.get(key, 0.0), f"{where}: nodes[{at}].{key}") for at, node in enumerate(nodes)
    )


def _number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DocumentError(f"{where} is {value!r}, a number is needed")
    if not value >= 0:
        raise InputError(f"{where} is {value}; it must be 0 or more")
    return float(value)


def _integer(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        raise DocumentError(f"{where} is {value!r}, a whole number is needed")
    return int(value)


def _count(value: object, where: str) -> int:
    count = _integer(value, where)
    if count < 0:
        raise InputError(f"{where} is {count}; it must be 0 or more")
    return count


def _truth(value: object, where: str) -> bool:
    if value not in (0, 1):
        raise DocumentError(f"{where} is {value!r}; it must be true, false, 1 or 0")
    return bool(value)
