"""`run_study`: answer a study into a folder, and write its tables and summary.

    results.sqlite     every answer, and the tables below; an interrupted sweep continues from it
    results.parquet    the table of plans;  sizes.parquet  the table of sized runs
    summary.csv        the table of plans;  sizes.csv  the table of sized runs
    *.columns.csv      meanings of a table's columns

The files depend on the questions, the code and the data only: not on the workers, the machine,
interruptions or the day. Files of an earlier study under these names are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.batch.answer_cache import code_and_data_version, write_answer
from planner.batch.result_store import ResultStore, solve_into
from planner.batch.sweep import Posed, Reply, Workers, verdict_of
from profiles.document import write_bytes, write_text
from profiles.errors import DocumentError
from shardwright.reports.brief.columns import dictionary_csv, table_csv
from shardwright.sweeps.parquet_file import parquet_bytes
from shardwright.sweeps.study_requests import (
    COLUMNS_OF,
    PLANS,
    SIZES,
    StudyRequests,
    best_rows,
    dictionary_of,
    table_of,
)

STORE = "results.sqlite"
_CSV = {PLANS: "summary", SIZES: "sizes"}
PLAN_FOLDER = "plans"
_PLAN_FILE = re.compile(r"question-\d+\.json")
ANSWERED = ("optimal", "feasible")

Rows = dict[str, list[dict[str, Any]]]
Progress = Callable[[int, int], None]
"""Called with the number of finished jobs, and of all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """The result of a study.

    rows   of every table by its name, in the order of the study
    jobs, known   number of jobs, and of jobs that were already solved
    files  names of the written files
    """

    rows: Rows
    jobs: int
    known: int
    files: tuple[str, ...]

    @property
    def answered(self) -> int:
        """Number of questions with a plan or a run."""
        return sum(row["status"] in ANSWERED for rows in self.rows.values() for row in rows)


def run_study(
    requests: StudyRequests,
    folder: Path,
    *,
    workers: Workers,
    progress: Progress = lambda done, jobs: None,
    parquet: bool = True,
    plans: int = 0,
    sort: str = "step",
    version: str = "",
) -> StudyRun:
    """Solve the jobs without an answer in the folder, and write all its files.

    parquet  also write the tables as Parquet
    plans    number of plan files to write, for the best rows by `sort` (plan_columns.PLAN_SORTS)
    version  of the program, written to plan files

    Finished answers are kept however the sweep ends. Raises DocumentError for a damaged store, or a
    folder that cannot be written.
    """
    with closing(ResultStore(folder / STORE, version=code_and_data_version())) as store:
        jobs = requests.jobs()
        known = store.known()
        missing = [job for job in jobs if job.key not in known]
        faults: dict[str, str] = {}
        done = len(jobs) - len(missing)
        progress(done, len(jobs))
        if missing:
            for ended in solve_into(store, missing, workers):
                if ended.fault:
                    faults[ended.key] = ended.fault
                done += 1
                progress(done, len(jobs))
        rows = requests.rows(store, faults)
        files = [*_write_tables(folder, rows, parquet=parquet), STORE]
        files += _write_plans(requests, store, folder, best_rows(rows, sort, plans), version)
        _remove_others(folder, files)
        tables = [table_of(name, found) for name, found in rows.items()]
        store.finish([*tables, dictionary_of(list(rows))])
    return StudyRun(rows=rows, jobs=len(jobs), known=len(jobs) - len(missing), files=tuple(files))


def _write_tables(folder: Path, rows: Rows, *, parquet: bool) -> list[str]:
    files = []
    for name, found in rows.items():
        stem, columns = _CSV[name], COLUMNS_OF[name]
        write_text(folder / f"{stem}.csv", table_csv(columns, found))
        write_text(folder / f"{stem}.columns.csv", dictionary_csv(columns))
        files += [f"{stem}.csv", f"{stem}.columns.csv"]
        if parquet:
            write_bytes(folder / f"{name}.parquet", parquet_bytes(table_of(name, found)))
            files.append(f"{name}.parquet")
    return files


def _remove_others(folder: Path, files: Sequence[str]) -> None:
    """Remove files of an earlier study, and temporary files of interrupted writes (named by
    profiles/document.py), but no others."""
    names = [f"{name}.parquet" for name in _CSV]
    names += [f"{stem}{end}" for stem in _CSV.values() for end in (".csv", ".columns.csv")]
    for path in (folder / PLAN_FOLDER).glob("question-*.json"):
        if _PLAN_FILE.fullmatch(path.name):
            names.append(f"{PLAN_FOLDER}/{path.name}")
    halves = [half for name in names for half in folder.glob(f".{name}.????????")]
    halves += (folder / PLAN_FOLDER).glob(".question-*.json.????????")
    names += [str(half.relative_to(folder)) for half in halves]
    for name in set(names) - set(files):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            why = error.strerror or error
            raise DocumentError(f"{folder / name}: cannot be removed: {why}") from error


def plan_file_of(row: Mapping[str, Any]) -> str:
    """The plan file of a row in the folder, if one is written."""
    return f"{PLAN_FOLDER}/question-{row['question']}.json"


def _write_plans(
    requests: StudyRequests,
    store: ResultStore,
    folder: Path,
    best: Sequence[dict[str, Any]],
    version: str,
) -> list[str]:
    files = []
    for row in best:
        posed = requests.plans[row["question"] - 1]
        assert isinstance(posed, Posed)  # it has a plan
        solved = verdict_of(Reply(key="", text=store.answer(posed.job.key))).found
        assert solved is not None
        name = plan_file_of(row)
        write_answer(folder / name, posed, solved, version=version)
        files.append(name)
    return files
