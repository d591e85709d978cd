"""Idle time of a layout's pipeline, from its schedule's timeline.

Only the ratios of the passes' durations matter, so these come from the kernels' surfaces without
fitted coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule, schedule_kind
from simulator.schedules.timeline import longest_rank_s, simulate
from simulator.training_run.run.training_run import TrainingRun

Array = NDArray[np.float64]
Claims = NDArray[np.bool_]

# A share of 0 would select the closed form (step_terms.py).
_NEXT_TO_NONE = 1e-12
# Longer steps only repeat their middle: this many micro-batches per stage are simulated, two if the
# timeline would have more actions than this (a second or two), none above that.
_ROUNDS = (4, 2)
_MOST_ACTIONS = 150_000


def idle_share(run: TrainingRun, row: Mapping[str, float]) -> float:
    """Idle time, divided by the busiest stage's time per micro-batch; 0 for schedules with a closed
    form.

    run, row  the run, and its features computed so far (features.py)

    In zero-bubble schedules, W has the matmuls of the weight gradients, about half of the
    backward's. In interleaved ones, embedding and head make the first and last virtual stage
    unequal to the others, which the closed form ignores. Pipelines too long for a timeline use the
    closed form of 1F1B, an upper bound for zero-bubble schedules.
    """
    kind = schedule_kind(run.schedule)
    pp, interleaved = run.degrees.pp, not kind.stages_per_rank
    chunks = run.degrees.vpp if interleaved else kind.stages_per_rank
    if pp < 2 or kind.closed_form or (interleaved and chunks == 1):
        return 0.0
    stages = pp * chunks
    count = _micro_batches(run, (2 if interleaved else 3 * kind.copies) * stages)
    if count == 0 or kind.why_not(pp, count):
        return 0.0  # unsupported counts idle as with 1F1B
    layers = [row["layers"] / chunks] * stages
    last, head = row["last_layers"], row["head_matmul"] + row["head_pass"]
    if interleaved and last < row["layers"]:
        layers[0] = layers[-1] = max(0.0, layers[0] - 1)
    elif interleaved:
        layers = [row["all_layers"] / stages] * stages
    elif chunks == 1:
        layers[-1] = last
    else:
        # In a V, logits and loss share a rank with the embedding; its virtual stages are taken as
        # equal.
        last, head = layers[-1], 0.0
    layer: float = sum(pass_seconds(row))
    busy = max(row["layers"] * layer, last * layer + head)
    if busy <= 0.0:
        return 0.0  # fewer layers than ranks: the others have nothing to idle between
    # Each copy of a stage runs a part of the micro-batches.
    durations = _durations(row, kind.copies * layers, kind.copies * [*[0.0] * (stages - 1), head])
    schedule = build_schedule(
        run.schedule,
        num_ranks=pp,
        num_microbatches=count,
        stages_per_rank=chunks,
        # Most orders do not depend on durations: one schedule is used for all layouts with equal
        # ranks.
        durations=durations if kind.follows_durations else None,
    )
    timeline = simulate(schedule, durations)
    if interleaved:
        return max(0.0, max(timeline.end_s) / busy - count)
    # Ranks need not end together: the next step begins rank by rank (arXiv 2401.10241, section 4).
    return max(_NEXT_TO_NONE, longest_rank_s(timeline) / busy - count)


def paired_share(pp: Any, microbatches: Any) -> Any:
    """Share of the forwards that overlap with a backward in schedules that pair them: all except
    those of a stage's first pp micro-batches; averaged over the ranks."""
    return np.maximum(0.0, 1.0 - pp / microbatches)


def _durations(
    row: Mapping[str, float], layers: Sequence[float], heads: Sequence[float]
) -> Durations:
    """Durations of stages with these numbers of layers and seconds of the head, a third of which is
    forward."""
    forward, backward = pass_seconds(row)
    weight, send = 0.5 * row["matmul_backward"], row["cut_inner"] + row["cut_outer"]

    def of(each: float, thirds: int) -> tuple[float, ...]:
        return tuple(each * n + thirds * (h / 3) for n, h in zip(layers, heads, strict=True))

    return Durations(
        forward_s=of(forward, 1),
        backward_s=of(backward, 2),
        backward_input_s=of(backward - weight, 1),
        backward_weight_s=of(weight, 1),
        send_forward_s=(send,) * len(layers),
        send_backward_s=(send,) * len(layers),
    )


