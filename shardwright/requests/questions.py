"""Questions of a sweep: grids of models, clusters, workloads and prices, as flags or in a file."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from planner.axes import FRAMEWORKS_ONLY, Axes
from planner.batch.sweep import Job, Posed, Question
from planner.layout.layout_question import LayoutQuestion, LayoutRequest
from planner.space import EXECUTOR
from profiles.errors import (
    DocumentError,
    InputError,
    ModelError,
    ShardwrightError,
    UnknownNameError,
)
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.prices.offer import Offer
from profiles.model.loaders import resolve_model
from shardwright.options.option import SweepKey, options_of, values_of
from shardwright.options.plan_options import PlanOptions
from shardwright.requests.named_model import DEFAULT_SEQUENCE, Sample, described_of, sample_of
from shardwright.requests.plan_choices import (
    axes_of_options,
    first_precision,
    requested_options,
    step_optimizer,
)
from shardwright.requests.plan_request import default_precision
from shardwright.requests.plan_route import executor_space, route_of
from shardwright.requests.price_request import price_for
from shardwright.requests.solve_task import LayoutTask, job_of, task_of
from simulator.training_run.framework.framework import load_framework
from simulator.values.workload import Workload

_KEYS = {
    key: tuple(each.name for each in options_of(PlanOptions) if each.sweep is key)
    for key in SweepKey
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A grid: every combination of its lists is a question.

    models, clusters   as on the command line
    sequence_lengths   empty: the model's own, as `shardwright plan` assumes it
    precision          empty: the default of the devices
    prices             kinds of the price table, or US dollars per device-hour
    pins               axis (`tp`, `micro_batch`, ...) to the text of its flag (`4`, `1,2`)
    stack, options     a framework whose layouts to search, and choices in addition to the axes,
                       each as the text of its flag (shardwright/options/plan_options.py)
    stacks             several frameworks instead of `stack`, with a separate question for each
    """

    models: tuple[str, ...]
    clusters: tuple[str, ...]
    global_batches: tuple[int, ...]
    sequence_lengths: tuple[int, ...] = ()
    prices: tuple[str | float, ...] = ("on-demand",)
    precision: str = ""
    optimizer: str = "adamw"
    solver: str = "auto"
    seed: int = 0
    pins: Mapping[str, str | int] = field(default_factory=dict)
    stack: str = ""
    stacks: tuple[str, ...] = ()
    options: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("models", "clusters", "global_batches", "prices"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty: a grid needs one entry at least")
        if self.stack and self.stacks:
            raise InputError("stack and stacks both name frameworks: leave one of them out")
        framework = bool(self.stack or self.stacks)
        for pin in self.pins:
            if not framework and pin in FRAMEWORKS_ONLY:
                raise InputError(
                    f"pin {pin}: our own executor has no such axis; name the framework that will "
                    "run the plans, for example stack = megatron-core (--stack)"
                )
        for kind, key, given in (
            ("pin", SweepKey.PIN, self.pins),
            ("option", SweepKey.OPTION, self.options),
        ):
            for name in given:
                if name not in _KEYS[key]:
                    raise UnknownNameError(kind, name, _KEYS[key])
        requested_options(self.options_for(self.frameworks[0]))

    def options_for(self, stack: str) -> PlanOptions:
        """The options shared by all requests of the grid for a framework; raises InputError."""
        texts = {name: str(text) for name, text in (*self.pins.items(), *self.options.items())}
        shared = PlanOptions(
            stack=stack,
            precision=self.precision,
            optimizer=self.optimizer,
            solver=self.solver,
            seed=self.seed,
        )
        return replace(shared, **values_of(PlanOptions, texts))

    @property
    def frameworks(self) -> tuple[str, ...]:
        """Frameworks of the grid; "" is our own executor."""
        return self.stacks or (self.stack,)


def questions_of(grid: Grid, *, local: Path | None = None) -> tuple[Question, ...]:
    """The questions of a grid; raises as `listed_questions`.

    local  the file of this machine's profile
    """
    return listed_questions(
        [grid.options_for(stack) for stack in grid.frameworks],
        models=grid.models,
        clusters=grid.clusters,
        global_batches=grid.global_batches,
        sequence_lengths=grid.sequence_lengths or (None,),
        prices=tuple(map(str, grid.prices)),
        local=local,
    )


def listed_questions(
    options: Sequence[PlanOptions],
    *,
    models: Sequence[str],
    clusters: Sequence[str],
    global_batches: Sequence[int],
    sequence_lengths: Sequence[int | None],
    prices: Sequence[str],
    local: Path | None = None,
) -> tuple[Question, ...]:
    """The questions for all combinations of the lists: models outermost, prices innermost.

    options  one per framework; otherwise equal

    Raises InputError for impossible fixed axes and workloads. An unknown model or cluster is an
    error of its question only.
    """
    shared = options[0]
    asked = [_layouts_of(each) if each.stack else None for each in options]
    axes = axes_of_options(shared)
    space = axes.for_blocks() if None in asked else Axes()
    sample_of_model, precision_on = functools.cache(_sample), functools.cache(_precision)
    made = []
    for model, on, batch, layouts in product(models, clusters, global_batches, asked):
        for length in sequence_lengths:
            sample = sample_of_model(model, length, layouts is not None)
            precision, told = precision_on(shared.precision, on, local)
            work = Workload(
                global_batch=batch,
                sequence_length=sample.sequence_length,
                counted_in=sample.counted_in,
                # A framework's precision belongs to its layouts.
                precision="bf16" if layouts else precision,
                optimizer=step_optimizer(shared),
            )
            assumed = (*sample.assumptions, *(() if layouts else told))
            made += [
                Question(
                    model=model,
                    cluster=on,
                    workload=work,
                    space=Axes() if layouts else space,
                    layouts=layouts,
                    solver=shared.solver,
                    seed=shared.seed,
                    price=price,
                    assumed=assumed,
                )
                for price in prices
            ]
    return tuple(made)


def _precision(given: str, on: str, local: Path | None) -> tuple[str, tuple[str, ...]]:
    """The precision of a question, and a note on it."""
    if given:
        return given, ()
    try:
        return default_precision(get_cluster(on, local=local))
    except ShardwrightError:
        return "bf16", ()  # the cluster cannot be read: the question fails when it is posed


def _layouts_of(options: PlanOptions) -> LayoutRequest:
    load_framework(options.stack)
    return LayoutRequest(
        stack=options.stack,
        precision=first_precision(options.precision),
        space=axes_of_options(options),
        options=requested_options(options),
    )


def _sample(model: str, length: int | None, described: bool) -> Sample:
    try:
        return described_of(model, length).sample if described else sample_of(model, length)
    except (ModelError, DocumentError, UnknownNameError):
        # The model cannot be read: the question fails when it is posed.
        return Sample(sequence_length=length or DEFAULT_SEQUENCE)


class Poser:
    """Resolves many questions; shared inputs are read once.

    local   file of this machine's profile
    offers  instead of the shipped ones
    alone   layouts without runners-up and other additional searches
    """

    def __init__(
        self,
        *,
        local: Path | None = None,
        offers: tuple[Offer, ...] | None = None,
        alone: bool = False,
    ) -> None:
        self._alone = alone
        self._cluster = functools.cache(lambda on: get_cluster(on, local=local))
        self._price = functools.cache(lambda on, kind: price_for(self._cluster(on), kind, offers))
        self._jobs: dict[Question, Job] = {}

    def pose(self, question: Question) -> Posed:
        """The question with all its inputs, read from their names; raises ShardwrightError."""
        cluster = self._cluster(question.cluster)
        price = self._price(question.cluster, question.price)
        # Prices and assumptions about flags are not part of the solved problem.
        solved = replace(question, price="", assumed=())
        job = self._jobs.get(solved)
        if job is None:
            job = self._jobs[solved] = _job(question, cluster, self._alone)
        return Posed(question=question, job=job, price=price)


def _job(question: Question, cluster: Cluster, alone: bool) -> Job:
    layouts = question.layouts or _layout_request(question, cluster)
    if layouts is not None:
        return job_of(
            LayoutTask(question=_layout_question(question, layouts, cluster), alone=alone)
        )
    spec, work = resolve_model(question.model), question.workload
    solver, seed = question.solver, question.seed
    return job_of(task_of(spec, cluster, work, question.space, solver=solver, seed=seed))


def _layout_request(question: Question, cluster: Cluster) -> LayoutRequest | None:
    """The layout part of a question for our own executor; None if it is searched block by block, as
    for a single request (commands/plan_one.py)."""
    work = question.workload
    route = route_of(
        question.model,
        cluster,
        seq=work.sequence_length,
        optimizer=work.optimizer,
        solver=question.solver,
    )
    if route.figures is None:
        return None
    space = executor_space(question.space, route.figures)
    return LayoutRequest(stack=EXECUTOR, precision=work.precision, space=space)


def _layout_question(
    question: Question, layouts: LayoutRequest, cluster: Cluster
) -> LayoutQuestion:
    length, runs_here = question.workload.sequence_length, layouts.stack == EXECUTOR
    return LayoutQuestion(
        name=question.model,
        model=described_of(question.model, length, runs_here=runs_here).figures,
        cluster=cluster,
        stack=layouts.stack,
        global_batch=question.workload.global_batch,
        seq_len=length,
        precision=layouts.precision,
        space=layouts.space,
        options=layouts.options,
    )
