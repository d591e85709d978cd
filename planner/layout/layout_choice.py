"""A refined layout with its prediction: intervals, money, energy, and why it is not first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice, LayoutFile, LayoutPrediction
from planner.layout.refined_layout import PricedLayout
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.sourced import Sourced
from profiles.units import format_time
from simulator.energy import carbon
from simulator.goodput.lasting import Reliability, delivered, reliability
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.memory.footprint import footprint
from simulator.mfu import mfu, model_flop_per_token
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.training_run.explain.predict_runs import predicted_parts, unfitted_s
from simulator.training_run.fit.interval import step_interval, widened
from simulator.training_run.fit.logged_source import Calibration, calibrated_interval
from simulator.training_run.fit.memory_interval import memory_interval, out_of_memory_probability
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, shipped_coefficients
from simulator.training_run.step.step_time import StepParts
from simulator.values.prediction import Interval


def choice_of(
    layout: PricedLayout,
    best: PricedLayout | None,
    cluster: Cluster,
    coefficients: CoefficientFile | None = None,
    calibration: Calibration | None = None,
) -> LayoutChoice:
    """The layout with its prediction (`layout_prediction`), and why it is not the best one."""
    return LayoutChoice(
        run=layout.run,
        prediction=layout_prediction(
            layout.run, cluster, coefficients=coefficients, calibration=calibration
        ),
        why_not_first="" if best is None else why_not_first(layout, best),
        idle_devices=cluster.num_devices - layout.run.degrees.num_devices,
    )


def layout_prediction(
    run: TrainingRun,
    cluster: Cluster,
    price: Sourced | None = None,
    *,
    coefficients: CoefficientFile | None = None,
    calibration: Calibration | None = None,
) -> LayoutPrediction:
    """What a layout would do on a cluster.

    price         US dollars per device-hour, None for no dollars; idle devices cost and draw too
    coefficients  the shipped ones if None;  calibration  what changed them

    Raises InputError where the framework's file does not describe the run's memory.
    """
    coefficients = coefficients or shipped_coefficients()
    parts = predicted_parts([run], coefficients)
    step = _step(run, float(parts.total_s[0]), coefficients, calibration)
    per_s, used, memory = tokens_per_s(run, step), mfu_of_run(run, step), footprint(run)
    power = power_mfu(run, used.value, cluster.num_devices)
    found = LayoutPrediction(
        step_time_s=step,
        parts=tuple(
            (name, float(getattr(parts, name)[0])) for name in StepParts.__dataclass_fields__
        ),
        mfu=used.value,
        peak_memory_bytes=memory.allocated_bytes,
        reserved_memory_bytes=memory.reserved_bytes,
        required_memory_bytes=memory.needed_bytes,
        out_of_memory_probability=out_of_memory_probability(
            run, memory.needed_bytes, get_device(run.device).usable_bytes
        ),
        kwh_per_million_tokens=kwh_per_million_tokens(per_s, cluster, power),
        tokens_per_s=per_s,
        mfu_range=used,
        peak_memory_range=memory_interval(run, memory.allocated_bytes),
        reliability=_reliability(run, DEFAULT),
    )
    return _priced(found, run, cluster.num_devices, price, DEFAULT, "")


def with_layout_price(
    answer: LayoutFile,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutFile:
    """The answer with its dollars at a price, on capacity that fails and is taken back as `inputs`
    say; None takes the dollars out. Which layout is best does not depend on it.

    region   of the grid, for carbon; "" leaves that out. Raises UnknownNameError.
    """
    chosen = answer.chosen
    return replace(
        answer,
        chosen=None if chosen is None else priced_choice(chosen, price, inputs, region),
        alternatives=tuple(
            priced_choice(other, price, inputs, region) for other in answer.alternatives
        ),
    )


def priced_choice(
    choice: LayoutChoice,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutChoice:
    """A layout with its dollars, energy and carbon, as `with_layout_price` describes."""
    devices = choice.run.degrees.num_devices + choice.idle_devices
    found = _priced(choice.prediction, choice.run, devices, price, inputs, region)
    return replace(choice, prediction=found)


def _priced(
    found: LayoutPrediction,
    run: TrainingRun,
    devices: int,
    price: Sourced | None,
    inputs: ReliabilityInputs,
    region: str,
) -> LayoutPrediction:
    lasting = _reliability(run, inputs)
    usd = usd_per_million_tokens(tokens_per_s(run, found.step_time_s), devices, price)
    kwh = delivered(found.kwh_per_million_tokens, lasting.goodput)
    return replace(
        found,
        price_usd_per_hour=price,
        usd_per_million_tokens=usd,
        reliability=lasting,
        usd_per_million_tokens_delivered=delivered(usd, lasting.goodput),
        kwh_per_million_tokens_delivered=kwh,
        kg_co2e_per_million_tokens_delivered=(
            carbon(kwh, region) if kwh is not None and region else None
        ),
        region=region,
    )


def _reliability(run: TrainingRun, inputs: ReliabilityInputs) -> Reliability:
    return reliability(run.model.parameters, run.degrees.num_devices, run.device, inputs)


def tokens_per_s(run: TrainingRun, step_time_s: Interval) -> Interval:
    """Tokens that a run trains on per second."""
    tokens = run.global_batch * run.seq_len
    return Interval(
        value=tokens / step_time_s.value,
        low=tokens / step_time_s.high,
        high=tokens / step_time_s.low,
    )


def mfu_of_run(run: TrainingRun, step: Interval) -> Interval:
    """The MFU of a run's step."""
    flop = run.global_batch * run.seq_len * model_flop_per_token(run.model, run.seq_len)
    peak = get_device(run.device).peak(run.precision).value
    return mfu(flop, step, run.degrees.num_devices * peak)


