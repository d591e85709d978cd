"""`shardwright profile --from` with training logs and the output of nccl-tests."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.errors import InputError
from profiles.units import format_percent, format_time
from shardwright.commands.tables.calibrate import fit_and_write, write_calibration
from shardwright.console.output import note, show
from shardwright.reports.terminal import table
from shardwright_frameworks.requests.logged_run import logged_run
from shardwright_frameworks.requests.measured_cluster import MeasuredCluster, measured_cluster
from shardwright_frameworks.traces.nccl_tests import NcclOutput
from shardwright_frameworks.traces.opened_log import open_log
from simulator.training_run.fit.recalibration import Calibration, shipped_hash
from simulator.training_run.run.training_run import TrainingRun

LINK_METHOD = (
    "measured over assumed time of collectives alone (the plug-in frameworks, measured_links.py)"
)


def calibrate_from_logs(
    sources: Sequence[Path],
    configs: Sequence[Path],
    output: Path | None,
    *,
    force: bool,
    device: str = "",
) -> None:
    """Refit the coefficients on the steady steps of logs, each with its configuration. Output of
    nccl-tests among them first calibrates the links.

    configs  one per log in the same order, or one for all
    device   for configurations that do not name one; for nccl-tests, the cluster

    Raises the errors of logged_run, measured_cluster and fit_and_write, and InputError if the
    numbers of files do not match.
    """
    opened = {path: open_log(path) for path in sources}
    benchmarks = {path: told for path, told in opened.items() if isinstance(told, NcclOutput)}
    logs = [path for path in sources if path not in benchmarks]
    links = None
    if benchmarks:
        links = measured_cluster(benchmarks, device)
        show(links_report(links))
    named = ", ".join(path.name for path in sources[:3]) + (", ..." if len(sources) > 3 else "")
    if not logs and links is not None:
        write_calibration(output, _of_links(links, named))
        return
    runs, measured = _logged(logs, configs, device)
    given = {} if links is None else links.after
    fit_and_write(runs, measured, named, output, force=force, may_be_one=True, given=given)


def _logged(
    logs: Sequence[Path], configs: Sequence[Path], device: str
) -> tuple[list[TrainingRun], list[float]]:
    if not configs:
        raise InputError(
            f"--from {logs[0]}: a log does not contain its configuration; name it with --config: "
            "the started command or file, a layout of `plan --stack`, or a table of runs"
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
    return runs, measured


def _of_links(links: MeasuredCluster, source: str) -> Calibration:
    """A calibration of links only: intervals of steps keep their width."""
    return Calibration(
        source=source,
        method=LINK_METHOD,
        date=datetime.date.today().isoformat(),
        runs=0,
        based_on=shipped_hash(),
        error_before=links.factors.error_before,
        residual=links.factors.error_after,
        left_out_error=links.factors.error_after,
        values=dict(links.after),
    )


def links_report(found: MeasuredCluster) -> RenderableType:
    """The measured factor of each collective, and the resulting coefficients, as text."""
    rows = table("collective", ">ranks", ">nodes", "tells of", ">time over assumed", ">sizes")
    words = {"inner": "links inside a node", "outer": "network between nodes"}
    for each in found.factors.told:
        rows.add_row(
            each.operation.replace("_", " "),
            str(each.ranks),
            str(each.hosts),
            words[each.level],
            f"{each.factor:.2f}",
            str(each.sizes),
        )
    changed = table("coefficient", ">before", ">after")
    for name, value in found.after.items():
        changed.add_row(name, f"{found.before[name]:.4g}", f"{value:.4g}")
    factors = found.factors
    return Group(
        Text(f"collectives of {found.cluster}", "bold"),
        rows,
        changed,
        Text(
            f"Collectives alone were predicted {format_percent(factors.error_before)} off, with "
            f"these {format_percent(factors.error_after)}."
        ),
    )
