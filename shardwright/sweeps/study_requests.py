"""`StudyRequests`: every question of a study with all its inputs, and its rows."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.batch.result_store import ResultStore, Table
from planner.batch.sweep import Job, Posed, Question, Reply, Row, finished, row_of, verdict_of
from profiles.document import decode
from profiles.errors import ShardwrightError, UnknownNameError
from profiles.hardware.prices.offer import Offer, shipped_offers
from shardwright.reports.brief.columns import Column
from shardwright.requests.local_paths import local_profile
from shardwright.requests.questions import Poser
from shardwright.requests.sizing.size_flags import SizeFlags
from shardwright.requests.sizing.size_request import SizeRequest, size_request
from shardwright.sweeps.plan_columns import PLAN_INTEGERS, PLAN_SORTS, PLAN_TABLE, plan_figures
from shardwright.sweeps.size_columns import SIZE_INTEGERS, SIZE_TABLE, size_figures
from shardwright.sweeps.study_file import Study
from shardwright.sweeps.worker import SizeVerdict, sizing_job

PLANS, SIZES = "results", "sizes"
"""The tables of a sweep."""
COLUMNS_OF = {PLANS: PLAN_TABLE, SIZES: SIZE_TABLE}
"""The columns of each table, with units and meanings."""
_INTEGERS_OF = {PLANS: PLAN_INTEGERS, SIZES: SIZE_INTEGERS}
# Plain numbers: their columns have no unit, which would distinguish them from texts.
_COUNTS = ("interruptions",)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRequestOfStudy:
    """A question of `size`; an invalid one has a `fault`, and None as `request` and `job`."""

    flags: SizeFlags
    request: SizeRequest | None = None
    job: Job | None = None
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRequests:
    """The questions in the order of the study.

    plans  questions of `plan`; an invalid one is a row with the reason
    flags  of the sweep that the command of a single question needs too: --prices FILE, --local FILE
    """

    plans: tuple[Posed | Row, ...]
    sizes: tuple[SizeRequestOfStudy, ...]
    flags: tuple[str, ...] = ()

    def jobs(self) -> tuple[Job, ...]:
        """The jobs to solve, each once, in the order of the questions, with jobs of a kin
        together."""
        found: dict[str, Job] = {}
        for entry in self.plans:
            if isinstance(entry, Posed):
                found.setdefault(entry.job.key, entry.job)
        for sized in self.sizes:
            if sized.job is not None:
                found.setdefault(sized.job.key, sized.job)
        kins = {
            kin: place for place, kin in enumerate(dict.fromkeys(j.kin for j in found.values()))
        }
        return tuple(sorted(found.values(), key=lambda job: kins[job.kin]))

    def rows(
        self, store: ResultStore, faults: Mapping[str, str]
    ) -> dict[str, list[dict[str, Any]]]:
        """The rows of every table that has questions, in the order of the study.

        store  has the answers;  faults  key of a job -> reason for having no answer
        """
        plans = [
            plan_figures(number, row, self.flags)
            for number, row in enumerate(plan_rows(self.plans, store, faults), start=1)
        ]
        sizes = [
            _size_row(number, entry, store, faults) for number, entry in enumerate(self.sizes, 1)
        ]
        return {name: rows for name, rows in ((PLANS, plans), (SIZES, sizes)) if rows}


def study_requests(
    study: Study,
    *,
    local: Path | None = None,
    offers: tuple[Offer, ...] | None = None,
    prices: Path | None = None,
    alone: bool = True,
) -> StudyRequests:
    """The questions of a study with all their inputs.

    local   the file of this machine's profile
    offers  instead of the shipped ones
    prices  file of the offers
    alone   plans without runners-up
    """
    poser = Poser(local=local, offers=offers, alone=alone)
    # The age of prices is that of the newest offer, so that answers do not depend on the day.
    today = max(offer.date for offer in (shipped_offers() if offers is None else offers))
    return StudyRequests(
        plans=tuple(_posed_plan(question, poser) for question in study.plans),
        sizes=tuple(_posed_size(flags, prices, today) for flags in study.sizes),
        flags=(
            *(() if prices is None else ("--prices", str(prices))),
            *(() if local in (None, local_profile()) else ("--local", str(local))),
        ),
    )


def _posed_plan(question: Question, poser: Poser) -> Posed | Row:
    try:
        return poser.pose(question)
    except ShardwrightError as error:
        return Row(question=question, reason=str(error))


def _posed_size(flags: SizeFlags, prices: Path | None, today: str) -> SizeRequestOfStudy:
    flags = replace(flags, options=replace(flags.options, prices=prices))
    try:
        request = size_request(flags, today=today)
    except ShardwrightError as error:
        return SizeRequestOfStudy(flags=flags, fault=str(error))
    return SizeRequestOfStudy(flags=flags, request=request, job=sizing_job(request))


def plan_rows(
    plans: tuple[Posed | Row, ...], store: ResultStore, faults: Mapping[str, str]
) -> Iterator[Row]:
    """The rows of questions with their answers, without runners-up."""
    read, solved = "", None
    for entry in plans:
        if isinstance(entry, Row):
            yield entry
        elif entry.job.key in faults:
            yield Row(question=entry.question, reason=faults[entry.job.key])
        else:
            # Questions that differ only in price are next to each other.
            if entry.job.key != read:
                read, solved = entry.job.key, _without_runners_up(store.answer(entry.job.key))
            assert solved is not None  # only answers are stored
            yield row_of(entry, finished(solved, entry))


def _without_runners_up(text: str) -> Any:
    data = json.loads(text)
    for kind in ("answer", "layout"):
        if kind in data:
            data[kind]["alternatives"] = []
    return verdict_of(Reply(key="", text=json.dumps(data))).found


def _size_row(
    number: int, entry: SizeRequestOfStudy, store: ResultStore, faults: Mapping[str, str]
) -> dict[str, Any]:
    reason, answer = entry.fault, None
    if entry.job is not None and entry.job.key in faults:
        reason = faults[entry.job.key]
    elif entry.job is not None:
        data = json.loads(store.answer(entry.job.key))
        answer = decode(SizeVerdict, data, where="a worker's answer").size
    question = entry.request.question if entry.request is not None else None
    return size_figures(number, entry.flags, question, answer, reason)


def table_of(name: str, rows: list[dict[str, Any]]) -> Table:
    """A table with these rows, for the result files."""
    columns = COLUMNS_OF[name]
    kinds = {column.name: _kind(name, column) for column in columns}
    return Table(
        name=name,
        columns=kinds,
        rows=[
            tuple(_typed(row.get(column), kind) for column, kind in kinds.items()) for row in rows
        ],
    )


def dictionary_of(names: list[str]) -> Table:
    """A table with the meaning of every column of the named tables."""
    rows = [(name, c.name, c.unit, c.meaning) for name in names for c in COLUMNS_OF[name]]
    kinds: dict[str, type] = {"in_table": str, "name": str, "unit": str, "meaning": str}
    return Table(name="columns", columns=kinds, rows=rows)


def _kind(table: str, column: Column) -> type:
    if column.name in _INTEGERS_OF[table]:
        return int
    return float if column.unit or column.name in _COUNTS else str


def _typed(value: Any, kind: type) -> object:
    return None if value is None else kind(value)


def need_sort(name: str) -> None:
    """Raises UnknownNameError for a name that is not in PLAN_SORTS."""
    if name not in PLAN_SORTS:
        raise UnknownNameError("column", name, PLAN_SORTS, where="--sort")


def best_rows(
    rows: Mapping[str, Sequence[dict[str, Any]]], sort: str, count: int
) -> list[dict[str, Any]]:
    """The `count` best rows with a plan, best first; ties are broken by the order of the study.

    sort  a name of PLAN_SORTS
    """
    column, largest = PLAN_SORTS[sort]
    sign = -1.0 if largest else 1.0
    able = [row for row in rows.get(PLANS, ()) if row.get(column) is not None]
    return heapq.nsmallest(count, able, key=lambda row: (sign * row[column], row["question"]))
