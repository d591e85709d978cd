"""The best layouts of neighboring questions: what more memory, bandwidth or devices would gain, and
what a nearby global batch would.

Replicas get equal shares of the batch, so that a batch with few divisors leaves devices unused or
forces more stages and shards than are good.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.layout.layout_answer import NearbyBatch, Sensitivity, layout_title
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from planner.layout.layout_relax import with_offload
from planner.layout.refined_layout import PricedLayout
from planner.search.other_clusters import larger_clusters
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.host import has_host
from simulator.training_run.run.training_run import TrainingRun


def sensitivities(
    question: LayoutQuestion,
    base: TrainingRun,
    solver: LayoutSolver,
    rebuild: Callable[[str], Cluster],
) -> tuple[Sensitivity, ...]:
    """The best step under one change each, as long as there is time."""
    found: list[Sensitivity] = []

    def tried(
        change: str,
        asked: LayoutQuestion,
        *,
        capacity: float = 1.0,
        altered: Callable[[TrainingRun], TrainingRun] = lambda run: run,
    ) -> None:
        best = solver.best(asked, capacity=capacity, altered=altered)
        if best is not None:
            found.append(
                Sensitivity(
                    change=change, step_time_s=best.step_time_s, layout=layout_title(best.run)
                )
            )

    usable = get_device(base.device).usable_bytes
    tried("10 GiB more memory per device", question, capacity=1 + 10 * 2**30 / usable)
    tried("10 GiB less memory per device", question, capacity=1 - 10 * 2**30 / usable)
    if base.degrees.num_devices > base.node_devices:
        tried(
            "a network of twice the rate between nodes",
            question,
            altered=lambda run: _faster_network(run, 2.0),
        )
    for level in base.far_levels:
        faster = replace(level, bytes_per_s_per_device=2 * level.bytes_per_s_per_device)
        levels = tuple(faster if one == level else one for one in base.far_levels)
        tried(
            f"twice the rate of {level.name}",
            question,
            altered=functools.partial(replace, far_levels=levels),
        )
    offloaded = with_offload(question)
    if has_host(base.device) and offloaded != question and offloaded.options.offloads:
        tried("states may be in host memory (--optimizer-offload)", offloaded)
    for doubled in itertools.islice(larger_clusters(question.cluster, rebuild), 1):
        tried(f"twice the devices ({doubled.name})", replace(question, cluster=doubled))
    tried("twice the batch", replace(question, global_batch=2 * question.global_batch))
    return tuple(found)


def _faster_network(run: TrainingRun, times: float) -> TrainingRun:
    return replace(run, network=run.node_network.faster(times))


# A batch that these divide leaves enough choice where no device is idle.
_ROUND = 8
# Other batches are at most this share of the batch away, and so many are solved on either side.
_AWAY = 1 / 8
_TRIED = 3
# What is worth telling: so many more tokens a second, and among those nearly the best the nearest.
_WORTH = 1.02
_NEARLY = 0.99


def nearby_batches(
    question: LayoutQuestion, chosen: PricedLayout, solver: LayoutSolver
) -> tuple[NearbyBatch, ...]:
    """Of the batches below and of those above the nearest that is worth it, each solved as long as
    there is time; none where the batch is round and no device idle."""
    idle = question.cluster.num_devices - chosen.run.degrees.num_devices
    if not idle and question.global_batch % _ROUND == 0:
        return ()
    now = chosen.run.global_batch / chosen.step_time_s
    sides: dict[bool, list[NearbyBatch]] = {False: [], True: []}
    tried = {False: 0, True: 0}
    for batch in _candidates(question):
        above = batch > question.global_batch
        if tried[above] == _TRIED:
            continue
        tried[above] += 1
        best = solver.best(replace(question, global_batch=batch))
        if best is not None and batch / best.step_time_s >= _WORTH * now:
            sides[above].append(
                NearbyBatch(
                    global_batch=batch,
                    step_time_s=best.step_time_s,
                    tokens_per_s=batch * question.seq_len / best.step_time_s,
                    layout=layout_title(best.run),
                )
            )
    return tuple(_nearest(found) for found in sides.values() if found)


def _candidates(question: LayoutQuestion) -> Iterator[int]:
    """Multiples of powers of two, and of those times what is odd in the number of devices; the
    nearest first."""
    batch, odd = question.global_batch, question.cluster.num_devices
    while odd % 2 == 0:
        odd //= 2
    most = max(1, int(batch * _AWAY))
    units = {unit * 2**k for unit in (1, odd) for k in range(batch.bit_length())}
    found = {way for unit in units for way in (batch // unit * unit, -(-batch // unit) * unit)}
    near = [other for other in found if other > 0 and 0 < abs(other - batch) <= most]
    # Of batches equally far the one with more twos in it first; small steps rarely bring much.
    yield from sorted(near, key=lambda other: (-_twos(other, odd), abs(other - batch)))


def _twos(batch: int, odd: int) -> int:
    rest = batch // odd if batch % odd == 0 else batch
    return rest & -rest


def _nearest(found: list[NearbyBatch]) -> NearbyBatch:
    """The nearest of those that are nearly as good as the best; they come the roundest first."""
    best = max(each.tokens_per_s for each in found)
    return [each for each in found if each.tokens_per_s >= _NEARLY * best][-1]
