"""`TERMS`: all costs of a training step. The step time of one run or of a hundred thousand, the
bounds of layout searches and the explanation of a prediction are all computed from this table.

A new cost is one more `Term`, a formula of `Features`, coefficients and earlier terms.
"""

from __future__ import annotations

import numpy as np

from simulator.formula_symbol import named
from simulator.soft_maximum import larger
from simulator.training_run.step.features import Features
from simulator.training_run.step.layer_terms import LAYER_TERMS
from simulator.training_run.step.step_term import (
    CHUNK,
    LOGITS,
    MS,
    US,
    WIDE_LAYER,
    Array,
    Coefficients,
    Earlier,
    Term,
    between_nodes,
    moved,
)
from simulator.values.prediction import Part


def _logits(x: Features, c: Coefficients, e: Earlier) -> Array:
    matmuls = larger(c["matmul"] * x.head_matmul, c["power"] * x.head_peak)
    return matmuls + c["passes"] * x.head_pass + c["optimizer"] * x.head_accumulation


def _wide_layer(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Additional time of a layer in bf16 over one at the run's precision: its matmuls take longer,
    but nothing is cast to fewer bits."""
    again = 1.0 + x.recomputed_matmul
    dense = x.wide_matmul_forward * again + x.wide_matmul_backward
    grouped = x.wide_grouped_forward * (1.0 + x.recomputed_routed) + x.wide_grouped_backward
    casts = c["casts"] * (x.cast_forward * again + x.cast_backward)
    return c["matmul"] * (dense + c["grouped"] * grouped) - casts


def _idle(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Idle time. 1F1B: (m - 1) T_max + sum T (Narayanan et al., SC'21, section 2.2.1), with its
    idle part divided by the chunks per rank if interleaved. Zero-bubble schedules idle as in their
    timeline, but at most as long as 1F1B, from which they may start."""
    others = named("other stages", e.stages - e.busiest)
    timeline = np.minimum(x.idle_share * e.busiest, others)
    idle = np.where(x.idle_share > 0, timeline, others / x.vpp)
    return np.where(x.pp > 1, idle, 0.0)


def _sends(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Sends between stages: the exposed share of each micro-batch and chunk, and all of the
    ramp's."""
    latency = US * c["cut_step_us"] * x.cut_steps
    send = named(
        "send", x.cut_inner * c["inner"] + x.cut_outer * between_nodes(x.nodes, c) + latency
    )
    sends = 2.0 * send * (x.microbatches * x.vpp * c["cut_exposed"] + x.pp - 1.0)
    return np.where(x.pp > 1, sends, 0.0)


def _far_sends(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Sends over a slow level. 1F1B: the stages on both sides of a crossing wait for each other in
    a cycle of two micro-batches and two sends. So each micro-batch takes one send longer, or 2 n /
    (n + 1) sends if all n cuts are crossings. Fill and drain pass each crossing once; the
    micro-batches in flight in the last part do not wait. Interleaved: micro-batches also pass from
    the last stage to the first over the same line. Sends overlap with half the time of a virtual
    stage; of the rest, 1/2 + 1/p sends per virtual stage are exposed, for p stages. Both formulas
    approximate the timeline; tests/simulator/test_level_cut.py checks them within 10 %
    (interleaved: 20 %). In addition, a line slower than the stages delays them, and no send
    overlaps better than one between nodes."""
    if not np.any(x.cut_crossings > 0):
        return np.zeros(1)
    several = x.vpp > 1
    one = x.cut_far * np.where(several, 2.0, 1.0)
    way = named("send", one + x.cut_far_latency)
    crossings = x.cut_crossings
    every = 2.0 * crossings / (crossings + 1.0)
    cycle = np.where(crossings >= x.pp - 1.0, np.maximum(every, 1.0), 1.0)
    after = x.pp / (crossings + 1.0)
    plain = cycle * np.maximum(x.microbatches - after, 0.0) * way + 2.0 * way * crossings
    chunks = x.microbatches * x.vpp
    hidden = e.busiest / (2.0 * x.vpp)
    mixed = np.maximum(
        chunks * (0.5 + 1.0 / np.maximum(x.pp, 1.0)) * np.maximum(way - hidden, 0.0),
        2.0 * way * crossings * (2.0 * x.vpp - 1.0),
    )
    shown = np.maximum(2.0 * way * c["cut_exposed"] * chunks, np.where(several, mixed, plain))
    behind = x.microbatches * (x.vpp * one - e.busiest)
    found = np.where(crossings > 0, np.maximum(shown, behind), 0.0)
    return np.where(x.pp > 1, found, 0.0)


def _stalled(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Stalled messages on the critical path: the first micro-batch goes through all stages and
    back; every further one adds the busiest rank's messages, 2 with two stages, 4 with more."""
    through = 2.0 * (x.pp - 1.0)
    further = x.microbatches * x.vpp - 1.0
    messages = named("messages", through + further * np.minimum(through, 4.0))
    return np.where(x.stalls > 0, MS * c["stall_ms"] * messages, 0.0)


def _exchange(x: Features, c: Coefficients, e: Earlier) -> Array:
    """Exposed gradient and weight exchange. Overlapped messages run during layers, like ZeRO-3's
    gathers: the excess is exposed, and a share of the rest.

    The gradients of a virtual stage are complete after its last micro-batch, and its weights are
    needed at its first. Interleaved schedules run a virtual stage for p micro-batches in sequence
    (Narayanan et al., SC'21, section 2.2.2). So the messages of v virtual stages can overlap with p
    micro-batches of v - 1 of them, those of the last one with one pass.
    """
    messages = moved(x, "reduce", c)
    messages = named("messages", messages + US * x.reduce_steps * c["outer_step_us"])
    beside = x.overlapped_exchange * messages
    layers = x.layers * e.layer
    rounds = np.minimum(x.pp, x.microbatches)
    room = named("room", layers * (rounds * (x.vpp - 1.0) + 1.0) / x.vpp)
    all_chunks = larger(room, beside) - room
    last_chunk = (larger(layers, beside) - layers) / x.vpp
    shown = np.maximum(all_chunks, last_chunk) + c["gather_exposed"] * np.minimum(beside, room)
    return shown + (1.0 - x.overlapped_exchange) * c["reduce_exposed"] * messages


TERMS: tuple[Term, ...] = (
    *LAYER_TERMS,
    Term("logits and loss", Part.COMPUTE, _logits, per=LOGITS),
    Term(
        "host work per micro-batch",
        Part.COMPUTE,
        lambda x, c, e: MS * c["microbatch_ms"] * x.launches,
        per=CHUNK,
    ),
    Term("first and last layers in bf16", Part.COMPUTE, _wide_layer, per=WIDE_LAYER),
    Term("idle stages", Part.BUBBLE, _idle),
    Term("sends between stages", Part.CUT, _sends),
    Term(
        "sends between far parts of the machine",
        Part.CUT,
        _far_sends,
        words="the largest of: one send per micro-batch, and two per crossing to fill and drain "
        "(interleaved: what half a chunk's time does not hide); cut_exposed x 2 sends per "
        "micro-batch; the time by which the line falls behind the stages",
    ),
    Term("messages that stall", Part.STALL, _stalled),
    Term("exchange of gradients and weights", Part.REDUCE, _exchange),
    Term(
        "gradient buckets that wait for the host",
        Part.REDUCE,
        lambda x, c, e: US * c["wait_us"] * x.waiting_buckets,
    ),
    Term(
        "copies of gathered slices",
        Part.REDUCE,
        lambda x, c, e: US * c["slice_us"] * x.copied_slices,
    ),
    Term(
        "averaging the workers of local steps",
        Part.REDUCE,
        lambda x, c, e: moved(x, "sync", c),
    ),
    Term("optimizer", Part.OPTIMIZER, lambda x, c, e: c["optimizer"] * x.optimizer_s),
    Term("Newton-Schulz of Muon", Part.OPTIMIZER, lambda x, c, e: c["matmul"] * x.orthogonal_s),
    Term("gathers of matrices for Muon", Part.OPTIMIZER, lambda x, c, e: moved(x, "muon", c)),
    Term(
        "compressing gradients, outer optimizer of local steps",
        Part.OPTIMIZER,
        lambda x, c, e: c["optimizer"] * x.extra_pass_s,
    ),
    Term(
        "optimizer in host memory",
        Part.HOST,
        lambda x, c, e: x.host_step_s + x.host_sum_s * np.maximum(x.microbatches - 1.0, 0.0),
        words="gradients down, Adam at the host's memory bandwidth, weights up: the slowest of the "
        "three where the framework overlaps them, else their sum (FSDP copies shards of weights "
        "up, and gradients that are summed in each micro-batch down, with each gather; it adds up "
        "those of further micro-batches on the host)",
    ),
    Term(
        "each step, whatever its size",
        Part.OVERHEAD,
        lambda x, c, e: MS * c["step_ms"] * x.fitted_steps + x.measured_step_s,
    ),
)