def _micro_batches(run: TrainingRun, actions_each: int) -> int:
    """Micro-batches in the timeline, each with `actions_each` actions; 0 for no timeline."""
    for rounds in _ROUNDS:
        count = min(run.num_microbatches, rounds * run.degrees.pp)
        if count * actions_each <= _MOST_ACTIONS:
            return count
    return 0


def pass_seconds(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Seconds of a layer's forward and backward, from features by name: floats or arrays."""
    forward = row["matmul_forward"] + row["grouped_forward"] + row["attention_forward"]
    forward = forward + row["pass_forward"] + row["score_forward"]
    backward = row["matmul_backward"] + row["grouped_backward"] + row["attention_backward"]
    backward = backward + row["pass_backward"] + 1.5 * row["score_forward"]
    others = forward - row["matmul_forward"]
    again = row["recomputed_matmul"] * row["matmul_forward"] + row["recomputed_routed"] * others
    return forward, backward + again


def least_idle_share(
    row: Mapping[str, Array], *, closed: Claims, interleaved: Claims, in_v: Claims
) -> Array:
    """[runs] lower bounds on `idle_share`; 0 if that is 0 by definition.

    row          features by name
    closed       runs with a closed form
    interleaved  runs of interleaved schedules
    in_v         runs whose ranks have two stages in a V; all others have zero-bubble schedules,
                 whose bound is 0

    Interleaved: rank r waits for the forwards of the r ranks before it, works, and then these ranks
    run one backward each (its last action is a backward of its first virtual stage), as in every
    order of 1F1B. The longest path is that of the last rank, which has the head, or of the one
    before it.
    """
    pp, vpp = row["pp"], row["vpp"]
    forward, backward = pass_seconds(row)
    layer, send = forward + backward, row["cut_inner"] + row["cut_outer"]
    head = row["head_matmul"] + row["head_pass"]
    busiest = np.maximum(row["layers"] * layer, row["last_layers"] * layer + head)
    fewer = np.where(row["last_layers"] < row["layers"], 1.0, 0.0)
    chunk = np.where(fewer > 0, row["layers"] / vpp, row["all_layers"] / (pp * vpp))
    count = np.minimum(row["microbatches"], 4 * pp)

    def end(waits: Array, busy: Array) -> Array:
        outside = layer * np.maximum(0.0, waits * chunk - fewer * (waits > 0))
        return np.asarray(outside + 2 * waits * send + count * busy)

    last = end(pp - 1, layer * (vpp * chunk - fewer) + head)
    before = end(np.maximum(0.0, pp - 2), layer * (vpp * chunk - fewer * (pp == 2)))
    share = np.maximum(last, before) / busiest - count
    share = np.where(interleaved, share, np.where(in_v, _least_share_in_v(row), 0.0))
    least = np.maximum(share, _NEXT_TO_NONE)
    return np.where(closed, 0.0, least)


def _least_share_in_v(row: Mapping[str, Array]) -> Array:
    """[runs] lower bound on the idle time of a V's first rank, over its time per micro-batch.

    The rank has the first and the last of the 2 p stages. Until the first micro-batch comes back, 2
    p - 1 forwards after its start, the rank can only run forwards of its first stage. The last
    micro-batch that it starts passes through all stages and back before its weight gradients are
    computed.
    """
    pp = row["pp"]
    forward, backward = pass_seconds(row)
    weight = 0.5 * row["matmul_backward"]
    half = 0.5 * row["layers"]
    send = row["cut_inner"] + row["cut_outer"]
    each = row["layers"] * (forward + backward)
    count = np.minimum(row["microbatches"], _ROUNDS[0] * pp)
    there = (2 * pp - 1) * half * forward + 2 * (pp - 1) * send
    alone = there - count * half * forward
    back = 2 * pp * half * (backward - weight) + 2 * (pp - 1) * send + half * weight
    through = count * half * forward + there + back
    share = np.maximum(alone / each, through / each - count)
    # Longer pipelines have no timeline.
    known = 6 * pp * np.minimum(row["microbatches"], _ROUNDS[-1] * pp) <= _MOST_ACTIONS
    return np.where(known, share, 0.0)
