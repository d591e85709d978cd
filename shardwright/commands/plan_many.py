"""`shardwright plan` with many questions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.batch.answer_cache import AnswerCache, AnswerFolder
from planner.batch.folder_lock import folder_held
from planner.batch.local_workers import local_workers
from planner.batch.ray_workers import ray_workers
from planner.batch.sweep import Question, Row, Workers, has_plan, sweep
from profiles.document import need_writable, write_text
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.prices.offer import Offer
from profiles.units import format_time
from shardwright import __version__
from shardwright.console.output import Bar, note, show, tell_price
from shardwright.options.option import SweepKey, options_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.read_text import names
from shardwright.reports.sweep_table import (
    line_of,
    sorted_rows,
    sweep_csv,
    sweep_json,
    sweep_report,
)
from shardwright.requests.named_model import import_from_here
from shardwright.requests.places import answer_cache
from shardwright.requests.plan_request import AnswerOutput
from shardwright.requests.price_request import notes_of_many
from shardwright.requests.questions import Poser, listed_questions, read_questions

SOLVE = "shardwright.requests.solve_task:solve_text"
_WHY = "Answers of a sweep must not depend on who solves them and how fast."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """How a sweep is run.

    output   its file is the folder where answers and tables go, and where earlier ones are found
    workers  processes of this machine, None where not asked for; ray  a cluster's address
    sort     a column of reports/sweep_table.py
    offers   of a price file, with ours; None for ours alone
    today    the ISO day of the questions, or "" to tell nothing of prices
    """

    output: AnswerOutput
    workers: int | None = None
    ray: str | None = None
    sort: str = "step"
    local: Path | None = None
    offers: tuple[Offer, ...] | None = None
    today: str = ""


def plan_many(
    path: Path | None, options: PlanOptions, asked: Sweep, *, refused: Mapping[str, object]
) -> None:
    """`shardwright plan` with several models, clusters or prices, or with a file of questions.

    path     the file; None for the lists of the options
    refused  flags of the command that a sweep cannot follow, with their values
    """
    single = {
        each.flag: each.is_set(getattr(options, each.name))
        for each in options_of(PlanOptions)
        if each.sweep is SweepKey.NONE
    }
    for flag, value in (single | dict(refused)).items():
        if value:
            raise InputError(f"{flag} is for one question, this is a sweep; leave it out. {_WHY}")
    if path is not None:
        _need_file_only(path, options)
        run_sweep(read_questions(path, local=asked.local), asked)
        return
    if not options.model or not options.on or options.global_batch is None:
        raise InputError("give MODEL, --on and --global-batch, or --questions FILE")
    found = listed_questions(
        [options],
        models=names(options.model, "MODEL"),
        clusters=names(options.on, "--on"),
        global_batches=(options.global_batch,),
        sequence_lengths=(options.seq,),
        prices=names(options.price, "--price"),
        local=asked.local,
    )
    run_sweep(found, asked)


def _need_file_only(path: Path, options: PlanOptions) -> None:
    of_file = [
        each
        for each in options_of(PlanOptions)
        if each.sweep in (SweepKey.PIN, SweepKey.OPTION)
        or each.name in ("model", "on", "global_batch", "stack")
    ]
    if any(each.is_set(getattr(options, each.name)) for each in of_file):
        raise InputError(
            f"--questions {path} contains the requests; leave out MODEL, --on, --global-batch, "
            "--stack, its options and pins, or leave out --questions"
        )


def run_sweep(questions: tuple[Question, ...], asked: Sweep) -> None:
    """Answers the questions, writes a plan file each and the tables, and prints the table.

    Ctrl-C keeps what is answered. Raises InfeasibleError where no question has a plan, InputError
    where another sweep works in the folder.
    """
    folder = need_folder(asked.output.file, "summary.csv")
    workers = workers_of(SOLVE, asked.workers, asked.ray, usual=1)
    sorted_rows((), asked.sort)
    for question in questions:
        import_from_here(question.model)
    with folder_held(folder, shlex.join(["shardwright", *sys.argv[1:]])):
        rows = _answered(questions, asked, folder, workers)
    if asked.output.json:
        sys.stdout.write(sweep_json(rows, asked.sort))
    else:
        show(sweep_report(rows))
        named = [(question.cluster, question.price) for question in questions]
        tell_price(notes_of_many(named, today=asked.today, local=asked.local, offers=asked.offers))
        reused = sum(row.reused for row in rows)
        note(
            f"written: {folder} (summary.csv, summary.json, a plan file per question); "
            f"{reused} of {len(rows)} answers were known before"
        )
    if not any(has_plan(row.answer) for row in rows):
        raise InfeasibleError(
            f"none of the {len(rows)} requests has a plan; the reasons are in {folder}"
        )


def _answered(
    questions: tuple[Question, ...], asked: Sweep, folder: Path, workers: Workers
) -> tuple[Row, ...]:
    """The rows as they are sorted in the tables, which are written."""
    shelf = AnswerFolder(
        folder=folder,
        cache=AnswerCache(folder=answer_cache()) if asked.output.cache else None,
        version=__version__,
    )
    rows: list[Row] = []
    quiet = asked.output.quiet or asked.output.json
    pose = Poser(local=asked.local, offers=asked.offers).pose
    try:
        with Bar("questions", quiet=quiet or not sys.stderr.isatty()) as update:
            for row in sweep(questions, pose=pose, workers=workers, shelf=shelf):
                rows.append(row)
                update(len(rows), len(questions), row.question.model)
                if not quiet and not sys.stderr.isatty():
                    note(f"{len(rows)}/{len(questions)} {_said(row)}")
    except KeyboardInterrupt:
        _write(folder, rows, asked.sort)
        note(
            f"{len(rows)} of {len(questions)} questions are answered and kept in {folder}; the "
            "same command goes on from there"
        )
        raise
    return _write(folder, rows, asked.sort)


def need_folder(folder: Path | None, file: str) -> Path:
    """The folder of -o; raises InputError where there is none or it cannot hold `file`."""
    if folder is None:
        raise InputError("a sweep writes a folder: name it with -o FOLDER/")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"-o {folder} is a file; a sweep writes a folder: name another")
    need_writable(folder / file)
    return folder


def workers_of(function: str, workers: int | None, ray: str | None, *, usual: int) -> Workers:
    """The workers of --workers or --ray; raises InputError where both are typed.

    function  what they run;  usual  processes of this machine where neither is typed
    """
    if ray is not None:
        if workers is not None:
            raise InputError("--workers is for this machine and --ray for a cluster; give one")
        return ray_workers(function, ray)
    return local_workers(function, workers or usual)


def _said(row: Row) -> str:
    words = f"{row.question.model} on {row.question.cluster}"
    step_time_s = line_of(row).step_time_s
    if step_time_s is None:
        return f"{words}: no plan"
    known = " (known before)" if row.reused else ""
    return f"{words}: step {format_time(step_time_s)}{known}"


def _write(folder: Path, rows: list[Row], sort: str) -> tuple[Row, ...]:
    """The tables; the rows as they are sorted there."""
    ordered = sorted_rows(rows, sort)
    write_text(folder / "summary.csv", sweep_csv(ordered))
    write_text(folder / "summary.json", sweep_json(ordered, sort))
    return ordered
