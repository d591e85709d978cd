"""The step time of one described run as a sum of lines: formula in words, numbers, seconds.

The formulas are those of `step_time.py`, written out for one run; `explain_run` checks that every
part's lines add up to what `step_parts` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from profiles.units import format_time
from simulator.training_run.explain_far import as_arrays, far_lines, host_line
from simulator.training_run.explain_layer import LayerTerms
from simulator.training_run.explain_numbers import larger_of, moved, moved_numbers, product
from simulator.training_run.features import Features
from simulator.training_run.message_stalls import (
    risk_s,
    stall_chance,
    stalled_messages,
    waiting_buckets,
    waiting_ranks,
)
from simulator.training_run.step_line import StepLine
from simulator.training_run.step_time import step_parts, wide_layer


def step_lines(x: Features, c: Mapping[str, float]) -> tuple[StepLine, ...]:
    """The terms of one run's step that are not 0.

    x  features of the run alone;  c  the value of each kind of coefficient
    """
    v = {name: float(getattr(x, name)[0]) for name in Features.__dataclass_fields__}
    calm = np.zeros(1, dtype=np.bool_)
    v["waiting_ranks"] = float(waiting_ranks(x, calm)[0])
    v["waiting_buckets"] = float(waiting_buckets(x, calm)[0])
    layer = LayerTerms.of(v, c)
    gather = _gather(v, c, layer.total_s)
    host = host_line(x, layer.total_s)
    whole = layer.total_s + gather.time_s + host.time_s
    head = _head(v, c)
    micro = c["microbatch_ms"] * 1e-3 * v["vpp"]
    wide = float(wide_layer(x, as_arrays(c))[0])
    full = v["layers"] * whole + (0.0 if v["pp"] > 1 else head) + micro + v["wide_first"] * wide
    last = v["last_layers"] * whole + head + micro + v["wide_last"] * wide
    ends = full < last or v["pp"] == 1
    layers = v["layers"] if full >= last else v["last_layers"]
    m = v["microbatches"]
    times = f"x {layers:g} layers x {m:g} micro-batches"
    lines = [
        StepLine(
            part=term.part,
            name=term.name,
            time_s=term.time_s * layers * m,
            formula=term.formula,
            numbers=f"{term.numbers} {times}",
        )
        for term in (*layer.terms, gather, host)
    ]
    if ends:
        lines.append(
            StepLine(
                part="compute_s",
                name="logits and loss",
                time_s=m * head,
                formula="larger(matmul x surface, power x work at the datasheet's peak) + passes x "
                "bytes / bandwidth + optimizer x bytes / bandwidth, per micro-batch",
                numbers=f"(larger({product(c['matmul'], v['head_matmul'])}, "
                f"{product(c['power'], v['head_peak'])}) + "
                f"{product(c['passes'], v['head_pass'])} + "
                f"{product(c['optimizer'], v['head_accumulation'])}) x {m:g} micro-batches",
            )
        )
    lines.append(
        StepLine(
            part="compute_s",
            name="host work per micro-batch",
            time_s=m * micro,
            formula="microbatch_ms x chunks per rank, per micro-batch",
            numbers=f"{format_time(micro)} x {m:g}",
        )
    )
    here = v["wide_first"] if full >= last else v["wide_last"]
    lines.append(
        StepLine(
            part="compute_s",
            name="first and last layers in bf16",
            time_s=m * here * wide,
            formula="matmul x (surface in bf16 - surface in the run's precision)",
            numbers=f"{format_time(wide)} x {here:g} layers x {m:g} micro-batches",
        )
    )
    middle = max(v["pp"] - 2.0, 0.0) * v["wide_first"] * wide
    lines += _pipeline(v, c, full, last, middle)
    lines += far_lines(x, c, max(full, last), v["layers"] * layer.total_s)
    lines += _once(v, c)
    before = sum(line.time_s for line in lines)
    doublings = math.log2(max(v["nodes"], 1.0))
    lines.append(
        StepLine(
            part="overhead_s",
            name="the slowest of the nodes",
            time_s=c["spread"] * doublings * before,
            formula="spread x log2(nodes) x all of the above",
            numbers=f"{c['spread']:.4g} x {doublings:.3g} x {format_time(before)}",
        )
    )
    lines.append(_risk(x, v, c))
    return tuple(line for line in lines if line.time_s != 0.0)


def _head(v: Mapping[str, float], c: Mapping[str, float]) -> float:
    matmuls = larger_of(c["matmul"] * v["head_matmul"], c["power"] * v["head_peak"])
    return matmuls + c["passes"] * v["head_pass"] + c["optimizer"] * v["head_accumulation"]


def _gather(v: Mapping[str, float], c: Mapping[str, float], layer: float) -> StepLine:
    steps = 1e-6 * v["gather_steps"] * c["outer_step_us"]
    gather = moved("gather", v, c) + steps
    hidden = larger_of(layer, gather) - layer if gather > 0 else 0.0
    return StepLine(
        part="gather_s",
        name="gathering sharded weights (ZeRO-3)",
        time_s=hidden + c["gather_exposed"] * min(gather, layer),
        formula="larger(layer, messages) - layer + gather_exposed x smaller of the two",
        numbers=f"(layer {format_time(layer)}, messages {moved_numbers('gather', v, c)} + "
        f"{format_time(steps)} = {format_time(gather)}; {c['gather_exposed']:.4g})",
    )


def _pipeline(
    v: Mapping[str, float], c: Mapping[str, float], full: float, last: float, middle: float
) -> list[StepLine]:
    """middle  what the first stage has and those between the ends have not"""
    if v["pp"] <= 1:
        return []
    m, stages, busiest = v["microbatches"], v["pp"], max(full, last)
    others = (stages - 1) * full + last - busiest - middle
    idle = others / v["vpp"]
    words = "(all stages' time per micro-batch - the busiest's) / chunks per rank"
    numbers = (
        f"({stages - 1:g} x {format_time(full)} + {format_time(last)} - {format_time(busiest)}) / "
        f"{v['vpp']:g}"
    )
    if v["idle_share"] > 0:
        idle = min(v["idle_share"] * busiest, others)
        words = "idle time of the schedule's own timeline x the busiest stage, 1f1b's at most"
        numbers = f"{v['idle_share']:.4g} x {format_time(busiest)}"
    steps = 1e-6 * (v["cut_steps"] * c["cut_step_us"] + v["cut_peers"] * c["cut_peer_us"])
    exposed = m * v["vpp"] * c["cut_exposed"]
    return [
        StepLine(part="bubble_s", name="idle stages", time_s=idle, formula=words, numbers=numbers),
        StepLine(
            part="cut_s",
            name="sends between stages",
            time_s=2.0 * (moved("cut", v, c) + steps) * (exposed + stages - 1),
            formula="2 x (inner, outer x seconds + cut_step_us x sends + cut_peer_us x ranks "
            "beside) x (micro-batches x chunks x cut_exposed + stages - 1)",
            numbers=f"2 x ({moved_numbers('cut', v, c)} + {format_time(steps)}) x "
            f"({m:g} x {v['vpp']:g} x {c['cut_exposed']:.4g} + {stages - 1:g})",
        ),
    ]


def _risk(x: Features, v: Mapping[str, float], c: Mapping[str, float]) -> StepLine:
    """What trouble adds, or the risk of it (message_stalls.py)."""
    arrays = {name: np.asarray([value]) for name, value in c.items()}
    trouble = np.ones(1, dtype=np.bool_)
    chances = stall_chance(x, arrays)
    calm, troubled = (step_parts(x, arrays, case).total_s for case in (~trouble, trouble))
    chance, without, with_it = float(chances[0]), float(calm[0]), float(troubled[0])
    messages = float(stalled_messages(x, trouble)[0])
    ranks = float(waiting_ranks(x, trouble)[0])
    what = (
        f"{messages:g} messages x {c['stall_ms']:.4g} ms"
        if messages
        else f"collectives that wait, {ranks:g} x {c['wait_us']:.4g} us a forward layer"
    )
    who = (
        "all that need more memory than there is"
        if v["over_memory"] > 0
        else f"{chance:.0%} of such jobs"
    )
    return StepLine(
        part="stall_s",
        name="messages that stall",
        time_s=float(risk_s(calm, troubled, chances)[0]),
        formula="time with stalls less time without; where 4 of 5 jobs or fewer stall, their share "
        "of that, counted as 2 steps without at most",
        numbers=f"{format_time(with_it)} with ({what}), {format_time(without)} without; {who}",
    )


def _once(v: Mapping[str, float], c: Mapping[str, float]) -> list[StepLine]:
    steps = 1e-6 * v["reduce_steps"] * c["outer_step_us"]
    return [
        StepLine(
            part="reduce_s",
            name="exchange of gradients and weights",
            time_s=(moved("reduce", v, c) + steps) * c["reduce_exposed"],
            formula="(slowest of (inner x seconds in the node, outer x seconds between nodes) + "
            "latency) x reduce_exposed",
            numbers=f"({moved_numbers('reduce', v, c)} + {format_time(steps)}) x "
            f"{c['reduce_exposed']:.4g}",
        ),
        StepLine(
            part="reduce_s",
            name="ring steps of that exchange",
            time_s=1e-6 * v["reduce_ranks"] * c["reduce_rank_us"],
            formula="reduce_rank_us x ring steps",
            numbers=f"{c['reduce_rank_us']:.4g} us x {v['reduce_ranks']:g}",
        ),
        StepLine(
            part="reduce_s",
            name="buckets of gradients that wait for the host",
            time_s=1e-3 * v["waiting_buckets"] * c["wait_bucket_ms"],
            formula="wait_bucket_ms x buckets of 25 MiB",
            numbers=f"{c['wait_bucket_ms']:.4g} ms x {v['waiting_buckets']:.4g}",
        ),
        StepLine(
            part="optimizer_s",
            name="optimizer",
            time_s=c["optimizer"] * v["optimizer_s"],
            formula="optimizer x bytes moved / memory bandwidth",
            numbers=product(c["optimizer"], v["optimizer_s"]),
        ),
        StepLine(
            part="optimizer_s",
            name="compressing gradients, outer optimizer of local steps",
            time_s=c["optimizer"] * v["extra_pass_s"],
            formula="optimizer x bytes moved / memory bandwidth",
            numbers=product(c["optimizer"], v["extra_pass_s"]),
        ),
        StepLine(
            part="host_s",
            name="optimizer in host memory",
            time_s=v["host_step_s"],
            formula="gradients down, Adam at the host's memory bandwidth, weights up: the slowest "
            "where the framework overlaps them, else their sum",
            numbers=format_time(v["host_step_s"]),
        ),
        StepLine(
            part="overhead_s",
            name="each step, whatever its size",
            time_s=c["step_ms"] * 1e-3,
            formula="step_ms",
            numbers=f"{c['step_ms']:.4g} ms",
        ),
    ]
