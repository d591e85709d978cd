"""Search block by block: a traced model, a cluster and a workload give a plan with its proof."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from planner.axes import Axes
from planner.blocks.answer import SearchOptions, Setting, block_rules, legal_cells, search_setting
from planner.blocks.explain import candidates
from planner.costs.costs import SimulatorCosts
from planner.costs.priced_model import PricedModel, Traced
from planner.space import LayoutContext, divisors
from profiles.errors import InputError, TraceError
from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import SCAN, ModelGraph
from profiles.sourced import Sourced
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload


def search(
    traced: Traced,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Axes,
    stack: ExecutorStates,
    price: Sourced | None = None,
    options: SearchOptions | None = None,
) -> PlanFile:
    """The best plan of the space on the cluster with its bound, gap and runners-up; or why no plan
    fits, and the changes with which one does.

    space  allowed values per axis
    price  US dollars per device-hour

    Equal inputs give equal plan files, except for `search_time_s`. Raises InputError if the space
    contains no legal cell, if a device has no rate for the precision, or if the time limit ended
    the search before a plan was found. On mixed devices, only plans with one device type per stage
    are searched; `plan_mixed` searches all.
    """
    options = options or SearchOptions()
    if not cluster.homogeneous:
        space = _keeping_to_types(space, cluster)
    space = _that_run(space, traced, workload)
    space = _one_replica(space, _context(traced, cluster, workload))
    space = _not_gathered_twice(space, traced)

    def setting(changed: Axes, on: Cluster) -> Setting:
        context = _context(traced, on, workload)
        sizes = {cell.micro_batch for cell in legal_cells(changed, context)}
        model = PricedModel(
            traced=traced,
            cluster=on,
            workload=workload,
            stack=stack,
            strategies=changed.strategies,
            micro_batches=tuple(sorted(sizes)),
        )
        costs = SimulatorCosts(model, price=price, seed=options.seed)
        return Setting(context=context, costs=costs)

    def change(changed: Axes, on: Cluster) -> Setting | None:
        try:
            return setting(changed, on)
        except InputError:
            return None

    answer = search_setting(
        setting(space, cluster),
        space,
        options=options,
        candidates=candidates(
            space,
            cluster,
            other_devices=lambda: tuple(get_device(name) for name in device_names()),
        ),
        change=change,
    )
    return replace(answer, machine=cluster.machine)


def _keeping_to_types(space: Axes, cluster: Cluster) -> Axes:
    """The space, restricted to plans that the simulator prices correctly: it assumes that all
    devices of a pipeline rank are of the first one's type."""
    kept = one_type_stages(cluster, space)
    if kept is None:
        counts = ", ".join(
            f"{group.count * group.devices_per_node} {group.device.name}"
            for group in cluster.groups
        )
        raise InputError(
            f"with {' '.join(space.pins()) or 'any pp'} the stages of cluster {cluster.name} mix "
            f"its device types ({counts}); free --pp, or allow unequal replicas"
        )
    return kept


