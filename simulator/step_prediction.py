"""`step_prediction`: the only function that makes a `Prediction`, from the parts of a step.

Plans of traced blocks (traced/predict.py) and runs (training_run/explain/run_prediction.py) both
provide `StepFacts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate

from profiles.hardware.catalogue.cluster import Cluster
from profiles.sourced import Sourced
from simulator.mfu import mfu
from simulator.money import kwh_per_million_tokens, usd_per_million_tokens
from simulator.values.prediction import Component, Interval, Part, Prediction, RankMemory, SourceTag


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """A priced step.

    step        seconds with their interval
    parts       which add up to it
    model_flop  model FLOPs of the step
    peak_flop_per_s  of all devices in use together
    counted     tokens or samples of the step
    counted_in  the name of the unit
    ranks, peak, fits   memory of its ranks, the largest peak, and whether all ranks have enough;
                        (), None and None without a memory model
    """

    step: Interval
    parts: tuple[Component, ...]
    model_flop: float
    peak_flop_per_s: float
    counted: float
    counted_in: str = "tokens"
    ranks: tuple[RankMemory, ...] = ()
    peak: Interval | None = None
    fits: bool | None = None


def step_prediction(facts: StepFacts) -> Prediction:
    """The prediction of a step, without dollars, energy and timeline."""
    step = facts.step
    # Added in this order on every version of Python: from 3.12 on, sum() compensates for rounding.
    *_, total = accumulate(part.time_s for part in facts.parts)
    bubble = sum(part.time_s for part in facts.parts if part.name is Part.BUBBLE)
    per_s = Interval(
        value=facts.counted / step.value,
        low=facts.counted / step.high,
        high=facts.counted / max(step.low, 1e-12),
    )
    tokens = facts.counted_in == "tokens"
    return Prediction(
        step_time_s=replace(step, value=total),
        components=facts.parts,
        mfu=mfu(facts.model_flop, step, facts.peak_flop_per_s),
        tokens_per_s=per_s if tokens else None,
        samples_per_s=None if tokens else per_s,
        peak_memory_bytes=facts.peak,
        bubble_fraction=bubble / total if total else 0.0,
        ranks=facts.ranks,
        fits=facts.fits,
    )


def source_tags(seconds: Mapping[tuple[str, str, str], float]) -> tuple[SourceTag, ...]:
    """Shares of seconds by their (name, method, source), the largest first."""
    whole = sum(seconds.values()) or 1.0
    return tuple(
        SourceTag(name=name, method=method, source=source, share=time_s / whole)
        for (name, method, source), time_s in sorted(
            seconds.items(), key=lambda item: (-item[1], item[0])
        )
    )


def limit_words(made: Prediction, *, where: str = "", exchange: str = "") -> str:
    """The limits of a plan as text: the largest part of its step, and its fullest rank.

    where     name of the rank with the slowest step
    exchange  name of the gradient exchange
    """
    largest, tight = max(made.components, key=lambda part: part.time_s), made.fullest
    name = exchange if exchange and largest.name is Part.REDUCE else largest.name.words
    return (
        f"{name}{where} ({largest.time_s / made.step_time_s.value:.0%} of the step); memory of "
        f"rank {tight.rank} is {tight.use:.0%} full"
    )


def with_energy(made: Prediction, cluster: Cluster, power_mfu: float) -> Prediction:
    """The prediction with the energy of all devices of the cluster, including idle ones.

    power_mfu  relative to the 16-bit peak of all devices
    """
    kwh = kwh_per_million_tokens(made.per_s, cluster, power_mfu)
    tokens = made.counted_in == "tokens"
    return replace(
        made,
        kwh_per_million_tokens=kwh if tokens else None,
        kwh_per_million_samples=None if tokens else kwh,
    )


def with_price(made: Prediction, num_devices: int, price: Sourced | None) -> Prediction:
    """The prediction with the dollars of `num_devices` devices at a price per device-hour, or
    none."""
    return made.with_dollars(usd_per_million_tokens(made.per_s, num_devices, price), price)
