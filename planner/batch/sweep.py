"""Values of a sweep: its requests, the jobs for workers, and the answers.

Workers are any callable: this process, others on this machine, a Ray cluster. Questions that differ
only in price share a job: a price changes the cost of a plan, but not which plan is best, since the
search minimizes the step time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.axes import Axes
from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_choice import with_layout_price
from planner.layout.layout_question import LayoutRequest
from profiles.document import decode
from profiles.hardware.energy.grid_carbon import WORLD
from profiles.sourced import Sourced
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs, inputs_at
from simulator.money import usd_per_million_tokens
from simulator.values.plan_file import Alternative, PlanFile
from simulator.values.prediction import Interval
from simulator.values.workload import Workload

Answer = PlanFile | LayoutFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request for the best plan of a model on a cluster, as written by the user.

    model, cluster  as on the command line (`llama-3.1-8b`, `8xh100-sxm`)
    space           the fixed or restricted axes
    layouts         replaces `space` if the request is for a framework's layouts
    price           a kind of the price table (`on-demand`, `spot`, ...) or US dollars per
                    device-hour (`2.49`)
    assumed         assumptions made for missing flags
    """

    model: str
    cluster: str
    workload: Workload
    space: Axes = field(default_factory=Axes)
    layouts: LayoutRequest | None = None
    solver: str = "auto"
    seed: int = 0
    price: str = "on-demand"
    assumed: tuple[str, ...] = ()

    def pins(self) -> tuple[str, ...]:
        """The fixed axes, as flags."""
        return self.space.pins() if self.layouts is None else self.layouts.pins()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of a worker as text; jobs with equal keys have equal answers.

    kin  equal for jobs that share most of their work: one process solves them faster than several
    """

    key: str
    text: str
    kin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Posed:
    """A question with the model, cluster and price that it names, loaded.

    job    the job that solves it; several questions may share one
    price  US dollars per device-hour, None if there is none
    """

    question: Question
    job: Job
    price: Sourced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The result of a job: its answer as text, or the reason for none (`fault`)."""

    key: str
    text: str = ""
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The parsed text of a reply: a plan file or layout without prices, or the reason for none."""

    answer: PlanFile | None = None
    layout: LayoutFile | None = None
    reason: str = ""

    @property
    def found(self) -> Answer | None:
        """The answer of either search, or None."""
        return self.answer if self.answer is not None else self.layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question with its outcome.

    reason  why there is no plan, "" if there is one
    """

    question: Question
    answer: Answer | None = None
    reason: str = ""


Workers = Callable[[Sequence[Job]], Iterator[Reply]]
"""Yields one reply per job, in the order in which jobs end."""


def verdict_of(reply: Reply) -> Verdict:
    """The parsed answer of a reply."""
    if reply.fault:
        return Verdict(reason=reply.fault)
    said: Verdict = decode(Verdict, json.loads(reply.text), where="a worker's answer")
    return said


def finished(solved: Answer, posed: Posed) -> Answer:
    """The answer to a question, from that of its job: with the question's price and assumptions,
    and without the search time, which depends on the machine."""
    priced = priced_at(solved, posed.price, inputs_at(posed.question.price))
    return replace(
        priced, search_time_s=0.0, assumptions=(*posed.question.assumed, *priced.assumptions)
    )


def priced_at(answer: Answer, price: Sourced | None, inputs: ReliabilityInputs = DEFAULT) -> Answer:
    """The answer with its dollars at a price per device-hour and the failure rates of `inputs`, and
    with the carbon of the world's average grid, as in a single request without a region."""
    if isinstance(answer, LayoutFile):
        return with_layout_price(answer, price, inputs, WORLD)
    return with_price(answer, price)


def has_plan(answer: Answer | None) -> bool:
    """Whether something fits."""
    if isinstance(answer, LayoutFile):
        return answer.chosen is not None
    return answer is not None and answer.plan is not None


def with_price(answer: PlanFile, price: Sourced | None) -> PlanFile:
    """The plan file with its dollars at another price per device-hour; None removes them.

    Dollars of runners-up follow from their step times.
    """
    prediction = answer.prediction
    if answer.plan is None or prediction is None:
        return answer
    cost = usd_per_million_tokens(prediction.per_s, answer.plan.degrees.num_devices, price)
    return replace(
        answer.with_dollars(cost, price),
        alternatives=tuple(_with_price(other, price) for other in answer.alternatives),
    )


def _with_price(other: Alternative, price: Sourced | None) -> Alternative:
    work = other.plan.workload
    per_s = work.counted_per_step / other.step_time_s
    rate = Interval(value=per_s, low=per_s, high=per_s)
    cost = usd_per_million_tokens(rate, other.plan.degrees.num_devices, price)
    usd = cost.value if cost else None
    tokens = work.counted_in == "tokens"
    return replace(
        other,
        usd_per_million_tokens=usd if tokens else None,
        usd_per_million_samples=None if tokens else usd,
    )


def row_of(posed: Posed, answer: Answer) -> Row:
    """The row of an answered question, with the reason if nothing fits."""
    return Row(
        question=posed.question,
        answer=answer,
        reason="" if has_plan(answer) else why_not(answer),
    )


def why_not(answer: Answer) -> str:
    """One line: why nothing fits, and the first change that makes something fit."""
    why = answer.infeasibility
    if why is None:
        return f"no plan: status {answer.status}"
    where = f"stage {why.stage}" if why.rank is None else f"rank {why.rank}"
    short = "host memory" if why.host else why.term
    said = f"does not fit: {short} of {where} of {why.nearest}"
    return f"{said}; would fit: {why.relaxations[0].flag}" if why.relaxations else said
