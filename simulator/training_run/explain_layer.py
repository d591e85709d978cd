"""The time of one layer and micro-batch as a sum of lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.units import format_time
from simulator.training_run.explain_numbers import larger_of, moved, moved_numbers, product
from simulator.training_run.step_line import StepLine


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTerms:
    """Terms of one layer and micro-batch; total_s is their sum."""

    terms: tuple[StepLine, ...]

    @property
    def total_s(self) -> float:
        """Their sum."""
        return sum(term.time_s for term in self.terms)

    @classmethod
    def of(cls, v: Mapping[str, float], c: Mapping[str, float]) -> LayerTerms:
        """Of a run's features `v` and coefficients `c`, both by name."""
        passes = [*_pass_terms("forward", v, c), *_pass_terms("backward", v, c)]
        passes += _recomputed(v, c, {term.name: term.time_s for term in passes})
        passes += _layer_messages(v, c)
        passes.append(_expert_messages(v, c, sum(term.time_s for term in passes)))
        device = sum(term.time_s for term in passes)
        again = 2.0 + v["recomputed_matmul"]
        kernels = v["kernels_forward"] * (1.0 + v["recomputed_matmul"]) + v["kernels_backward"]
        calls = v["socket_calls"] * again
        ranks = v["waiting_ranks"] * again
        host = (kernels * c["launch_us"] + calls * c["socket_us"] + ranks * c["wait_us"]) * 1e-6
        waiting = StepLine(
            part="compute_s",
            name="waiting for the host",
            time_s=larger_of(device, host) - device,
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


def _pass_terms(way: str, v: Mapping[str, float], c: Mapping[str, float]) -> list[StepLine]:
    surface, peak = v[f"matmul_{way}"], v[f"peak_{way}"]
    grouped = c["grouped"] * c["matmul"]
    scores = (1.0 if way == "forward" else 1.5) * v["score_forward"]
    terms = [
        (
            "matmuls",
            larger_of(c["matmul"] * surface, c["power"] * peak),
            "larger(matmul x surface, power x work at the datasheet's peak)",
            f"larger({product(c['matmul'], surface)}, {product(c['power'], peak)})",
        ),
        (
            "attention",
            c["attention"] * v[f"attention_{way}"],
            "attention x surface of the attention core",
            product(c["attention"], v[f"attention_{way}"]),
        ),
        (
            "recurrence of states",
            c["state"] * v[f"state_{way}"],
            "state x (surface of its products + bytes moved / memory bandwidth)",
            product(c["state"], v[f"state_{way}"]),
        ),
        (
            "experts' matmuls",
            grouped * v[f"grouped_{way}"],
            "grouped x matmul x surface",
            f"{c['grouped']:.4g} x {product(c['matmul'], v[f'grouped_{way}'])}",
        ),
        (
            "elementwise work",
            c["passes"] * v[f"pass_{way}"],
            "passes x bytes moved / memory bandwidth",
            product(c["passes"], v[f"pass_{way}"]),
        ),
        (
            "casts to fewer bits",
            c["casts"] * v[f"cast_{way}"],
            "casts x bytes moved / memory bandwidth",
            product(c["casts"], v[f"cast_{way}"]),
        ),
        (
            "softmax and dropout of the scores",
            c["scores"] * scores,
            "scores x bytes moved / memory bandwidth",
            product(c["scores"], scores),
        ),
    ]
    if way == "backward":
        terms.append(
            (
                "adding gradients to their sums",
                c["optimizer"] * v["accumulation_s"],
                "optimizer x bytes moved / memory bandwidth",
                product(c["optimizer"], v["accumulation_s"]),
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
            forward["matmuls, forward"]
            + forward["experts' matmuls, forward"]
            + forward["casts to fewer bits, forward"],
        ),
        (
            "attention",
            v["recomputed_attention"],
            forward["attention, forward"] + forward["softmax and dropout of the scores, forward"],
        ),
        ("recurrence of states", v["recomputed_matmul"], forward["recurrence of states, forward"]),
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
            time_s=(moved("tensor", v, c) + steps) * again * c["tensor_exposed"],
            formula="(slowest of (inner x seconds in the node, outer x seconds between nodes) + "
            "latency) x passes x tensor_exposed",
            numbers=f"({moved_numbers('tensor', v, c)} + {format_time(steps)}) x {again:g} x "
            f"{c['tensor_exposed']:.4g}",
        ),
        StepLine(
            part="context_s",
            name="context parallelism's collectives",
            time_s=moved("context", v, c) * 3.0 * c["context_exposed"],
            formula="slowest of (inner x seconds in the node, outer x seconds between nodes) x 3 x "
            "context_exposed",
            numbers=f"({moved_numbers('context', v, c)}) x 3 x {c['context_exposed']:.4g}",
        ),
    ]


def _expert_messages(
    v: Mapping[str, float], c: Mapping[str, float], computing_s: float
) -> StepLine:
    again = 2.0 + v["recomputed_matmul"]
    exposed = c["expert_exposed"]
    whole = moved("expert", v, c) * again * exposed
    words = "slowest of (inner x seconds in the node, outer x seconds between nodes) x passes"
    words += " x expert_exposed"
    numbers = f"({moved_numbers('expert', v, c)}) x {again:g} x {exposed:.4g}"
    if v["overlaps_experts"] and whole > 0:
        whole = larger_of(computing_s, whole) - computing_s
        words = f"larger(computing, {words}) - computing: beside another micro-batch's passes"
        numbers = f"larger({format_time(computing_s)}, {numbers}) - {format_time(computing_s)}"
    return StepLine(
        part="expert_s",
        name="experts' all-to-alls",
        time_s=whole,
        formula=words,
        numbers=numbers,
    )
