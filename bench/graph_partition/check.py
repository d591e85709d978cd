"""Independent check of a split, without the solver's code: validity, and cost by definition."""

from __future__ import annotations

from dataclasses import dataclass

from bench.graph_partition.problem import DeviceKind, GraphProblem, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSplit:
    """Load of each share in seconds, and every rule that is broken (empty: the split is legal)."""

    loads_s: tuple[float, ...]
    faults: tuple[str, ...]

    @property
    def max_load_s(self) -> float:
        return max(self.loads_s, default=0.0)


def check_split(problem: GraphProblem, shares: tuple[Share, ...]) -> CheckedSplit:
    """Loads and faults of `shares` in their order along the row."""
    device = {block: at for at, share in enumerate(shares) for block in share.blocks}
    faults = []
    blocks = sorted(block for share in shares for block in share.blocks)
    if blocks != list(range(len(problem.names))):
        faults.append("not every block is on exactly one device")
        return CheckedSplit(loads_s=(), faults=tuple(faults))
    for first, later in problem.order:
        if device[first] > device[later]:
            faults.append(
                f"{problem.names[later]} is on device {device[later]}, before"
                f" {problem.names[first]} on device {device[first]}"
            )
    for kind, allowed in (
        (DeviceKind.ACCELERATOR, problem.accelerators),
        (DeviceKind.HOST, problem.hosts),
    ):
        used = sum(share.kind is kind for share in shares)
        if used > allowed:
            faults.append(f"{used} {kind} shares, {allowed} there are")
    loads = tuple(_load(problem, shares, device, at) for at in range(len(shares)))
    for at, share in enumerate(shares):
        if share.kind is DeviceKind.HOST:
            continue
        memory = sum(problem.memory_bytes[block] for block in share.blocks)
        if memory > problem.capacity_bytes * (1 + 1e-12):
            faults.append(
                f"device {at} needs {memory:.0f} bytes, it has {problem.capacity_bytes:.0f}"
            )
        for block in share.blocks:
            if not problem.on_accelerator[block]:
                faults.append(
                    f"{problem.names[block]} is on accelerator {at}, but runs on hosts only"
                )
    return CheckedSplit(loads_s=loads, faults=tuple(faults))


def _load(
    problem: GraphProblem, shares: tuple[Share, ...], device: dict[int, int], at: int
) -> float:
    share = shares[at]
    if share.kind is DeviceKind.HOST:
        return float(sum(problem.host_s[block] for block in share.blocks))
    load = sum(problem.accelerator_s[block] for block in share.blocks)
    for tensor in problem.tensors:
        readers = {device[block] for block in tensor.consumers}
        sends = device[tensor.producer] == at and bool(readers - {at})
        receives = device[tensor.producer] != at and at in readers
        load += tensor.transfer_s * (sends or receives)
    return float(load)
