"""Contiguous splits of layer graphs by the planner: the smallest largest load, with a bound.

``python -m bench.partition FILE`` reads a layer graph of Tarnawski et al. (NeurIPS 2020) and prints
``max_load N bound N time S`` in the file's unit of time: no contiguous split has a largest load
below the bound. ``-o`` writes the split in the format of the paper's programme. Exit code 3: no
split.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.command import start
from bench.graph_partition.layer_graph import (
    LayerGraph,
    blocks_of,
    check_layer_split,
    read_layer_graph,
)
from bench.graph_partition.problem import DeviceKind, Share
from bench.graph_partition.split import split_graph
from profiles.document import need_writable, write_text
from profiles.errors import InfeasibleError, InputError

TIME_LIMIT_S = 60.0

# Optima of the paper's own exact programme, in the unit of the files, to as many digits as the
# problem collection's README gives (shared/yardsticks/partition, 2026-11).
KNOWN_OPTIMA = {
    "bert24_inference": 17.7899,
    "bert24_training": 41.7458,
    "gnmt_inference": 32.9107,
    "gnmt_training": 107.004,
    "resnet50_inference": 33.7747,
    "resnet50_training": 78.6318,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGraph:
    """A split of a graph's nodes, checked; loads and the bound in the unit of its file."""

    graph: LayerGraph
    shares: tuple[Share, ...]
    loads: tuple[float, ...]
    bound: float
    elapsed_s: float

    @property
    def max_load(self) -> float:
        return max(self.loads, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRow:
    """One graph of a table; `known` is the optimum of KNOWN_OPTIMA, None if unknown."""

    graph: str
    max_load: float
    bound: float
    known: float | None
    elapsed_s: float


def place_graph(graph: LayerGraph, time_limit_s: float) -> PlacedGraph:
    """The best split of a layer graph found within the limit.

    Raises InfeasibleError with the reason if none was found, InputError for a limit not above 0.
    """
    started = time.monotonic()
    blocks = blocks_of(graph)
    found = split_graph(blocks.problem, time_limit_s)
    shares = blocks.expand(found.shares)
    checked = check_layer_split(graph, shares)
    if checked.faults:
        raise AssertionError(f"our split breaks the rules: {checked.faults[0]}")
    # The checker sums loads over nodes: a proven bound is that same number.
    bound = max(checked.loads_s, default=0.0) if found.proven else found.bound_s
    return PlacedGraph(
        graph=graph,
        shares=shares,
        loads=checked.loads_s,
        bound=bound,
        elapsed_s=time.monotonic() - started,
    )


def partition_rows(folder: Path, time_limit_s: float = TIME_LIMIT_S) -> tuple[PartitionRow, ...]:
    """One row for each layer graph of a folder, by name; the time is that of the solver."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith("piper_"):
            continue
        placed = place_graph(read_layer_graph(path), time_limit_s)
        rows.append(
            PartitionRow(
                graph=path.stem,
                max_load=placed.max_load,
                bound=placed.bound,
                known=KNOWN_OPTIMA.get(path.stem),
                elapsed_s=placed.elapsed_s,
            )
        )
    return tuple(rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own flags."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a layer graph, JSON")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="SPLIT", help="write the split to this JSON file"
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        default=TIME_LIMIT_S,
        metavar="S",
        help="seconds to search (default %(default)s)",
    )


def solve_command(arguments: argparse.Namespace) -> int:
    """Solve the file's graph, print and write the split; the exit status."""
    if not arguments.time_limit > 0:
        raise InputError(f"--time-limit is {arguments.time_limit}; it must be above 0 seconds")
    if arguments.output is not None:
        need_writable(arguments.output)
    try:
        placed = place_graph(read_layer_graph(arguments.file), arguments.time_limit)
    except InfeasibleError as error:
        sys.stdout.write(f"{error}\n")
        return error.exit_code
    if arguments.output is not None:
        write_text(arguments.output, json.dumps(_document(placed), indent=1) + "\n")
    sys.stdout.write(
        f"max_load {placed.max_load:.10g} bound {placed.bound:.10g} time {placed.elapsed_s:.2f}\n"
    )
    return 0


def _document(placed: PlacedGraph) -> dict[str, object]:
    """The keys of the paper's programme, and of us `bound` and the `place` in the row."""
    shares: dict[DeviceKind, list[dict[str, object]]] = {kind: [] for kind in DeviceKind}
    for at, (share, load) in enumerate(zip(placed.shares, placed.loads, strict=True)):
        nodes = [placed.graph.ids[node] for node in share.blocks]
        shares[share.kind].append({"load": load, "nodes": nodes, "place": at})
    return {
        "maxLoad": placed.max_load,
        "bound": placed.bound,
        "fpgas": shares[DeviceKind.ACCELERATOR],
        "cpus": shares[DeviceKind.HOST],
    }


if __name__ == "__main__":
    start(add_arguments, solve_command, __doc__)
