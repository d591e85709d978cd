"""Makes profiles/data/calibration/module_steps.toml from a table of measured steps of modules.

    python -m tools.derive_module_steps MODULES.csv STEPS

STEPS is a folder in which traced steps are kept, so that a second run traces none. What the
factories import (timm, torchvision, transformers) must be installed here; the table's folder is on
the import path. Left out of the fit: rows of LAMB (NVIDIA's BERT, whose head sees the masked words
alone and whose data is packed), and devices that run no eager kernels (Gaudi). Deterministic, but
for the date.
"""

from __future__ import annotations

import csv
import datetime
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student_t

from profiles.document import content_hash, encode, read_document, to_json, write_text
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.graph import ModelGraph
from profiles.model.steps.module_step import traced_step
from shardwright.runs.module_row import ModuleSetting, module_setting, predict_step
from shardwright.runs.module_table import (
    MeasuredModule,
    ModuleRow,
    read_measured_modules,
    read_modules,
)
from simulator.traced.kernel_constants import (
    MODULE_STEPS_FILE,
    MODULE_STEPS_SCHEMA,
    MUCH,
    seconds_by_kind,
)
from simulator.traced.kernel_seconds import kernel_seconds
from tools.borrowed_kernels import borrowed_errors
from tools.module_fit import (
    Array,
    Flags,
    MeasuredSteps,
    fit,
    fitted_kernels,
    measured_steps,
    without,
)

_GIB = 2**30
_QUANTILE = 0.9
_LARGE_GROUP = 0.03  # share of the rows
_STEP_SCHEMA = "shardwright/module-step@2"


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedRow:
    """A row of the table with its traced step and what was measured of it."""

    row: ModuleRow
    setting: ModuleSetting
    step: ModelGraph
    measured: MeasuredModule


def main() -> None:
    """Trace, fit, leave families and devices out, write the file, and say what came out."""
    table, folder = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(table.resolve().parent))
    rows = fitted_rows(table, folder)
    data = measured_steps(
        [r.step for r in rows],
        [r.setting for r in rows],
        [r.measured.step_time_s or 0.0 for r in rows],
    )
    used = np.asarray([_is_fitted(r) for r in rows])
    values = fit(data, used, say=_say)
    families = np.asarray([r.measured.family for r in rows])
    devices = np.asarray([r.setting.device.name for r in rows])
    errors = data.log_errors(data.sums(values), values)
    by_family = _left_out(data, values, used, families)
    by_device = _left_out(data, values, used, devices)
    widths = _half_widths(rows, used, by_family, by_device)
    borrowed = borrowed_errors(data, values)
    widths["kernel"] = student_t.ppf(1 - (1 - _QUANTILE) / 2, len(borrowed)) * _rms(
        list(borrowed.values())
    )
    for kernel, error in borrowed.items():
        _say(f"{kernel} priced as the kernel most like it: {np.exp(error):.2f} times as long")
    memory = _memory(rows)
    lines = [
        "# Constants of the steps of modules; meanings in simulator/traced/kernel_seconds.py,",
        "# in_step.py and kernel_constants.py. Made by tools/derive_module_steps.py.",
        f'schema = "{MODULE_STEPS_SCHEMA}"',
        f'source = "{table.name}: {", ".join(sorted(_sources(table)))}"',
        'method = "Gauss-Newton on log(predicted / measured), weights that fall beyond 12 %, weak '
        "priors; left-out errors by one further step without the rows, by a refit without groups "
        f'of more than {_LARGE_GROUP:.0%} of them (tools/module_fit.py)"',
        f'date = "{datetime.date.today().isoformat()}"',
        f"rows = {int(used.sum())}",
        f"residual = {_median(errors[used]):.4f}",
        f"fits = {memory.right:.4f}",
        f"held = {memory.held:.4g}",
        f"workspace_mib = {memory.workspace_mib:.1f}",
        f"measured_devices = {json.dumps(sorted(set(devices[used].tolist())))}",
        *_section("families", by_family[used], _width_of(rows, widths, "device")[used]),
        *_section("devices", by_device[used], _width_of(rows, widths, "architecture")[used]),
        "",
        "[half_widths]",
        *(f"{name} = {width:.4f}" for name, width in widths.items()),
        "",
        "[kinds]",
        *(f'"{kind}" = {n}' for kind, n in _kinds(rows, data, values, used).items()),
        "",
        "[values]",
        *(f'"{name}" = {_number(value)}' for name, value in values.items()),
    ]
    write_text(MODULE_STEPS_FILE, "\n".join(lines) + "\n")
    sys.stdout.write("\n".join(lines[3 : lines.index("[kinds]")]) + "\n")
    _tell("family left out, timm", by_family, np.asarray([_is_timm(r) for r in rows]))
    _tell("device left out", by_device, used)
    for name in sorted(set(devices.tolist())):
        _tell(f"  {name}", by_device, devices == name)


