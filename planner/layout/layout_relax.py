"""Why no layout fits, the three cheapest changes that make one fit, and gains of other changes.

Gains are those of more memory, bandwidth or devices, and of a nearby global batch. Replicas get
equal shares of the batch, so a batch with few divisors leaves devices unused or needs too many
stages and shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from planner.axes import AXES, flag_of
from planner.layout.layout_answer import NearbyBatch, layout_title
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from planner.layout.layout_search import NearMiss
from planner.layout.refined_layout import PricedLayout
from planner.neighbors import Neighbor, answered, fullest_term, larger_clusters, with_more_memory
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.host import has_host
from profiles.units import format_bytes
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.plan_file import Infeasibility, Relaxation, Sensitivity


def with_offload(question: LayoutQuestion) -> LayoutQuestion:
    """The question with optimizer states allowed in host memory."""
    return replace(question, options=replace(question.options, optimizer_offload=True))


def offload_candidates(question: LayoutQuestion) -> Iterator[Neighbor[LayoutQuestion]]:
    """Offloading to host memory, if the framework supports it and the host is known: optimizer
    states, then also half and all of the saved activations."""
    offers = load_framework(question.stack).rules.offers
    if not all(has_host(group.device.name) for group in question.cluster.groups):
        return
    states, flag, both = "", "--activation-offload any", question
    with_states = with_offload(question)
    if "optimizer-offload" in offers and with_states != question and with_states.options.offloads:
        states, flag, both = "optimizer states and ", f"--optimizer-offload {flag}", with_states
        change = "optimizer states in host memory"
        yield Neighbor("host", with_states, change, "--optimizer-offload")
    if "activation-offload" not in offers or question.options.activation_offloads:
        return
    if both.options.offloads:
        states = "optimizer states and "
    both = replace(both, options=replace(both.options, activation_offloads=(0.0, 0.5, 1.0)))
    yield Neighbor("host", both, f"{states}activations in host memory", flag)


def layout_candidates(
    question: LayoutQuestion,
    device_names: tuple[str, ...],
) -> Iterator[Neighbor[LayoutQuestion]]:
    """Changes to try: fewer fixed axes, host memory, more devices, devices with more memory."""
    for axis in AXES:
        if getattr(question.space, axis) is not None:
            freed, flag = replace(question.space, **{axis: None}), flag_of(axis)
            free = replace(question, space=freed)
            yield Neighbor(axis, free, f"without {flag}", f"no {flag}")
    yield from offload_candidates(question)
    for larger in larger_clusters(question.cluster):
        change, flag = f"{larger.num_devices} devices", f"--on {larger.name}"
        yield Neighbor("devices", replace(question, cluster=larger), change, flag)
    others = tuple(get_device(name) for name in device_names)
    for device, swapped in with_more_memory(question.cluster, others):
        change = f"{device.name} ({format_bytes(device.usable_bytes)} usable)"
        swap = replace(question, cluster=swapped)
        yield Neighbor("memory", swap, change, f"--on {swapped.name}")


_RELAXATIONS = 3


def infeasibility(
    question: LayoutQuestion,
    miss: NearMiss,
    solver: LayoutSolver,
    device_names: tuple[str, ...],
) -> Infeasibility:
    """The nearest layout and the three cheapest changes with which one fits, each from a search
    within the time limit."""
    found = answered(
        layout_candidates(question, device_names),
        solver.best,
        most=_RELAXATIONS,
        has_time=lambda: solver.has_time,
    )
    fullest = miss.memory.fullest
    return Infeasibility(
        nearest=layout_title(miss.run),
        rank=fullest.rank,
        term=fullest_term(fullest, miss.memory.fullest_details.moment),
        needed_bytes=miss.memory.needed_bytes,
        capacity_bytes=miss.capacity_bytes,
        relaxations=tuple(
            Relaxation(
                change=neighbor.change,
                flag=neighbor.flag,
                layout=layout_title(best.run),
                step_time_s=best.step_time_s,
            )
            for neighbor, best in found
        ),
        host=miss.host,
    )


def sensitivities(
    question: LayoutQuestion, base: TrainingRun, solver: LayoutSolver
) -> tuple[Sensitivity, ...]:
    """The best step under one change each, within the time limit."""
    return tuple(
        Sensitivity(change=change, step_time_s=best.step_time_s, layout=layout_title(best.run))
        for change, best in _changed(question, base, solver)
        if best is not None
    )


def _changed(
    question: LayoutQuestion, base: TrainingRun, solver: LayoutSolver
) -> Iterator[tuple[str, PricedLayout | None]]:
    """Changes, each with the best layout under it."""
    more = 10 * 2**30 / get_device(base.device).usable_bytes
    yield "10 GiB more memory per device", solver.best(question, capacity=1 + more)
    yield "10 GiB less memory per device", solver.best(question, capacity=1 - more)
    if base.degrees.num_devices > base.node_devices:
        faster = partial(_faster_network, times=2.0)
        yield "a network of twice the rate between nodes", solver.best(question, altered=faster)
    for level in base.far_levels:
        twice = replace(level, bytes_per_s_per_device=2 * level.bytes_per_s_per_device)
        levels = tuple(twice if one == level else one for one in base.far_levels)
        faster = partial(replace, far_levels=levels)
        yield f"twice the rate of {level.name}", solver.best(question, altered=faster)
    offloaded = with_offload(question)
    if has_host(base.device) and offloaded != question and offloaded.options.offloads:
        yield "states may be in host memory (--optimizer-offload)", solver.best(offloaded)
    for doubled in itertools.islice(larger_clusters(question.cluster), 1):
        best = solver.best(replace(question, cluster=doubled))
        yield f"twice the devices ({doubled.name})", best
    batch = 2 * question.global_batch
    yield "twice the batch", solver.best(replace(question, global_batch=batch))


def _faster_network(run: TrainingRun, times: float) -> TrainingRun:
    return replace(run, network=run.node_network.faster(times))


# With this many divisors a batch leaves enough choice, if no device is idle.
_ROUND = 8
# Other batches differ by at most this share, and so many are solved in either direction.
_AWAY = 1 / 8
_TRIED = 3
# Worth reporting: this many more tokens per second; then the nearest of the nearly best batches.
_WORTH = 1.02
_NEARLY = 0.99


def nearby_batches(
    question: LayoutQuestion, chosen: PricedLayout, solver: LayoutSolver
) -> tuple[NearbyBatch, ...]:
    """The nearest smaller and larger batch with a better throughput, found within the time limit;
    none if the batch has many divisors and no device is idle."""
    idle = question.cluster.num_devices - chosen.run.degrees.num_devices
    if not idle and question.global_batch % _ROUND == 0:
        return ()
    now, batches = chosen.run.global_batch / chosen.step_time_s, _candidates(question)
    shown = []
    for above in (False, True):
        side = [batch for batch in batches if (batch > question.global_batch) is above]
        found = [
            NearbyBatch(
                global_batch=batch,
                step_time_s=best.step_time_s,
                tokens_per_s=batch * question.seq_len / best.step_time_s,
                layout=layout_title(best.run),
            )
            for batch in side[:_TRIED]
            if (best := solver.best(replace(question, global_batch=batch))) is not None
            and batch / best.step_time_s >= _WORTH * now
        ]
        most = max((each.tokens_per_s for each in found), default=0.0)
        good = [each for each in found if each.tokens_per_s >= _NEARLY * most]
        shown += sorted(good, key=lambda each: abs(each.global_batch - question.global_batch))[:1]
    return tuple(shown)


def _candidates(question: LayoutQuestion) -> list[int]:
    """Candidate batches: multiples of powers of two, or of those times the odd part of the
    devices."""
    batch, odd = question.global_batch, question.cluster.num_devices
    while odd % 2 == 0:
        odd //= 2
    most = max(1, int(batch * _AWAY))
    units = {unit * 2**k for unit in (1, odd) for k in range(batch.bit_length())}
    found = {way for unit in units for way in (batch // unit * unit, -(-batch // unit) * unit)}
    near = [other for other in found if other > 0 and 0 < abs(other - batch) <= most]
    # Of equally near batches, the one with more factors of two comes first; small changes rarely
    # help.
    return sorted(near, key=lambda other: (-_twos(other, odd), abs(other - batch)))


def _twos(batch: int, odd: int) -> int:
    rest = batch // odd if batch % odd == 0 else batch
    return rest & -rest
