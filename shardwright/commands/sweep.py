"""`shardwright sweep`: answers the many requests of a study into one folder, each once."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import InfeasibleError
from profiles.hardware.probe.fingerprint import num_cores
from shardwright.console.flags import Json, Local, Prices, Quiet
from shardwright.console.output import note, print_json, print_price_notes, show
from shardwright.requests.local_paths import local_profile

_NOTES, _FILES = 5, 8  # reported at most
EXAMPLES = (
    "Examples:\n\n  shardwright sweep study.toml -o answers/\n\n  shardwright sweep study.toml "
    "--ray auto --sort cost -o answers/"
)


def sweep(
    study: Annotated[
        Path | None, typer.Argument(help="study: TOML file of requests (docs/sweeps.md)")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", help="folder of results; an interrupted sweep continues in it"),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="number of processes (default: one per core)"),
    ] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", metavar="ADDRESS", help="use this Ray cluster")
    ] = None,
    sort: Annotated[
        str,
        typer.Option(help="order of plans: step, cost, mfu, tokens, memory (sized runs: cost)"),
    ] = "step",
    plans: Annotated[
        int, typer.Option("--plans", min=0, help="write plan files of this many best rows")
    ] = 0,
    parquet: Annotated[
        bool,
        typer.Option("--parquet/--no-parquet", help="write Parquet in addition to SQLite and CSV"),
    ] = True,
    questions: Annotated[
        Path | None, typer.Option("--questions", help="study, as in `plan`")
    ] = None,
    prices: Prices = None,
    local: Local = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """`shardwright sweep`."""
    # Here, since --help needs none of them.
    from profiles.hardware.prices.price_file import offers_with
    from shardwright.commands.sweep_folder import need_folder, sweep_in_folder, workers_of
    from shardwright.requests.price_request import notes_of_many
    from shardwright.sweeps.parquet_file import need_pyarrow
    from shardwright.sweeps.study_file import read_study
    from shardwright.sweeps.study_report import study_json, study_report
    from shardwright.sweeps.study_requests import need_sort, study_requests

    path = study if study is not None else questions
    if path is None or (study is not None and questions is not None):
        raise typer.BadParameter("give one file of questions: shardwright sweep STUDY -o FOLDER")
    # Errors are found before the folder is changed.
    folder = need_folder(output)
    need_sort(sort)
    solvers = workers_of(workers, ray, usual=num_cores())
    release = need_pyarrow() if parquet else ""
    profile_file = local or local_profile()
    offers = None if prices is None else offers_with(prices)
    study_asked = read_study(path, local=profile_file)
    asked = study_requests(study_asked, local=profile_file, offers=offers, prices=prices)
    silent = quiet or json_output
    run = sweep_in_folder(
        asked, folder, solvers, quiet=silent, parquet=parquet, plans=plans, sort=sort
    )
    if json_output:
        print_json(study_json(run, sort))
    else:
        show(study_report(run, sort))
        named = [(question.cluster, question.price) for question in study_asked.plans]
        today = date.today().isoformat()
        print_price_notes(
            notes_of_many(named, today=today, local=profile_file, offers=offers)[:_NOTES]
        )
    if not silent:
        made = f"; Parquet by pyarrow {release}" if parquet else ""
        note(
            f"written: {folder} ({', '.join(run.files[:_FILES])}{made}); {run.known:,} of "
            f"{run.jobs:,} answers were known before"
        )
    if not run.answered:
        raise InfeasibleError(f"no request of {path} has an answer; the reasons are in {folder}")
