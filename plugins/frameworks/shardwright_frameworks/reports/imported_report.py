"""Terminal reports of an imported run, its prediction and its changes."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_bytes, format_percent, format_time
from shardwright.reports.terminal import table
from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.changes.flags import flag_of, values_of
from shardwright_frameworks.changes.ranked_changes import LEAST_GAIN, PricedChange
from shardwright_frameworks.imported_run import MODEL_FIGURES, ImportedRun
from shardwright_frameworks.reports.imported_prediction import prediction_report

_KEYS = (
    "devices", "nodes", "devices_per_node", "device", "tp", "pp", "vpp", "cp", "ep", "etp", "dp",
    "dp_replicate", "zero_stage", "micro_batch", "global_batch", "gradient_accumulation",
    "seq_len", "precision", "recompute", "recompute_layers", "sequence_parallel",
    "distributed_optimizer", "optimizer",
    "optimizer_offload", "activation_offload", "base_precision", "gradient_reduction", "schedule",
    "pipeline_layout", "flash_attention",
)  # fmt: skip


def imported_report(run: ImportedRun) -> RenderableType:
    """The settings with their sources, the defaults, contradictions and unknown options."""
    parts: list[RenderableType] = [
        Text.assemble(
            ("Imported  ", "bold"),
            f"{run.framework or 'unknown framework'}, from {', '.join(run.files) or 'no file'}",
        )
    ]
    if run.runs > 1:
        parts.append(Text(f"The files start {run.runs} runs; this is the first.", style="yellow"))
    rows = table("", "value", "source")
    for key in _KEYS:
        value = getattr(run, key)
        if value is not None:
            by = run.options.get(key) or f"follows: {run.derived.get(key, '')}"
            rows.add_row(key, _text(value), by)
    model = _model_words(run)
    if model:
        rows.add_row("model", model, run.model.figures_of and f"figures: {run.model.figures_of}")
    parts.append(rows)
    if run.defaults:
        unset = ", ".join(f"{key} {_text(d.value)}" for key, d in sorted(run.defaults.items()))
        parts.append(Text(f"Not set, using the framework's defaults: {unset}", style="dim"))
    for contradiction in run.contradictions:
        parts.append(Text.assemble(("contradiction: ", "bold red"), contradiction.text))
    for unresolved in run.unresolved:
        parts.append(
            Text.assemble(
                ("unresolved: ", "yellow"),
                f"{unresolved.option} ({unresolved.place}): {unresolved.why}",
            )
        )
    for unknown in run.unknown:
        parts.append(
            Text.assemble(
                ("unknown: ", "yellow"),
                f"{unknown.option} ({unknown.place}): no known version has this option",
            )
        )
    for unused in run.unused:
        parts.append(
            Text.assemble(("unused: ", "yellow"), f"{unused.option} ({unused.place}): {unused.why}")
        )
    return Group(*parts)


def changes_report(
    run: ImportedRun, made: PredictedRow, changes: Sequence[PricedChange]
) -> RenderableType:
    """The single changes with the largest gain, with the framework's options."""
    if not changes:
        none = f"No single change that fits saves {format_percent(LEAST_GAIN)} of the step or more."
        return Group(prediction_report(made), Text(none))
    rows = table(">#", "option", "change", ">step", ">saves", ">needs", "now set by")
    for number, priced in enumerate(changes, 1):
        change = priced.change
        needs = "" if priced.needed_bytes is None else format_bytes(priced.needed_bytes)
        rows.add_row(
            str(number),
            flag_of(run.framework, change),
            " -> ".join(values_of(run.framework, change)),
            format_time(priced.step_time_s),
            format_percent(priced.gain),
            needs,
            run.options.get(change.setting, "the default"),
        )
    return Group(prediction_report(made), Text(""), rows)


def _model_words(run: ImportedRun) -> str:
    named = [part for part in (run.model.name, run.model.flavor) if part]
    figures = [
        f"{name} {_text(getattr(run.model, name))}"
        for name in MODEL_FIGURES
        if getattr(run.model, name) is not None
    ]
    return ", ".join([" ".join(named)] * bool(named) + figures)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
