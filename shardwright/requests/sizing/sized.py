"""`SizeSolver`: from flags of `size`, or phases of a run, to an answer, on several processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from planner.layout.layout_question import LayoutSolver
from planner.sizing.run_outlook import SizeAnswer
from planner.sizing.size_limits import Search
from planner.sizing.size_phases import PHASES_SCHEMA, Phase, PhaseFile, stretch_of_phases
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_answer import answer_of, compared, explained, search_here
from planner.sizing.sizing_search import SizedDevice, SizeTask, size_on_workers
from profiles.document import read_document
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.catalog import node_design
from profiles.units import format_count
from shardwright.requests.sizing.size_flags import NamedDevice, Range, SizeFlags
from shardwright.requests.sizing.size_request import SizeRequest, size_request
from shardwright.runs.known_models import WholeRun, whole_run
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedComparison:
    """A published run, and its device-hours as the defaults of the answer predict them."""

    run: WholeRun
    predicted_device_hours: Interval

    @property
    def error(self) -> float:
        """Predicted over published device-hours, minus 1."""
        return self.predicted_device_hours.value / self.run.device_hours - 1.0


def published_flags(flags: SizeFlags, run: WholeRun, answer_devices: int) -> SizeFlags:
    """The request with the tokens and devices of the published run, otherwise unchanged.

    answer_devices  taken if the number of devices is not published
    """
    per_node = node_design(run.device).devices
    nodes = max(1, round((run.devices or answer_devices) / per_node))
    return replace(
        flags,
        options=replace(flags.options, phases=None),
        on=(NamedDevice(name=run.device),),
        tokens=run.tokens,
        optimal_tokens=False,
        deadline_s=None,
        budget_usd=None,
        nodes=Range(first=nodes, last=nodes),
        devices=None,
        minimise="time",
    )


# Rounds in which the other phases of a run are priced on the devices of the longest.
_ROUNDS = 3
_SETTLED = 2e-3


class Detail(IntEnum):
    """Searches for an answer.

    BEST     the best run, and that of each other type of device
    SUMMARY  also the other compared frameworks and the published run (size_summary.py)
    ALL      also fewer and more nodes, and gains of one more node, dollar, ...
    """

    BEST, SUMMARY, ALL = range(3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """An answered request.

    published  the published run of the model, predicted with the same defaults
    """

    question: SizeQuestion
    answer: SizeAnswer
    published: PublishedComparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSolver:
    """Answers requests.

    clock    returns seconds; the machine's monotonic clock with several workers
    today    ISO day, for the age of prices
    limit_s  time limit of each search
    workers  processes on this machine, 1 for the current one only
    relaxed  if no run keeps the limits, include the smallest changes of limits that allow one
    """

    clock: Callable[[], float]
    today: str
    limit_s: float
    workers: int = 1
    seed: int = 0
    runs: int = 2000
    detail: Detail = Detail.ALL
    relaxed: bool = True

    def solve(self, flags: SizeFlags) -> Sized:
        """The answer, next to a published run of the same model if there is one.

        Raises InputError, UnknownNameError, DocumentError.
        """
        sized = self._answered(flags)
        published = None
        if self.detail >= Detail.SUMMARY and not flags.options.lora:
            published = whole_run(flags.options.model)
        best = sized.answer.best
        if published is None or best is None:
            return sized
        flags = published_flags(flags, published, best.run.devices)
        try:
            again = self.of_best()._answered(flags).answer.best
        except InputError:  # such as a framework that does not run on the published devices
            return sized
        if again is None:
            return sized
        beside = PublishedComparison(run=published, predicted_device_hours=again.device_hours)
        return replace(sized, published=beside)

    def _answered(self, flags: SizeFlags) -> Sized:
        phases = None if flags.options.phases is None else phases_of(flags.options.phases)
        total = None
        if phases is not None:
            total = sum(phase.tokens_count for phase in phases)
            longest = max(phases, key=lambda phase: phase.tokens_count)
            flags = replace(
                flags,
                options=replace(flags.options, seq=longest.seq),
                tokens=longest.tokens_count,
                batches=(longest.global_batch,),
            )
        asked = size_request(flags, today=self.today, dataset_tokens=total)
        if phases is None or total is None:
            sized = self._solved(asked, asked.question)
            if sized.answer.best is None and asked.usual_deadline:
                asked = _without_deadline(asked)
                sized = self._solved(asked, asked.question)
            return sized
        question = asked.question
        for _ in range(_ROUNDS):
            sized = self.of_best()._solved(asked, question)
            if sized.answer.best is None:
                break
            solver = self._solver(math.inf)
            stretch = stretch_of_phases(question, sized.answer.best.run, phases, solver)
            settled = abs(stretch / question.stretch - 1) < _SETTLED
            question = replace(question, stretch=stretch)
            if settled:
                break
        sized = self._solved(asked, question)
        said = (
            f"{len(phases)} phases of {format_count(total)} tokens in all take "
            f"{question.stretch:.3f} times the longest one's time (--phases)"
        )
        answer = replace(sized.answer, assumptions=(said, *sized.answer.assumptions))
        return replace(sized, answer=answer)

    def of_best(self) -> SizeSolver:
        """The same solver with answers of `Detail.BEST`."""
        return replace(self, detail=Detail.BEST, relaxed=False)

    def explained(self, sized: Sized) -> Sized:
        """An answer of `Detail.BEST` extended to this solver's detail, without the published run;
        parts that it already has are not solved again."""
        return self._detailed(sized, self._end())

    def _detailed(self, sized: Sized, end: float) -> Sized:
        start, solver = self.clock(), self._solver(end)
        question, answer = sized.question, sized.answer
        if self.detail >= Detail.SUMMARY:
            answer = compared(question, answer, solver, seed=self.seed, runs=self.runs)
        if self.detail >= Detail.ALL:
            answer = explained(question, answer, solver)
        spent = answer.search_time_s + self.clock() - start
        return replace(sized, answer=replace(answer, search_time_s=spent))

    def _solved(self, asked: SizeRequest, question: SizeQuestion) -> Sized:
        start, end = self.clock(), self._end()
        search = self._search(end)
        answer = answer_of(
            question,
            search(question),
            search=search,
            solver=self._solver(end),
            seed=self.seed,
            runs=self.runs,
            relaxed=self.relaxed,
        )
        answer = replace(
            answer,
            refused=(*answer.refused, *asked.left_out),
            assumptions=(*asked.assumed, *answer.assumptions),
            search_time_s=self.clock() - start,
        )
        return self._detailed(Sized(question=question, answer=answer), end)

    def _end(self) -> float:
        return self.clock() + self.limit_s if math.isfinite(self.limit_s) else math.inf

    def _solver(self, end: float) -> LayoutSolver:
        return LayoutSolver(clock=self.clock, end_s=end)

    def _search(self, end: float) -> Search:
        here = search_here(self._solver(end))
        if self.workers == 1:
            return here

        def on_workers(question: SizeQuestion) -> tuple[SizedDevice, ...]:
            if len(question.choices) == 1:
                return here(question)
            tasks = [
                SizeTask(question=question, choice=number, end_s=min(end, 1e15))
                for number in range(len(question.choices))
            ]
            return size_on_workers(tasks, self.workers)

        return on_workers


def _without_deadline(request: SizeRequest) -> SizeRequest:
    """The request without its default deadline, which nothing meets."""
    words, *rest = request.assumed
    return replace(
        request,
        question=replace(request.question, deadline_s=None),
        assumed=(f"no limit of time: nothing keeps the default, {words}", *rest),
        usual_deadline=False,
    )


def phases_of(path: Path) -> tuple[Phase, ...]:
    """The phases of a file (planner/sizing/size_phases.py); raises DocumentError."""
    found = read_document(path, PhaseFile, schema=PHASES_SCHEMA).phases
    if not found:
        raise DocumentError(f"{path} has no [[phases]]")
    return found
