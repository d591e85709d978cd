"""Details in a report of `size` in addition to its JSON: distribution of the duration, effect of
each uncertain figure, memory and step by part, and the source of every input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from planner.sizing.run_outlook import RunOutlook, SizeAnswer, simulated_time
from planner.sizing.size_question import SizeQuestion
from profiles.document import encode
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.energy.grid_carbon import grid_of
from profiles.units import format_count, format_percent, format_rate, format_time
from shardwright.analysis.layout_timeline import layout_memory
from simulator import scaling_law
from simulator.energy import power_words
from simulator.goodput.reliability_inputs import SOURCES
from simulator.goodput.time_to_train import TimeToTrain
from simulator.values.prediction import Interval

# Probabilities of the quantiles of the duration.
_QUANTILES = tuple(percent / 100 for percent in range(1, 100))


def size_details(
    question: SizeQuestion, answer: SizeAnswer, *, seed: int, runs: int
) -> dict[str, Any]:
    """Plain values with other keys than `size_json`; empty if nothing fits.

    seed, runs  of the answer's simulation, to repeat it
    """
    best = answer.best
    if best is None:
        return {}
    run = best.run
    step = best.plan.prediction.step_time_s.scaled(question.stretch)
    time = simulated_time(question, run, step, seed=seed, runs=runs)
    price = run.choice.usd_per_hour
    return {
        "seq_len": question.seq_len,
        "region": question.region,
        "pue": question.pue.value,
        "usd_per_device_hour_low": None if price is None else price.low,
        "usd_per_device_hour_high": None if price is None else price.high,
        "completion": {
            "probability": list(_QUANTILES),
            "days": [time.days_with(each) for each in _QUANTILES],
        },
        "contingency": encode(time.contingency),
        "swings": [
            _swing(name, best, low, high, usd_only=name == "price of a device-hour")
            for name, (low, high) in _swings(step, time, price).items()
        ],
        "memory": _memory(best),
        "step_parts": {
            part.words: seconds for part, seconds in best.plan.prediction.seconds.items()
        },
        "sources": _sources(question, best),
        "scaling_law": _scaling_law(question, answer.flop, run.tokens),
    }


def _scaling_law(question: SizeQuestion, flop: float, tokens: float) -> str:
    """Predicted loss, and the best use of the compute; "" where the law does not hold."""
    if question.model.num_experts or question.lora_rank:
        return ""
    best = scaling_law.optimum_of_compute(flop)
    parameters = question.model.parameters
    far = ", here extrapolated" if scaling_law.outside_range(parameters, tokens) else ""
    return (
        f"{scaling_law.predicted_loss(parameters, tokens):.3f} nats; least for this FLOP "
        f"{best.loss:.3f} with {format_count(best.parameters)} on {format_count(best.tokens)} "
        f"tokens; this model's compute is best spent on "
        f"{format_count(scaling_law.optimal_tokens(parameters))} tokens ({scaling_law.SOURCE}; "
        f"{scaling_law.RANGE_WORDS}{far})"
    )


def _swing(
    name: str, best: RunOutlook, low: float, high: float, *, usd_only: bool
) -> dict[str, Any]:
    """Days and dollars at both ends of one figure's 90 % interval, the others at their values."""
    days = best.days.value
    usd = None if best.usd is None else best.usd.value
    fixed = sum(part.value for part in (best.storage_usd, best.egress_usd) if part is not None)
    return {
        "name": name,
        "days_low": days if usd_only else days * low,
        "days_high": days if usd_only else days * high,
        "usd_low": None if usd is None else (usd - fixed) * low + fixed,
        "usd_high": None if usd is None else (usd - fixed) * high + fixed,
    }


def _swings(
    step: Interval, time: TimeToTrain, price: Interval | None
) -> dict[str, tuple[float, float]]:
    """Factors on the run at both ends of each figure's interval."""
    kept = time.productive_time
    factors = {
        "step time": (step.low / step.value, step.high / step.value),
        "contingency of whole runs": (
            time.contingency.low / time.contingency.value,
            time.contingency.high / time.contingency.value,
        ),
        "failures, checkpoints and luck": (kept.value / kept.high, kept.value / kept.low),
    }
    if price is not None and price.low < price.high:
        factors["price of a device-hour"] = (price.low / price.value, price.high / price.value)
    return factors


def _memory(best: RunOutlook) -> dict[str, Any]:
    """Bytes of the fullest device by part, and its capacity."""
    peak = best.plan.prediction.peak
    return {
        "parts": [[name, size] for name, size in layout_memory(best.plan)],
        "required_bytes": best.plan.required_memory_bytes,
        "peak_bytes": peak.value,
        "peak_low_bytes": peak.low,
        "peak_high_bytes": peak.high,
        "capacity_bytes": get_device(best.run.choice.device).usable_bytes,
    }


def _sources(question: SizeQuestion, best: RunOutlook) -> list[dict[str, str]]:
    """Value, source and flag of every uncertain input."""
    run = best.run
    grid = grid_of(question.region).kg_per_kwh
    sources = [
        _source(
            "price of a device-hour",
            f"${run.choice.usd_per_hour.value:.2f}" if run.choice.usd_per_hour else "not known",
            run.choice.price_words or "none",
            "--prices, --price-kind",
        ),
        *_storage(question),
        _source("PUE", f"{question.pue.value:g}", question.pue.source, "--pue"),
        _source("carbon of the grid", f"{grid.value:.3g} kg/kWh", grid.source, "--region"),
        _source("power", "", power_words(run.choice.device, None, question.pue), "--pue"),
    ]
    inputs = question.reliability
    for field in fields(inputs):
        value = getattr(inputs, field.name)
        if field.name == "contingency":
            value = inputs.contingency_of(run.choice.device)
        if value is None:
            continue
        own = getattr(inputs, field.name) != field.default
        sources.append(
            _source(
                *_input_words(field.name, value),
                "your own file" if own else SOURCES[field.name],
                "--reliability",
            )
        )
    return sources


def _storage(question: SizeQuestion) -> list[dict[str, str]]:
    if question.storage is None:
        return []
    price = question.storage.price
    kept, sent = price.usd_per_gib_month, price.egress_usd_per_gib
    return [
        _source(
            "storage per GiB and month", f"${kept.value:g}", kept.source, "--prices, [storage]"
        ),
        _source("egress per GiB", f"${sent.value:g}", sent.source, "--prices, [storage]"),
    ]


def _source(name: str, value: str, source: str, change: str) -> dict[str, str]:
    return {"name": name, "value": value, "source": source, "change": change}


def _input_words(name: str, value: float | Mapping[str, float]) -> tuple[str, str]:
    """An input's name without its unit, and its value with the unit."""
    if isinstance(value, Mapping):
        text = ", ".join(f"{one} {share:.0%}" for one, share in value.items())
    elif "bytes_per_s" in name:
        name, text = name.replace("_bytes_per_s", ""), format_rate(value)
    elif name.endswith("_s"):
        name, text = name.removesuffix("_s"), format_time(value)
    elif name.endswith("_share") or name.startswith("slow_by"):
        text = format_percent(value)
    elif name.endswith("device_hours"):
        name, text = name.removesuffix("_device_hours"), f"every {format_count(value)} device-hours"
    elif name.endswith("_spread") or name == "contingency":
        text = f"factor {value:.3g}"
    else:
        text = f"{value:.4g}"
    return name.replace("_", " "), text
