"""The step time of one described run as a sum of lines: formula in words, numbers, seconds.

The formulas are those of `step_time.py`, written out for one run; `explain_run` checks that every
part's lines add up to what `step_parts` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profiles.units import format_time
from simulator.training_run.explain_far import as_arrays, far_lines, host_line
from simulator.training_run.features import Features
from simulator.training_run.message_stalls import (
    risk_s,
    stall_chance,
    stalled_messages,
    waiting_buckets,
    waiting_ranks,
)
from simulator.training_run.step_line import StepLine
from simulator.training_run.step_time import larger, step_parts, wide_layer


def step_lines(x: Features, c: Mapping[str, float]) -> tuple[StepLine, ...]:
    """The terms of one run's step that are not 0.

    x  features of the run alone;  c  the value of each kind of coefficient
    """
    v = {name: float(getattr(x, name)[0]) for name in Features.__dataclass_fields__}
    calm = np.zeros(1, dtype=np.bool_)
    v["waiting_ranks"] = float(waiting_ranks(x, calm)[0])
    v["waiting_buckets"] = float(waiting_buckets(x, calm)[0])
    layer = _LayerTerms.of(v, c)
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
                numbers=f"(larger({_product(c['matmul'], v['head_matmul'])}, "
                f"{_product(c['power'], v['head_peak'])}) + "
                f"{_product(c['passes'], v['head_pass'])} + "
                f"{_product(c['optimizer'], v['head_accumulation'])}) x {m:g} micro-batches",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerTerms:
    """Terms of one layer and micro-batch; total_s is their sum."""

    terms: tuple[StepLine, ...]

    @property
    def total_s(self) -> float:
        return sum(term.time_s for term in self.terms)

    @classmethod
    def of(cls, v: Mapping[str, float], c: Mapping[str, float]) -> _LayerTerms:
        passes = [*_pass_terms("forward", v, c), *_pass_terms("backward", v, c)]
        passes += _recomputed(v, c, {term.name: term.time_s for term in passes})
        passes += _layer_messages(v, c)
        device = sum(term.time_s for term in passes)
        again = 2.0 + v["recomputed_matmul"]
        kernels = v["kernels_forward"] * (1.0 + v["recomputed_matmul"]) + v["kernels_backward"]
        calls = v["socket_calls"] * again
        ranks = v["waiting_ranks"] * again
        host = (kernels * c["launch_us"] + calls * c["socket_us"] + ranks * c["wait_us"]) * 1e-6
        waiting = StepLine(
            part="compute_s",
            name="waiting for the host",
            time_s=_larger(device, host) - device,
            formula="larger(device, kernels x launch_us + collectives between sockets x "
            "socket_us + ranks of collectives beside blocking messages x wait_us) - device",
            numbers=f"(larger({format_time(device)}, {kernels:.4g} x {c['launch_us']:.4g} us + "
            f"{calls:g} x {c['socket_us']:.4g} us + {ranks:g} x {c['wait_us']:.4g} us) - "
            f"{format_time(device)})",
        )
        rings = StepLine(
            part="compute_s",
            name="ring steps of tensor parallelism between nodes",
            time_s=v["tensor_rings"] * again * c["ring_us"] * 1e-6,
            formula="ring_us x ring steps x passes over the layer",
            numbers=f"{c['ring_us']:.4g} us x {v['tensor_rings']:g} x {again:g}",
        )
        return cls(terms=(*passes, waiting, rings))


def _head(v: Mapping[str, float], c: Mapping[str, float]) -> float:
    matmuls = _larger(c["matmul"] * v["head_matmul"], c["power"] * v["head_peak"])
    return matmuls + c["passes"] * v["head_pass"] + c["optimizer"] * v["head_accumulation"]


def _pass_terms(way: str, v: Mapping[str, float], c: Mapping[str, float]) -> list[StepLine]:
    surface, peak = v[f"matmul_{way}"], v[f"peak_{way}"]
    grouped = c["grouped"] * c["matmul"]
    scores = (1.0 if way == "forward" else 1.5) * v["score_forward"]
    terms = [
        (
            "matmuls",
            _larger(c["matmul"] * surface, c["power"] * peak),
            "larger(matmul x surface, power x work at the datasheet's peak)",
            f"larger({_product(c['matmul'], surface)}, {_product(c['power'], peak)})",
        ),
        (
            "attention",
            c["attention"] * v[f"attention_{way}"],
            "attention x surface of the attention core",
            _product(c["attention"], v[f"attention_{way}"]),
        ),
        (
            "experts' matmuls",
            grouped * v[f"grouped_{way}"],
            "grouped x matmul x surface",
            f"{c['grouped']:.4g} x {_product(c['matmul'], v[f'grouped_{way}'])}",
        ),
        (
            "elementwise work",
            c["passes"] * v[f"pass_{way}"],
            "passes x bytes moved / memory bandwidth",
            _product(c["passes"], v[f"pass_{way}"]),
        ),
        (
            "softmax and dropout of the scores",
            c["scores"] * scores,
            "scores x bytes moved / memory bandwidth",
            _product(c["scores"], scores),
        ),
    ]
    if way == "backward":
        terms.append(
            (
                "adding gradients to their sums",
                c["optimizer"] * v["accumulation_s"],
                "optimizer x bytes moved / memory bandwidth",
                _product(c["optimizer"], v["accumulation_s"]),
            )
        )
    return [
        StepLine(
            part="compute_s", name=f"{name}, {way}", time_s=time, formula=words, numbers=numbers
        )
        for name, time, words, numbers in terms
    ]


def _recomputed(
    v: Mapping[str, float], c: Mapping[str, float], forward: Mapping[str, float]
) -> list[StepLine]:
    again = (
        (
            "matmuls",
            v["recomputed_matmul"],
            forward["matmuls, forward"] + forward["experts' matmuls, forward"],
        ),
        (
            "attention",
            v["recomputed_attention"],
            forward["attention, forward"] + forward["softmax and dropout of the scores, forward"],
        ),
        ("elementwise work", v["recomputed_pass"], forward["elementwise work, forward"]),
    )
    return [
        StepLine(
            part="compute_s",
            name=f"{name}, recomputed",
            time_s=share * time_s,
            formula="share that is done again x forward",
            numbers=f"{share:.3g} x {format_time(time_s)}",
        )
        for name, share, time_s in again
    ]


def _layer_messages(v: Mapping[str, float], c: Mapping[str, float]) -> list[StepLine]:
    again = 2.0 + v["recomputed_matmul"]
    steps = 1e-6 * (
        v["tensor_inner_steps"] * c["inner_step_us"] + v["tensor_outer_steps"] * c["outer_step_us"]
    )
    return [
        StepLine(
            part="tensor_s",
            name="tensor parallelism's collectives",
            time_s=(_moved("tensor", v, c) + steps) * again * c["tensor_exposed"],
            formula="(inner x seconds in the node + outer x seconds between nodes + latency) x "
            "passes x tensor_exposed",
            numbers=f"({_moved_numbers('tensor', v, c)} + {format_time(steps)}) x {again:g} x "
            f"{c['tensor_exposed']:.4g}",
        ),
        StepLine(
            part="expert_s",
            name="experts' all-to-alls",
            time_s=_moved("expert", v, c) * again,
            formula="(inner x seconds in the node + outer x seconds between nodes) x passes",
            numbers=f"({_moved_numbers('expert', v, c)}) x {again:g}",
        ),
        StepLine(
            part="context_s",
            name="context parallelism's collectives",
            time_s=_moved("context", v, c) * 3.0,
            formula="(inner x seconds in the node + outer x seconds between nodes) x 3",
            numbers=f"({_moved_numbers('context', v, c)}) x 3",
        ),
    ]


def _gather(v: Mapping[str, float], c: Mapping[str, float], layer: float) -> StepLine:
    steps = 1e-6 * v["gather_steps"] * c["outer_step_us"]
    gather = _moved("gather", v, c) + steps
    hidden = _larger(layer, gather) - layer if gather > 0 else 0.0
    return StepLine(
        part="gather_s",
        name="gathering sharded weights (ZeRO-3)",
        time_s=hidden + c["gather_exposed"] * min(gather, layer),
        formula="larger(layer, messages) - layer + gather_exposed x smaller of the two",
        numbers=f"(layer {format_time(layer)}, messages {_moved_numbers('gather', v, c)} + "
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
            time_s=2.0 * (_moved("cut", v, c) + steps) * (exposed + stages - 1),
            formula="2 x (inner, outer x seconds + cut_step_us x sends + cut_peer_us x ranks "
            "beside) x (micro-batches x chunks x cut_exposed + stages - 1)",
            numbers=f"2 x ({_moved_numbers('cut', v, c)} + {format_time(steps)}) x "
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
            time_s=(_moved("reduce", v, c) + steps) * c["reduce_exposed"],
            formula="(inner x seconds in the node + outer x seconds between nodes + latency) x "
            "reduce_exposed",
            numbers=f"({_moved_numbers('reduce', v, c)} + {format_time(steps)}) x "
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
            numbers=_product(c["optimizer"], v["optimizer_s"]),
        ),
        StepLine(
            part="optimizer_s",
            name="compressing gradients, outer optimizer of local steps",
            time_s=c["optimizer"] * v["extra_pass_s"],
            formula="optimizer x bytes moved / memory bandwidth",
            numbers=_product(c["optimizer"], v["extra_pass_s"]),
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


def _moved(name: str, v: Mapping[str, float], c: Mapping[str, float]) -> float:
    beyond = max(v[f"{name}_outer"] * c["outer"], _far(name, v))
    return v[f"{name}_inner"] * c["inner"] + beyond


def _far(name: str, v: Mapping[str, float]) -> float:
    """Sends between far parts of the machine are a line of their own."""
    return 0.0 if name == "cut" else v[f"{name}_far"]


def _moved_numbers(name: str, v: Mapping[str, float], c: Mapping[str, float]) -> str:
    inner, outer = v[f"{name}_inner"], v[f"{name}_outer"]
    far = _far(name, v)
    beyond = _product(c["outer"], outer)
    if far:
        beyond = f"larger({beyond}, slowest level beyond {format_time(far)})"
    return f"{_product(c['inner'], inner)} + {beyond}"


def _product(coefficient: float, time_s: float) -> str:
    return f"{coefficient:.4g} x {format_time(time_s)}" if time_s else "0"


def _larger(a: float, b: float) -> float:
    return float(larger(np.asarray(a), np.asarray(b)))
