"""`judged`: whether a configuration can start, fits, and is as fast as the best layout."""

from __future__ import annotations

import re

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.units import format_bytes, format_percent
from shardwright.reports.terminal import format_interval
from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.changes.flags import FLAGS
from shardwright_frameworks.imported_run import Contradiction, ImportedRun
from shardwright_frameworks.reading.read_config import read_config, split_recipe
from shardwright_frameworks.recipes.finding import Finding, JudgedRecipe, Verdict
from shardwright_frameworks.recipes.memory_finding import judge_memory
from shardwright_frameworks.recipes.speed_finding import judge_speed
from shardwright_frameworks.requests.table_row import imported_row, predicted_import

_NO_EFFECT = "no effect"
# Keys of layers other than plain attention.
_LAYERS = re.compile(r"hybrid_\w*pattern$|(^|\.)_*mamba_|multi_latent_attention$|kv_lora_rank$")
# The figure that each degree divides.
_DIVIDED = {"tp": "num_heads", "pp": "num_layers", "ep": "num_experts"}


def judged(recipe: str, on: str, *, time_limit_s: float) -> JudgedRecipe:
    """The findings about a configuration.

    recipe        a file, or `FILE.py:FUNCTION`; nothing of it is run
    on            a cluster, or a device of which the configuration's number of ranks is used; ""
                  for the device in the configuration
    time_limit_s  of the search for the best layout; 0 for no search

    Raises DocumentError if no framework's configuration can be read.
    """
    devices = _devices(on)
    run = read_config(recipe, devices=devices)
    found = [*_written(run), *_other_devices(run, on, devices)]
    summary = ""
    other = _other_layers(run)
    if other:
        found.append(Finding(verdict=Verdict.NOT_JUDGED, text=other))
    elif not any(each.verdict is Verdict.CANNOT_START for each in found):
        path = split_recipe(recipe)[0]
        try:
            made = predicted_import(imported_row(run, path, on))
            found += judge_memory(run, made)
            if time_limit_s > 0:
                found += judge_speed(run, made, time_limit_s)
            summary = _summary(made)
        except ShardwrightError as error:
            found.append(Finding(verdict=Verdict.NOT_JUDGED, text=str(error)))
    order = list(Verdict)
    return JudgedRecipe(
        recipe=recipe,
        framework=run.framework or "",
        summary=summary,
        findings=tuple(sorted(found, key=lambda each: order.index(each.verdict))),
    )


def _devices(on: str) -> int | None:
    """Number of devices of a cluster; None for a device type."""
    is_cluster = on[:1].isdigit() or on.endswith((".toml", ".json"))
    return get_cluster(on).num_devices if is_cluster else None


def _other_layers(run: ImportedRun) -> str:
    """Why a model cannot be predicted because its layers were not read; "" if they were, or if its
    published figures are known."""
    keys = [each.option for each in run.unused if _LAYERS.search(each.option.replace("-", "_"))]
    if not keys or run.model.figures_of:
        return ""
    return f"memory and speed: layers with a state or latent attention ({keys[0]}) are not read"


def _other_devices(run: ImportedRun, on: str, devices: int | None) -> list[Finding]:
    """One finding if the product of the degrees in the files differs from the cluster's number of
    devices."""
    if devices is None or run.devices in (None, devices) or "devices" not in run.derived:
        return []
    how = run.derived["devices"]
    text = f"the degrees are for {run.devices} devices ({how}), but {on} has {devices}"
    return [
        Finding(
            verdict=Verdict.CANNOT_START if how.startswith("dp ") else Verdict.CONTRADICTION,
            text=text,
        )
    ]


def _written(run: ImportedRun) -> list[Finding]:
    """Findings that do not depend on a prediction."""
    found = [
        Finding(
            verdict=Verdict.CANNOT_START if each.impossible else Verdict.CONTRADICTION,
            text=each.text,
            where=each.places[0] if each.places else "",
            patch=_nearest(run, each),
        )
        for each in run.contradictions
    ]
    for key in run.unused:
        idle = key.why.startswith(_NO_EFFECT)
        found.append(
            Finding(
                verdict=Verdict.NO_EFFECT if idle else Verdict.NOT_READ,
                text=f"{key.option}: {key.why}",
                where=key.place,
                patch=f"remove {key.option}" if idle else "",
            )
        )
    for option in run.unknown:
        text = f"{option.option}: no known version of {run.framework} has it"
        found.append(Finding(verdict=Verdict.UNKNOWN, text=text, where=option.place))
    for unresolved in run.unresolved:
        text = f"{unresolved.option}: {unresolved.why}"
        found.append(Finding(verdict=Verdict.NOT_JUDGED, text=text, where=unresolved.place))
    return found


def _nearest(run: ImportedRun, contradiction: Contradiction) -> str:
    """The largest smaller degree that divides the figures, as a patch; "" for other
    contradictions."""
    axis = contradiction.field
    degree = getattr(run, axis) if axis in _DIVIDED else None
    if not contradiction.impossible or not isinstance(degree, int):
        return ""
    number = getattr(run.model, _DIVIDED[axis])
    must = [number] if number else []
    if axis == "ep" and run.devices:
        must.append(run.devices // int(run.answer("pp") or 1))
    able = [n for n in range(1, degree) if must and not any(whole % n for whole in must)]
    if not able:
        return ""
    option = run.options.get(axis, "").partition(" (")[0]
    name = option or FLAGS.get(run.framework or "", {}).get(axis, axis)
    return f"{name}: {degree} -> {max(able)}"


def _summary(made: PredictedRow) -> str:
    run, prediction = made.run, made.prediction
    assert run is not None
    assert prediction is not None
    words = [f"{run.degrees.num_devices} {run.device}, {run.stack}"]
    words.append(f"step {format_interval(prediction.step_time_s)}")
    if made.shown_memory_bytes is not None:
        peak = made.shown_memory_bytes
        words.append(
            f"peak {format_bytes(peak.value)} [{format_bytes(peak.low)} - "
            f"{format_bytes(peak.high)}]"
        )
    if made.out_of_memory_probability is not None:
        chance = format_percent(made.out_of_memory_probability)
        words.append(f"out of memory with probability {chance}")
    return ", ".join(words)
