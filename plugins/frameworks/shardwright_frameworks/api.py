"""Python functions of the commands that read and write files of other frameworks.

Each is also an attribute of the package `shardwright`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from profiles.errors import InputError
from shardwright.requests.imported_file import is_imported
from shardwright.requests.opened_plan import PlanLike, opened_plan
from shardwright.results.result import as_result
from shardwright_frameworks.analysis.followed_run import followed_run
from shardwright_frameworks.analysis.log_comparison import compare_logs
from shardwright_frameworks.analysis.ranked_changes import changes_of
from shardwright_frameworks.imported_run import ImportedRun, read_imported
from shardwright_frameworks.logs.followed_log import FollowedLog
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.requests.checked_config import check_config
from shardwright_frameworks.requests.exported_folder import export_to
from shardwright_frameworks.requests.imported_step import step_of
from shardwright_frameworks.requests.planned_run import planned_run
from shardwright_frameworks.requests.table_row import path_of_import
from shardwright_frameworks.results.compared_log import LogComparisonResult
from shardwright_frameworks.results.exported import CheckResult, ExportResult
from shardwright_frameworks.results.imported import ChangesResult, ImportResult, LogResult
from shardwright_frameworks.traces.opened_log import open_log


def import_config(config: str | Path) -> ImportResult:
    """The run in a configuration of another framework: a script, a YAML, JSON or TOML file, a
    folder whose files call each other, or an imported.json. Nothing of it is run.

    A value that the files do not give is None; the framework's default is in `defaults`.
    Raises DocumentError if nothing can be read.
    """
    path = Path(config)
    run = read_imported(path) if is_imported(path) else read_config(path)
    return as_result(ImportResult, run)


def read_log(log: str | Path) -> LogResult:
    """The content of a file that a training run wrote: a log, a profile, the output of nccl-tests,
    or memory snapshots, recognized by content. Raises DocumentError for anything else."""
    path = Path(log)
    return LogResult(path=path, found=open_log(path))


def changes(
    run: str | Path | ImportedRun, *, on: str = "", precisions: tuple[str, ...] = ()
) -> ChangesResult:
    """The single changes of a run that fit and shorten its step, largest gain first.

    run         an imported run, or the path of a configuration
    on          cluster or device, if the configuration names none: `8x8xh100-sxm-80gb`
    precisions  allowed new precisions: `("fp8",)`

    Raises InputError if the run cannot be predicted.
    """
    if isinstance(run, ImportedRun):
        imported, path = run, path_of_import(run)
    else:
        imported, path = import_config(run), Path(run)
    return as_result(ChangesResult, changes_of(imported, path, on, precisions=precisions))


def export(
    plan: PlanLike, to: str = "", *, output: str | Path | None = None, launcher: str = "torchrun"
) -> ExportResult:
    """Write a plan as files of a framework; returns the decisions not expressed, priced.

    plan      an answer of `plan`, or the path of a plan file
    to        `megatron`, `torchtitan`, ... (`shardwright export --help`); "": the plan's framework
    output    the folder to write; None writes nothing
    launcher  `torchrun`, `slurm`, `kubernetes`, `skypilot` or `ray`

    Raises UnknownNameError for unknown names, InputError if the framework cannot run the plan.
    """
    folder = None if output is None else Path(output)
    return as_result(ExportResult, export_to(plan, to, folder, launcher=launcher))


def check(plan: PlanLike, against: str | Path) -> CheckResult:
    """Compare a configuration, or an exported folder, with its plan: equal and different settings,
    with their places; `agrees` summarizes.

    plan  an answer of `plan`, or the path of a plan file
    """
    return as_result(CheckResult, check_config(planned_run(opened_plan(plan)), Path(against)))


def compare_log(
    plan: PlanLike | ImportedRun, log: str | Path | Sequence[str | Path], *, on: str = ""
) -> LogComparisonResult:
    """A prediction next to a training log.

    plan  an answer of `plan`, an imported run, or the file of either
    log   one training log, and profiles of the same training
    on    cluster or device of an imported run that names none

    Raises InputError without exactly one training log, MismatchError for a log without step times.
    """
    logs = [log] if isinstance(log, (str, Path)) else list(log)
    return as_result(LogComparisonResult, compare_logs(step_of(plan, on), logs))


def watch(
    log: str | Path,
    plan: PlanLike | ImportedRun,
    *,
    on: str = "",
    interval_s: float = 5.0,
) -> Iterator[LogComparisonResult]:
    """Compare a run with its prediction while it runs: yields a comparison of the last steps
    whenever the log has new ones, until the run has finished. A failed run may start again.

    plan        an answer of `plan`, an imported run, or the file of either
    on          devices of an imported run that names none
    interval_s  seconds between two reads of the log, which may be missing at first

    `next()` waits for the first three steady steps.
    """
    if not interval_s > 0:
        raise InputError(f"interval_s must be above 0, got {interval_s}")
    steps = followed_run(FollowedLog(log), step_of(plan, on), interval_s)
    return (as_result(LogComparisonResult, each) for each in steps)
