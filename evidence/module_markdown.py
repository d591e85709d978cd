"""The page of `validate --modules`: errors on modules left out first, then by group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evidence.module_study import (
    ComparedModule,
    ModuleErrors,
    by_group,
    module_errors,
    unpredicted,
)
from shardwright.reports.markdown_table import cell, percent, table
from shardwright.runs.module_table import MeasuredModule
from simulator.traced.kernel_constants import LeftOut, ModuleConstants

_HEAD = (
    "rows",
    "predicted",
    "median",
    "mean",
    "bias",
    "in 90 % interval",
    "memory (rows)",
    "fits (rows)",
)
_REASONS = 12
_Key = Callable[[MeasuredModule], str]


def module_markdown(
    rows: Sequence[ComparedModule], constants: ModuleConstants, *, name: str, date: str
) -> str:
    """The page, in Markdown."""
    return "\n".join(
        (
            "# Accuracy on modules",
            "",
            f"Training steps of modules on one device: {len(rows)} rows of {name}, predicted by "
            f"`shardwright predict --modules` and compared by `shardwright validate --modules` "
            f"({date}). A step is predicted from the module's traced kernels and the data sheet of "
            "the device.",
            "",
            "## Unseen families and devices",
            "",
            f"The constants were fitted on {constants.rows} measured steps ({constants.date}, "
            "tools/derive_module_steps.py). In this table, each family or each device is left out "
            "of the fit in turn. Of a device that is left out, only the data sheet is known.",
            "",
            table(
                ("left out", "rows", "median", "mean", "in 90 % interval"),
                (
                    _left_out("families", constants.families),
                    _left_out("devices", constants.devices),
                ),
            ),
            "",
            f"{percent(constants.fits)} of the pairs of a batch that fitted and the next larger "
            "one, which did not, are predicted correctly. Two constants behind this (memory of the "
            f"allocator beyond that of tensors: {percent(constants.held - 1)} and "
            f"{constants.workspace_mib:.0f} MiB) were fitted on the same batches.",
            "",
            "## With the shipped constants",
            "",
            "The constants were fitted on these rows, or on rows of the same sources. `bias` is "
            "the median signed error, `memory` the median error of measured peaks. `fits` is the "
            "share of batches that are predicted to fit, with the next larger one predicted not "
            "to fit.",
            "",
            table(("all", *_HEAD), (_cells(module_errors("all rows", rows)),)),
            *_section("By family", rows, lambda row: row.family),
            *_section("By device", rows, lambda row: row.device),
            *_section("By precision", rows, lambda row: row.precision),
            *_reasons(rows),
            "",
        )
    )


def _left_out(name: str, errors: LeftOut) -> tuple[str, ...]:
    return (
        name,
        str(errors.rows),
        percent(errors.median),
        percent(errors.mean),
        percent(errors.inside),
    )


def _section(title: str, rows: Sequence[ComparedModule], of: _Key) -> tuple[str, ...]:
    groups = by_group(rows, of)
    head = (title.removeprefix("By "), *_HEAD)
    return ("", f"## {title}", "", table(head, map(_cells, groups)))


def _cells(errors: ModuleErrors) -> tuple[str, ...]:
    return (
        cell(errors.name),
        str(errors.rows),
        str(errors.step.count),
        percent(errors.step.median_absolute),
        percent(errors.step.mean_absolute),
        percent(errors.bias, signed=True),
        percent(errors.step.interval_coverage),
        f"{percent(errors.memory)} ({errors.memory_rows})" if errors.memory_rows else "-",
        f"{percent(errors.fits_right)} ({errors.fits_rows})" if errors.fits_rows else "-",
    )


def _reasons(rows: Sequence[ComparedModule]) -> tuple[str, ...]:
    reasons = unpredicted(rows)
    if not reasons:
        return ()
    listed = [f"- {count}: {cell(why)}" for why, count in reasons[:_REASONS]]
    more = [f"- {len(reasons) - _REASONS} further reasons"] if len(reasons) > _REASONS else []
    return ("", "## Without a prediction", "", *listed, *more)