def fitted_rows(table: Path, folder: Path) -> list[FittedRow]:
    """The rows that can be predicted and were measured; others are named on stderr."""
    found = []
    measured = {row.id: row for row in read_measured_modules(table)}
    for row in read_modules(table):
        if not measured[row.id].step_time_s:
            continue
        try:
            setting = module_setting(row)
            step = _kept_step(row, setting, folder)
        except ShardwrightError as error:
            _say(f"{row.id}: {error}")
            continue
        found.append(FittedRow(row=row, setting=setting, step=step, measured=measured[row.id]))
    return found


def _kept_step(row: ModuleRow, setting: ModuleSetting, folder: Path) -> ModelGraph:
    precision = setting.precision
    key = {
        "factory": row.factory,
        "arguments": json.dumps(row.arguments, sort_keys=True),
        "weights": precision.weights,
        "autocast": precision.autocast,
        "tf32": precision.tf32,
        "channels_last": setting.channels_last,
        "fused_attention": setting.framework.fused_attention,
    }
    path = folder / f"{content_hash(key)}.json"
    if path.is_file():
        return read_document(path, ModelGraph, schema=_STEP_SCHEMA)
    step = traced_step(
        row.factory,
        row.arguments,
        precision,
        channels_last=setting.channels_last,
        fused_attention=setting.framework.fused_attention,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, to_json(encode(step) | {"schema": _STEP_SCHEMA}))
    return step


def _is_fitted(row: FittedRow) -> bool:
    eager = chip_of(row.setting.device).architecture != ""
    return eager and row.setting.devices == 1 and row.setting.optimizer.name != "lamb"


def _is_timm(row: FittedRow) -> bool:
    return row.row.device == "rtx-3090" and row.row.factory.endswith("timm_model")


def _left_out(
    data: MeasuredSteps, values: dict[str, float], used: Flags, group: NDArray[np.str_]
) -> Array:
    """[rows] log errors with the group of each row left out whole; rows that are not used are left
    out of every fit. One step does for small groups; large ones are refitted until it ends."""
    names = sorted(set(group.tolist()))
    found = without(data, values, ((group == name) for name in names), used=used)
    for name in names:
        own = group == name
        if (own & used).sum() > _LARGE_GROUP * used.sum():
            refitted = fit(data, used & ~own, begin=values)
            found[own] = data.log_errors(data.sums(refitted), refitted)[own]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedMemory:
    held: float
    workspace_mib: float
    right: float


