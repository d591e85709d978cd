"""`shardwright profile --from LOG --config RUN`: calibrating to a cluster by logs of its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import InputError
from profiles.units import format_percent, format_time
from shardwright.asking.logged_run import logged_run
from shardwright.commands.calibrate import fit_and_write
from shardwright.commands.output import note
from simulator.training_run.run.training_run import TrainingRun


def calibrate_from_logs(
    logs: Sequence[Path],
    configs: Sequence[Path],
    output: Path | None,
    *,
    force: bool,
    device: str = "",
) -> None:
    """Refit the coefficients on the steady steps of logs, each with its configuration.

    configs  one per log in the same order, or one for all
    device   of configurations that do not name it

    Raises what logged_run and fit_and_write raise, and InputError where the numbers do not fit.
    """
    if not configs:
        raise InputError(
            f"--from {logs[0]}: a log does not say what ran; name its configuration: --config "
            "with what it was started with, a layout of `plan --stack`, or a table of runs"
        )
    if len(configs) not in (1, len(logs)):
        raise InputError(
            f"{len(logs)} logs (--from) and {len(configs)} configurations (--config); name one "
            "configuration per log, in the same order, or one for all"
        )
    paired = configs if len(configs) == len(logs) else [configs[0]] * len(logs)
    runs: list[TrainingRun] = []
    measured: list[float] = []
    for log, config in zip(logs, paired, strict=True):
        found = logged_run(log, config, device)
        runs.append(found.run)
        measured.append(found.step_time_s)
        spread = found.log.spread
        around = ""
        if spread.p10_s is not None and spread.p90_s is not None:
            half = (spread.p90_s - spread.p10_s) / (2.0 * found.step_time_s)
            around = f" +-{format_percent(half)}"
        note(
            f"{log}: {format_time(found.step_time_s)}{around} per step of {found.log.steps} steps "
            f"({found.log.framework or 'unknown framework'})"
        )
    named = ", ".join(log.name for log in logs[:3]) + (", ..." if len(logs) > 3 else "")
    fit_and_write(runs, measured, named, output, force=force, may_be_one=True)
