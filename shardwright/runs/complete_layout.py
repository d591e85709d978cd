"""`complete_layout`: the degrees of a published run, and the devices of its inner link."""

from __future__ import annotations

import math

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import node_design
from shardwright.runs.complete_words import DescribedRow
from simulator.values.degrees import Degrees

# Sequences of at least this many tokens are split over devices rather than the weights: from here
# on recipes use context parallelism (MaxText and Megatron-Core long-context guides).
LONG_SEQUENCE = 32768
_USUAL_NODE = 8


def complete_layout(row: DescribedRow, global_batch: int, seq_len: int) -> Degrees:
    """Tensor, pipeline, context and data parallelism; tp, pp and cp take precedence over dp.
    Raises InputError.

    Missing degrees are 1 and dp is the rest, with two exceptions. If dp is given but not tp and pp,
    the rest is model parallelism: tensor-parallel inside a node, then pipeline stages (Narayanan et
    al., arXiv 2104.04473, section 5.4.1, "takeaway 1"). If the compiler shards (TPUs) and no degree
    is given, there are at most as many data-parallel ranks as sequences; the rest is tensor
    parallelism, or context parallelism for sequences of 32768 tokens and more.
    """
    run, assumptions = row.run, row.assumptions
    tp, pp, cp = run.tp, run.pp, run.cp
    devices = run.num_devices
    if devices is None:
        if run.dp is None:
            raise InputError("no number of devices is given")
        devices = run.dp * (tp or 1) * (pp or 1) * (cp or 1)
        assumptions.append(f"{devices} devices, the product of the degrees")
    if run.dp is not None and tp is None and pp is None and devices > run.dp * (cp or 1):
        tp, pp = _model_parallel(row, devices, run.dp * (cp or 1))
    elif tp is pp is run.dp is cp is None and row.device.type == "tpu":
        tp, cp = _sharded(devices, global_batch, seq_len, assumptions)
    silent = [
        f"{name} 1"
        for name, value in (("tp", tp), ("pp", pp), ("cp", cp))
        if value is None and devices > 1
    ]
    if silent:
        assumptions.append(", ".join(silent))
    tp, pp, cp = tp or 1, pp or 1, cp or 1
    dp, rest = divmod(devices, tp * pp * cp)
    if rest or dp == 0:
        raise InputError(f"tp={tp} x pp={pp} x cp={cp} does not divide {devices} devices")
    if run.dp is None:
        assumptions.append(f"dp {dp} ({devices} devices / (tp {tp} x pp {pp} x cp {cp}))")
    elif run.dp != dp:
        why = "which counts the ranks of cp" if run.dp == dp * cp else "as printed contradicts it"
        assumptions.append(
            f"dp {dp} ({devices} devices / (tp {tp} x pp {pp} x cp {cp})); {run.dp} {why}"
        )
    if dp > global_batch:
        raise InputError(
            f"dp={dp} needs {dp} sequences per step, the run has {global_batch}"
            + ("; give its tp, pp or dp" if run.tp is run.pp is run.dp is None else ""),
        )
    return Degrees(tp=tp, cp=cp, pp=pp, dp=dp)


def _model_parallel(row: DescribedRow, devices: int, data_ranks: int) -> tuple[int, int]:
    run = row.run
    size, rest = divmod(devices, data_ranks)
    if rest:
        raise InputError(f"dp={run.dp} does not divide {devices} devices")
    tp = math.gcd(size, run.devices_per_node or _USUAL_NODE)
    if run.num_heads is not None:
        tp = math.gcd(tp, run.num_heads)
    row.assumptions.append(
        f"tp {tp} and pp {size // tp} (of a model-parallel size of {size}, first inside a node)"
    )
    return tp, size // tp


def _sharded(
    devices: int, global_batch: int, seq_len: int, assumptions: list[str]
) -> tuple[int, int | None]:
    split = devices // math.gcd(devices, global_batch)
    if split == 1:
        return 1, None
    if seq_len >= LONG_SEQUENCE:
        assumptions.append(f"cp {split}: {devices} devices share {global_batch} long sequences")
        return 1, split
    assumptions.append(f"tp {split}: {devices} devices share {global_batch} sequences")
    return split, None


def node_devices_of(row: DescribedRow, num_devices: int) -> int:
    """Number of devices connected by the inner link.

    The row's devices per node, otherwise the usual node. For racks and pods, whose hosts share one
    inner link: the largest number of whole hosts of a rack that divides the run evenly, as in the
    catalog's clusters. A TPU run with a data-center network has at least two slices.
    """
    run, device, assumptions = row.run, row.device, row.assumptions
    design = node_design(device.name)
    if device.type != "tpu" and not design.host_devices:
        if run.devices_per_node is not None:
            return run.devices_per_node
        return row.assumed(design.devices, f"nodes of {design.devices} devices")
    if device.type == "tpu":
        slices = -(-num_devices // design.devices)
        if "dcn" in run.inter_node_link.lower():
            slices = max(2, slices)
        while num_devices % slices:
            slices += 1
        size = num_devices // slices
        return row.assumed(size, f"{slices} slice{'s' if slices > 1 else ''} of {size} devices")
    host = design.host_devices
    most = min(num_devices, max(design.devices, run.devices_per_node or 0))
    even = [n for n in range(most - most % host, most // 2, -host) if n and num_devices % n == 0]
    size = even[0] if even else most
    if size != run.devices_per_node and num_devices > size:
        assumptions.append(f"{size} devices of each rack, so that all racks have as many")
    return size