def _memory(rows: Sequence[FittedRow]) -> FittedMemory:
    """What is needed over what is allocated: the pair that tells most batches that fitted from the
    next that did not. The next batch's activations are scaled; casts of weights do not grow."""
    known = [r for r in rows if r.measured.oom_batch]
    if not known:
        return FittedMemory(held=1.0, workspace_mib=0.0, right=float("nan"))
    batches = np.asarray([_batch(r) for r in known])
    ratio = np.asarray([r.measured.oom_batch or 0 for r in known]) / batches
    usable = np.asarray([r.setting.device.usable_bytes for r in known])
    (ranks,) = zip(*(predict_step(r.step, r.setting).ranks for r in known), strict=True)
    casts = np.asarray(
        [2.0 * r.step.full_parameter_count * bool(r.setting.precision.autocast) for r in known]
    )
    growing = np.asarray([r.activations_bytes + r.transient_bytes for r in ranks]) - casts
    whole = np.asarray([r.peak_bytes for r in ranks])
    following = whole + growing * (ratio - 1)
    best = (-1.0, 0.0, 0.0)
    for held in np.arange(1.0, 1.12, 0.01):
        for mib in np.arange(0.0, 2049.0, 64.0):
            fits = whole * held + mib * 2**20 <= usable
            fails = following * held + mib * 2**20 > usable
            # Of equals the least: nothing measured tells them apart.
            best = max(best, (float(np.mean(fits & fails)), -float(held), -float(mib)))
    return FittedMemory(held=-best[1], workspace_mib=-best[2], right=best[0])


def _batch(row: FittedRow) -> float:
    return float(row.row.arguments.get("batch", 1))


def _half_widths(
    rows: Sequence[FittedRow], used: Flags, by_family: Array, by_device: Array
) -> dict[str, float]:
    """90 % of left-out rows lie inside; a device of an architecture without another in the fit is
    taken to be as far off as the worst architecture left out here."""
    chips = np.asarray([chip_of(r.setting.device).architecture for r in rows])
    own = np.quantile(np.abs(by_family[used]), _QUANTILE)
    other = max(own, float(np.quantile(np.abs(by_device[used]), _QUANTILE)))
    worst = max(
        float(np.quantile(np.abs(by_device[used & (chips == name)]), _QUANTILE))
        for name in sorted(set(chips[used].tolist()))
    )
    return {"device": float(own), "architecture": other, "none": max(other, worst)}


def _kinds(
    rows: Sequence[FittedRow], data: MeasuredSteps, values: dict[str, float], used: Flags
) -> dict[str, int]:
    """Kind of kernel -> rows of the fit that spend `MUCH` of their kernels' time on it."""
    seconds = kernel_seconds(data.kernels, values) * data.count
    found: Counter[str] = Counter()
    for place, row in enumerate(rows):
        if used[place]:
            kernels = fitted_kernels(row.step, row.setting)
            by_kind = seconds_by_kind(zip(kernels, seconds[data.row == place], strict=True))
            total = sum(by_kind.values())
            found.update(kind for kind, taken in by_kind.items() if taken >= MUCH * total)
    return dict(sorted(found.items()))


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _width_of(rows: Sequence[FittedRow], widths: dict[str, float], kind: str) -> Array:
    return np.full(len(rows), widths[kind])


def _section(name: str, errors: Array, widths: Array) -> list[str]:
    relative = np.abs(np.expm1(errors))
    return [
        "",
        f"[{name}]",
        f"rows = {len(errors)}",
        f"median = {np.median(relative):.4f}",
        f"mean = {relative.mean():.4f}",
        f"inside = {np.mean(np.abs(errors) <= widths):.4f}",
    ]


def _sources(table: Path) -> set[str]:
    with table.open(encoding="utf-8", newline="") as stream:
        return {row.get("source", "") for row in csv.DictReader(stream)} - {""}


def _median(errors: Array) -> float:
    return float(np.median(np.abs(np.expm1(errors))))


def _tell(what: str, errors: Array, rows: Flags) -> None:
    relative = np.abs(np.expm1(errors[rows]))
    if len(relative):
        _say(
            f"{what}: {len(relative)} rows, median {np.median(relative):.3f}, "
            f"mean {relative.mean():.3f}"
        )


def _number(value: float) -> str:
    text = f"{value:.4g}"
    return text if "." in text or "e" in text else f"{text}.0"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
