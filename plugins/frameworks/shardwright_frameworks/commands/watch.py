"""`shardwright watch`: compares a run with its prediction while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from profiles.errors import DocumentError, ToleranceError
from profiles.units import format_time, parse_quantity
from shardwright.console.flags import Json
from shardwright.console.output import note, print_json, show

if TYPE_CHECKING:
    from shardwright.requests.planned_step import PlannedStep
    from shardwright_frameworks.analysis.log_comparison import LogComparison
    from shardwright_frameworks.logs.followed_log import FollowedLog

EXAMPLES = (
    "Examples:\n\n  shardwright watch train.log --plan plan.json\n\n  shardwright watch train.log "
    "--plan plan.json --once"
)


def watch(
    log: Annotated[Path, typer.Argument(help="log file of the training")],
    plan: Annotated[Path, typer.Option("--plan", help="plan file or imported run")],
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="compare once; exit code 4 if the step is outside the interval"
        ),
    ] = False,
    interval: Annotated[
        str, typer.Option("--interval", help="time between comparisons: 5s, 1min")
    ] = "5s",
    on: Annotated[str, typer.Option("--on", help="cluster of an imported run")] = "",
    json_output: Json = False,
) -> None:
    """`shardwright watch`."""
    # Here, since --help needs none of them.
    from shardwright_frameworks.analysis.followed_run import followed_run
    from shardwright_frameworks.logs.followed_log import FollowedLog
    from shardwright_frameworks.requests.imported_step import planned_or_imported

    planned = planned_or_imported(plan, on)
    wait_s = parse_quantity(interval, "time", where="--interval", above_0=True)
    followed = FollowedLog(log)
    if once:
        _look_once(followed, planned, json_output=json_output)
        return
    note(f"predicted {format_time(planned.step_time_s.value)}; watching {log}, end with Ctrl-C")
    alarmed: bool | None = None
    failure = f"{log}: the run has failed; watching for its next start, end with Ctrl-C"
    for compared in followed_run(followed, planned, wait_s, failed=lambda: note(failure)):
        _say(compared, alarmed)
        alarmed = not compared.inside
    note(f"{log}: the run has finished")


def _look_once(followed: FollowedLog, planned: PlannedStep, *, json_output: bool) -> None:
    from shardwright_frameworks.analysis.log_comparison import (
        FEWEST_STEPS,
        compare_log,
        log_comparison_data,
    )
    from shardwright_frameworks.reports.log_report import log_comparison_report

    if not followed.path.exists():
        raise DocumentError(f"{followed.path}: no such file; name the log of the run")
    followed.look()
    found = followed.log()
    if found.steady_lines < FEWEST_STEPS:
        raise DocumentError(
            f"{followed.path}: no steady steps yet ({found.steps or 0} steps, including warm-up); "
            "try again after more steps"
        )
    compared = compare_log(planned, found, recent=True)
    if json_output:
        print_json(log_comparison_data(compared))
    else:
        show(log_comparison_report(compared))
    if not compared.inside:
        raise ToleranceError(_alarm(compared))


def _say(compared: LogComparison, alarmed: bool | None) -> None:
    """Print one line for new steps, and an alarm if the run left its interval or returned to it."""
    predicted = compared.step_time_s
    place = "inside" if compared.inside else "outside"
    show(
        Text(
            f"step {compared.log.attempts[-1].last_step}: {format_time(compared.measured_s)} per "
            f"step ({place} {format_time(predicted.low)} to {format_time(predicted.high)}), "
            f"predicted over measured {compared.error:+.1%}"
        )
    )
    if not compared.inside and alarmed is not True:
        show(Text(f"ALARM: {_alarm(compared)}", "bold red"))
    elif compared.inside and alarmed:
        show(Text("back inside the interval", "bold"))


def _alarm(compared: LogComparison) -> str:
    from shardwright_frameworks.analysis.log_comparison import likely_part

    word = "slower" if compared.measured_s > compared.step_time_s.high else "faster"
    return (
        f"the step of {format_time(compared.measured_s)} is {word} than predicted "
        f"({format_time(compared.step_time_s.low)} to {format_time(compared.step_time_s.high)}). "
        f"Likely: {likely_part(compared)}"
    )