def power_mfu(run: TrainingRun, mfu: float, num_devices: int) -> float:
    """MFU of the 16-bit peak over all devices, also those that stay idle: what power follows."""
    device = get_device(run.device)
    low_precision = device.peak(run.precision).value / device.peak_or_twins("bfloat16").value
    return mfu * max(1.0, low_precision) * run.degrees.num_devices / num_devices


def _step(
    run: TrainingRun, time_s: float, coefficients: CoefficientFile, calibration: Calibration | None
) -> Interval:
    """The interval of a step as wide as its coefficients are uncertain, or as the residuals of the
    calibration's own runs; wider on either side by half of the seconds that no fitted run had."""
    found = (
        step_interval(run, time_s)
        if calibration is None
        else calibrated_interval(run, time_s, calibration)
    )
    return widened(found, unfitted_s([run], [time_s], coefficients)[0])


_PART_WORDS = {
    "compute_s": "compute",
    "tensor_s": "tensor-parallel messages",
    "expert_s": "all-to-all of experts",
    "context_s": "context-parallel messages",
    "gather_s": "gathering of parameters",
    "cut_s": "sends between stages",
    "stall_s": "stalled messages",
    "bubble_s": "bubble",
    "reduce_s": "exchange of gradients",
    "optimizer_s": "optimizer",
    "host_s": "host memory",
    "overhead_s": "overhead",
}


def part_words(name: str) -> str:
    """What a part of the step is called."""
    return _PART_WORDS.get(name, name.removesuffix("_s").replace("_", " "))


def why_not_first(layout: PricedLayout, best: PricedLayout) -> str:
    """`2.1 % slower: bubble +1.3 s`."""
    return slower_by(
        dict(layout.parts), dict(best.parts), layout.step_time_s / best.step_time_s - 1
    )


def slower_by(mine: Mapping[str, float], first: Mapping[str, float], slower: float) -> str:
    """The share by which a step is slower, and the part that differs most; seconds by part."""
    name = max(mine, key=lambda part: mine[part] - first[part])
    if slower < 5e-4 or mine[name] <= first[name]:
        return f"{slower:.1%} slower"
    return f"{slower:.1%} slower: {part_words(name)} +{format_time(mine[name] - first[name])}"
