"""The best layouts of neighboring questions: what more memory, bandwidth or devices would gain, and
what a nearby global batch would.

Replicas get equal shares of the batch, so that a batch with few divisors leaves devices unused or
forces more stages and shards than are good.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
    more = 10 * 2**30 / get_device(base.device).usable_bytes
    changes = {
        "10 GiB more memory per device": partial(solver.best, question, capacity=1 + more),
        "10 GiB less memory per device": partial(solver.best, question, capacity=1 - more),
    }
    if base.degrees.num_devices > base.node_devices:
        faster = partial(_faster_network, times=2.0)
        changes["a network of twice the rate between nodes"] = partial(
            solver.best, question, altered=faster
        )
    for level in base.far_levels:
        twice = replace(level, bytes_per_s_per_device=2 * level.bytes_per_s_per_device)
        levels = tuple(twice if one == level else one for one in base.far_levels)
        changes[f"twice the rate of {level.name}"] = partial(
            solver.best, question, altered=partial(replace, far_levels=levels)
        )
    offloaded = with_offload(question)
    if has_host(base.device) and offloaded != question and offloaded.options.offloads:
        changes["states may be in host memory (--optimizer-offload)"] = partial(
            solver.best, offloaded
        )
    for doubled in itertools.islice(larger_clusters(question.cluster, rebuild), 1):
        changes[f"twice the devices ({doubled.name})"] = partial(
            solver.best, replace(question, cluster=doubled)
        )
    changes["twice the batch"] = partial(
        solver.best, replace(question, global_batch=2 * question.global_batch)
    )
    found = [(change, solve()) for change, solve in changes.items()]
    return tuple(
        Sensitivity(change=change, step_time_s=one.step_time_s, layout=layout_title(one.run))
        for change, one in found
        if one is not None
    )


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
        # The nearest of those that are nearly as good as the best; they come the roundest first.
        most = max((each.tokens_per_s for each in found), default=0.0)
        shown += [each for each in found if each.tokens_per_s >= _NEARLY * most][-1:]
    return tuple(shown)


def _candidates(question: LayoutQuestion) -> list[int]:
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
    return sorted(near, key=lambda other: (-_twos(other, odd), abs(other - batch)))


def _twos(batch: int, odd: int) -> int:
    rest = batch // odd if batch % odd == 0 else batch
    return rest & -rest
