"""Why a runner-up lost, in few words, and what would help the plan that won."""

from __future__ import annotations

from profiles.units import format_bytes, format_percent, format_time
from simulator.traced.predict import SHARED_SUMS
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction


def why_not_first(plan: Plan, prediction: Prediction, best: Prediction) -> str:
    """What makes `plan` slower than the best: the component that grew most, in its own terms.

    Parameters: the runner-up, its prediction, the prediction of the best plan.
    """
    slower_s = prediction.step_time_s.value - best.step_time_s.value
    if slower_s <= 1e-9 * best.step_time_s.value:
        more = prediction.peak_memory_bytes.value - best.peak_memory_bytes.value
        return f"as fast, {format_bytes(more)} more memory" if more > 0 else "as fast; tie"
    before = {part.name: part.time_s for part in best.components}
    grown = sorted(
        ((part.time_s - before.get(part.name, 0.0), part.name) for part in prediction.components),
        key=lambda pair: (-pair[0], pair[1]),
    )
    extra_s, name = grown[0]
    share = format_percent(slower_s / best.step_time_s.value)
    return f"{share} slower: {_phrase(name, extra_s, plan, prediction)}"


def _phrase(name: str, extra_s: float, plan: Plan, prediction: Prediction) -> str:
    degrees = plan.degrees
    more = f"+{format_time(extra_s)}"
    if name == "bubble":
        return f"bubble {format_percent(prediction.bubble_fraction)}"
    if name == "data_parallel_communication" and degrees.dp == 1:
        return f"{SHARED_SUMS} {more}"
    if name == "data_parallel_communication":
        what = "gradient reduction" if plan.zero_stage < 3 else "parameter gathering"
        return f"{what} across {degrees.dp} devices {more}"
    if name == "tensor_parallel_communication":
        return f"tensor-parallel all-reduces across {degrees.tp} devices {more}"
    if name == "pipeline_communication":
        return f"sends between {degrees.pp * degrees.vpp} stages {more}"
    if name == "recompute":
        return f"recomputation {more}"
    if name == "compute":
        return f"less efficient kernels (micro-batch {plan.micro_batch}, tp {degrees.tp}) {more}"
    if name == "launch":
        return f"kernel launches ({plan.num_microbatches} micro-batches) {more}"
    return f"{name.replace('_', ' ')} {more}"