def one_type_stages(cluster: Cluster, space: Axes) -> Axes | None:
    """The space, restricted to pp with one device type per rank; None if there is none."""
    runs = itertools.groupby(cluster.groups, key=lambda group: group.device.name)
    counts = [sum(group.count * group.devices_per_node for group in run) for _, run in runs]
    common = math.gcd(*itertools.accumulate(counts))
    allowed = tuple(
        pp
        for pp in divisors(cluster.num_devices)
        if common % (cluster.num_devices // pp) == 0 and space.allows("pp", pp)
    )
    return replace(space, pp=allowed) if allowed else None


def _that_run(space: Axes, traced: Traced, workload: Workload) -> Axes:
    """The space without micro-batches of one sample if the model cannot run with one (batch
    normalization of single values); raises TraceError if no other size is allowed."""
    if not space.allows("micro_batch", 1):
        return space
    try:
        traced.at(1, 1)
    except TraceError:
        others = [n for n in divisors(workload.global_batch) if n > 1]
        others = [n for n in others if space.allows("micro_batch", n)]
        if not others:
            raise
        return replace(space, micro_batch=tuple(others))
    return space


def _one_replica(space: Axes, context: LayoutContext) -> Axes:
    """The space, restricted to one replica if the model carries state from call to call; raises
    InputError if that leaves nothing."""
    why = context.why_one_replica
    if not why:
        return space
    if not space.allows("dp", 1):
        raise InputError(f"--dp {','.join(map(str, space.dp or ()))}: {why}; leave it out")
    alone = replace(space, dp=(1,))
    most = max(context.tp_degrees) * context.num_layers
    if most < context.num_devices:
        others = (context.why_not_cuttable, context.why_not_tensor_parallel)
        raise InputError(
            f"dp must be 1: {why}. So at most {most} devices can be used (tp x pp), but --on names "
            f"{context.num_devices}{''.join(f'; {one}' for one in others if one)}"
        )
    try:
        legal_cells(alone, context)
    except InputError as error:
        raise InputError(f"dp must be 1: {why}. {error}") from error
    return alone


def _not_gathered_twice(space: Axes, traced: Traced) -> Axes:
    """The space without ZeRO 3 if layers clamp weights. Raises InputError if no other stage is
    allowed."""
    why = traced.at(2, 1).why_not_zero_3
    if not why:
        return space
    others = tuple(zero for zero in range(3) if space.allows("zero", zero))
    if not others:
        raise InputError(f"--zero 3: {why}; use --zero 0,1,2")
    return replace(space, zero=others)


def _context(traced: Traced, cluster: Cluster, workload: Workload) -> LayoutContext:
    graph = traced.at(2, 1)  # its blocks are equal for all batches; one sample may not run
    assumed = []
    if shapes := dict.fromkeys(block.label for block in graph.blocks if block.expected_shapes):
        assumed.append(
            f"shapes that depend on values are taken as expected in {', '.join(shapes)}: choices "
            "evenly loaded, half of a mask of which nothing is known, labels of full length"
        )
    if graph.clamped:
        assumed.append(
            f"the forward clamps the weight {graph.clamped[0]}: ZeRO is at most 2; with ZeRO or "
            "bf16 a step computes with clamped copies, and the stored weight may leave the range"
        )
    if values := dict.fromkeys(block.label for block in graph.blocks if block.assumed_values):
        assumed.append(
            f"what runs in {', '.join(values)} hangs on values: `all()` is taken to hold and "
            "`any()` not to, other answers take another time"
        )
    if pairs := _comparing(graph, traced.at(3, 1)):
        assumed.append(
            f"{pairs} compares every sample of a micro-batch with every other: what is trained "
            "depends on the micro-batch, and replicas compare their own samples only"
        )
    scans = {b.label for b in graph.blocks if any(op.name == SCAN for op in b.forward_ops)}
    if scans:
        assumed.append(
            f"the recurrence of {', '.join(sorted(scans))} is priced as one kernel "
            "(install mamba-ssm or RWKV's CUDA kernel; transformers' own loop is far slower)"
        )
    return LayoutContext(
        rules=block_rules(),
        blocks=True,
        may_idle=False,
        num_devices=cluster.num_devices,
        node_devices=cluster.levels[0].domain_size if cluster.levels else 1,
        num_layers=len(graph.chain) if graph.cuttable else 1,
        tp_degrees=traced.tp_degrees,
        global_batch=workload.global_batch,
        precision=workload.precision,
        why_not_cuttable=graph.why_not_cuttable,
        why_not_tensor_parallel=traced.why_not_tensor_parallel,
        why_one_replica=_STATE.format(graph.state[0]) if graph.state else "",
        assumptions=tuple(assumed),
    )


def _comparing(graph: ModelGraph, larger: ModelGraph) -> str:
    """The first block whose forward has a product with two sizes of the batch (a contrastive loss),
    from graphs at two micro-batches; "" if there is none."""
    for block, other in zip(graph.kinds, larger.kinds, strict=False):
        for op, same in zip(block.forward_ops, other.forward_ops, strict=False):
            one, two = op.matmul, same.matmul
            if one is not None and two is not None and one.m != two.m and one.n != two.n:
                return block.label
    return ""


_STATE = (
    "the model changes {} in its forward and computes with it, so that replicas, each "
    "with its own, would not train what one device trains"
)
