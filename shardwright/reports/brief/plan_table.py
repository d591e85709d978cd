"""Rows and columns of `plan --csv`, for every kind of answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from planner.layout.layout_answer import LayoutChoice, LayoutFile, layout_title
from planner.layout.layout_choice import slower_by
from planner.space import EXECUTOR
from shardwright.analysis.answer_json import interval_json
from shardwright.reports.brief.columns import Column, with_interval
from simulator.mfu import MFU_DEFINITION
from simulator.values.plan_file import Comparison, PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Prediction

PLAN_COLUMNS = (
    Column(name="row", unit="", meaning="chosen, alternative, framework, front or refused"),
    Column(name="model", unit="", meaning="the model as given by the user"),
    Column(name="cluster", unit="", meaning="the devices as given by the user"),
    Column(name="stack", unit="", meaning="framework"),
    Column(name="layout", unit="", meaning="degrees, schedule, micro-batch, ZeRO, recomputation"),
    Column(name="devices", unit="devices", meaning="used devices"),
    Column(name="devices_idle", unit="devices", meaning="unused devices of the cluster"),
    *with_interval("step_time_s", "s", "time of one optimizer step"),
    *with_interval("mfu", "fraction", MFU_DEFINITION),
    *with_interval("peak_memory_bytes", "bytes", "largest peak of allocated memory on a device"),
    Column(name="out_of_memory_probability", unit="fraction", meaning="of running out of memory"),
    Column(name="counted_in", unit="", meaning="unit of rates and costs: tokens or samples"),
    *with_interval("rate", "counted_in per second", "speed of all devices"),
    *with_interval("usd_per_million", "US dollars", "rent per million of counted_in"),
    *with_interval("kwh_per_million", "kWh", "energy per million of counted_in"),
    *with_interval("productive_time", "fraction", "of a long run in which steps are kept"),
    Column(name="usd_per_device_hour", unit="US dollars", meaning="rent of one device-hour"),
    Column(name="price", unit="", meaning="provider, kind and dates of the price"),
    Column(
        name="why_not_first",
        unit="",
        meaning="disadvantage to the chosen one, or why there is none",
    ),
)


def layout_row(
    row: str, model: str, cluster: str, stack: str, choice: LayoutChoice
) -> dict[str, Any]:
    """The row of a framework's layout."""
    return {
        "row": row,
        "model": model,
        "cluster": cluster,
        "stack": stack,
        "layout": layout_title(choice.run),
        "devices": choice.run.degrees.num_devices,
        "devices_idle": choice.idle_devices,
        **_figures(choice.prediction),
        "out_of_memory_probability": choice.out_of_memory_probability,
        **interval_json("productive_time", choice.reliability.goodput),
        "why_not_first": choice.why_not_first,
    }


def layout_rows(answers: Sequence[LayoutFile], refused: Mapping[str, str]) -> list[dict[str, Any]]:
    """The best answer with its runners-up, then the other frameworks, fastest first."""
    rows: list[dict[str, Any]] = []
    for number, answer in enumerate(answers):
        kind = "chosen" if number == 0 else "framework"
        choices: Iterable[LayoutChoice] = () if answer.chosen is None else (answer.chosen,)
        if number == 0:
            choices = (*choices, *answer.alternatives)
        for choice in choices:
            row = layout_row(kind, answer.model, answer.cluster, answer.stack, choice)
            if kind == "framework":
                row["why_not_first"] = largest_difference(choice, answers[0].chosen)
            rows.append(row)
            kind = "alternative"
    rows += [
        {"row": "refused", "stack": name, "why_not_first": why} for name, why in refused.items()
    ]
    return rows


def largest_difference(choice: LayoutChoice, best: LayoutChoice | None) -> str:
    """`12 % slower: compute +0.4 s`: the part of the step in which two layouts differ most; ""
    without another."""
    if best is None:
        return ""
    return slower_by(
        choice.prediction.components,
        best.prediction.components,
        choice.prediction.step_time_s.value / best.prediction.step_time_s.value - 1,
    )


def _figures(prediction: Prediction) -> dict[str, Any]:
    price = prediction.price_usd_per_hour
    return {
        **interval_json("step_time_s", prediction.step_time_s),
        **interval_json("mfu", prediction.mfu),
        **interval_json("peak_memory_bytes", prediction.peak_memory_bytes),
        "counted_in": prediction.counted_in,
        **interval_json("rate", prediction.per_s),
        **interval_json("usd_per_million", prediction.usd_per_million),
        **interval_json("kwh_per_million", prediction.kwh_per_million),
        "usd_per_device_hour": None if price is None else price.value,
        "price": None if price is None else price.source,
    }


def plan_rows(answer: PlanFile) -> list[dict[str, Any]]:
    """A plan for our executor, and its runners-up."""
    if answer.plan is None or answer.prediction is None:
        return []
    plan = answer.plan
    figures = _figures(answer.prediction)
    fixed = {"model": plan.model, "cluster": plan.cluster, "stack": EXECUTOR}
    money = {name: figures[name] for name in ("counted_in", "usd_per_device_hour", "price")}
    rows = [
        {
            "row": "chosen",
            **fixed,
            "layout": plan_title(plan),
            "devices": plan.degrees.num_devices,
            "devices_idle": 0,
            **figures,
            "why_not_first": "",
        }
    ]
    for other in answer.alternatives:
        usd = other.usd_per_million_tokens
        rows.append(
            {
                "row": "alternative",
                **fixed,
                "layout": plan_title(other.plan),
                "devices": other.plan.degrees.num_devices,
                "step_time_s": other.step_time_s,
                "step_time_low_s": other.step_time_low_s,
                "step_time_high_s": other.step_time_high_s,
                "mfu": other.mfu,
                "peak_memory_bytes": other.peak_memory_bytes,
                "usd_per_million": other.usd_per_million_samples if usd is None else usd,
                **money,
                "why_not_first": other.why_not_first,
            }
        )
    return rows


def mixed_rows(answer: PlanFile, comparison: Comparison) -> list[dict[str, Any]]:
    """The compared kinds of plans on mixed devices, the chosen one first."""
    rows: list[dict[str, Any]] = []
    prices = "; ".join(
        f"{name} ${price.value:.2f}: {price.source}"
        for name, price in sorted(comparison.prices_usd_per_hour.items())
    )
    samples = answer.usd_per_million_samples is not None
    for one in sorted(comparison.compared, key=lambda one: one.title != comparison.chosen):
        chosen = one.title == comparison.chosen
        usd = one.usd_per_million_samples if samples else one.usd_per_million_tokens
        slower = ""
        if one.step_time_s is None:
            slower = one.plan
        elif not chosen and answer.step_time_s:
            slower = f"{one.step_time_s / answer.step_time_s - 1:.1%} slower"
        row: dict[str, Any] = {
            "row": "chosen" if chosen else "refused" if one.step_time_s is None else "alternative",
            "model": comparison.model,
            "cluster": comparison.cluster,
            "stack": EXECUTOR,
            "layout": f"{one.title}: {one.plan}",
            "devices": one.num_devices,
            "step_time_s": one.step_time_s,
            "exact": one.exact,
            "counted_in": "samples" if samples else "tokens",
            "usd_per_million": usd,
            "price": prices or None,
            "why_not_first": slower,
        }
        if chosen:
            row |= {
                "step_time_low_s": answer.step_time_low_s,
                "step_time_high_s": answer.step_time_high_s,
                "mfu": answer.mfu,
                "peak_memory_bytes": answer.peak_memory_bytes,
            }
        rows.append(row)
    return rows
