"""`shardwright plan` with many requests: a sweep into a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.batch.sweep import Question
from profiles.document import to_json, write_text
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.prices.offer import Offer
from shardwright.commands.sweep_folder import need_folder, sweep_in_folder, workers_of
from shardwright.console.output import note, print_json, print_price_notes, show
from shardwright.options.option import SweepKey, options_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.read_text import names
from shardwright.requests.named_model import import_from_here
from shardwright.requests.plan_request import AnswerOutput, plan_batch
from shardwright.requests.price_request import notes_of_many
from shardwright.requests.questions import listed_questions
from shardwright.sweeps.study_file import Study, read_study
from shardwright.sweeps.study_report import study_report
from shardwright.sweeps.study_requests import PLANS, best_rows, need_sort, study_requests
from shardwright.sweeps.study_run import PLAN_FOLDER, STORE, StudyRun, plan_file_of

_WHY = "Answers of a sweep must not depend on who solves them and how fast."


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Settings of a sweep.

    output   its `file` is the folder for the results
    workers  processes of this machine, None if not given
    ray      address of a Ray cluster
    sort     a name of plan_columns.PLAN_SORTS
    offers   offers of a price file and shipped ones; None for the shipped ones only
    today    ISO day of the requests, "" for no notes on prices
    """

    output: AnswerOutput
    workers: int | None = None
    ray: str | None = None
    sort: str = "step"
    local: Path | None = None
    offers: tuple[Offer, ...] | None = None
    today: str = ""


def plan_many(
    path: Path | None, options: PlanOptions, settings: Sweep, *, refused: Mapping[str, object]
) -> None:
    """`shardwright plan` with several models, clusters or prices, or with a file of questions.

    path     file of questions; None for the lists in the options
    refused  flags of the command that a sweep does not support, with their values
    """
    single = {
        each.flag: each.is_set(getattr(options, each.name))
        for each in options_of(PlanOptions)
        if each.sweep is SweepKey.NONE
    }
    for flag, value in (single | dict(refused)).items():
        if value:
            raise InputError(f"{flag} is for one request, this is a sweep; leave it out. {_WHY}")
    if path is not None:
        _need_file_only(path, options)
        study = read_study(path, local=settings.local, names=False)
        if study.sizes:
            raise InputError(f"{path} has [[sizes]], which `plan` does not answer; use `sweep`")
        _run(study.plans, options, settings)
        return
    if not options.model or not options.on:
        raise InputError("give MODEL and --on, or --questions FILE")
    found: list[Question] = []
    for model in names(options.model, "MODEL"):
        batch, assumed = options.global_batch, tuple[str, ...]()
        if batch is None:
            usual = plan_batch(model, options.seq, adapters=bool(options.lora))
            batch, assumed = usual.sequences, (usual.words,)
        found += [
            replace(question, assumed=(*assumed, *question.assumed))
            for question in listed_questions(
                [options],
                models=(model,),
                clusters=names(options.on, "--on"),
                global_batches=(batch,),
                sequence_lengths=(options.seq,),
                prices=names(options.price, "--price"),
                local=settings.local,
            )
        ]
    _run(tuple(found), options, settings)


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


def _run(questions: tuple[Question, ...], options: PlanOptions, settings: Sweep) -> None:
    """Answers the questions into the folder, and prints the table.

    Ctrl-C keeps the answers so far. Raises InfeasibleError if no question has a plan, InputError
    if another sweep works in the folder.
    """
    folder = need_folder(settings.output.file)
    workers = workers_of(settings.workers, settings.ray, usual=1)
    need_sort(settings.sort)
    for question in questions:
        import_from_here(question.model)
    requests = study_requests(
        Study(plans=questions, sizes=()),
        local=settings.local,
        offers=settings.offers,
        prices=options.prices,
        alone=False,
    )
    try:
        run = sweep_in_folder(
            requests,
            folder,
            workers,
            quiet=settings.output.quiet or settings.output.json,
            parquet=False,
            plans=len(questions),
            sort=settings.sort,
        )
    except KeyboardInterrupt:
        note(f"answers so far are kept in {folder}; the same command continues from there")
        raise
    data = listed_json(run, settings.sort)
    write_text(folder / "summary.json", to_json(data))
    if settings.output.json:
        print_json(data)
    else:
        show(study_report(run, settings.sort, len(questions)))
        named = [(question.cluster, question.price) for question in questions]
        print_price_notes(
            notes_of_many(named, today=settings.today, local=settings.local, offers=settings.offers)
        )
        note(
            f"written: {folder} (summary.csv, summary.json, {STORE}, and a file per plan in "
            f"{PLAN_FOLDER}); {run.known} of {run.jobs} answers were known before"
        )
    if not run.answered:
        raise InfeasibleError(
            f"none of the {len(questions)} requests has a plan; the reasons are in {folder}"
        )


SWEEP_SCHEMA = "shardwright/sweep@1"
# Keys with the names that the tables of a sweep have too.
_SAME = (
    *("model", "cluster", "global_batch", "sequence_length", "precision", "optimizer", "pins"),
    *("status", "step_time_s", "step_time_low_s", "step_time_high_s", "gap", "mfu"),
    *("peak_memory_bytes", "pp", "dp", "tp", "vpp", "schedule", "micro_batch", "zero_stage"),
)


def listed_json(run: StudyRun, sort: str) -> dict[str, Any]:
    """The rows as plain values, rows without a plan last; missing values are null.

    sort  a name of plan_columns.PLAN_SORTS
    """
    rows: Sequence[dict[str, Any]] = run.rows.get(PLANS, [])
    best = best_rows(run.rows, sort, len(rows))
    found = {row["question"] for row in best}
    others = [row for row in rows if row["question"] not in found]
    lines = [_line(row) for row in (*best, *others)]
    return {"schema": SWEEP_SCHEMA, "sorted_by": sort, "rows": lines}


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """One request with its answer; `file` is the plan file in the folder, "" if nothing fits."""
    tokens = row.get("counted_in") == "tokens"
    rate, usd = row.get("rate"), row.get("usd_per_million")
    return {
        **{name: row.get(name) for name in _SAME},
        "price": row["price_asked"],
        "tokens_per_s": rate if tokens else None,
        "samples_per_s": None if tokens else rate,
        "usd_per_million_tokens": usd if tokens else None,
        "usd_per_million_samples": None if tokens else usd,
        "price_usd_per_hour": row.get("usd_per_device_hour"),
        "price_source": row["price"] or "",
        "price_date": row["price_date"] or "",
        "file": "" if row.get("step_time_s") is None else plan_file_of(row),
        "reason": row["reason"],
    }
