"""Questions of a sweep: grids of models, clusters, workloads and prices, as flags or in a file.

A file (TOML or JSON) holds grids; each stands for every combination of its lists:

    schema = "shardwright/questions@1"

    [[grids]]
    models = ["llama-3.1-8b", "llama-3.1-70b"]
    clusters = ["2x8xh100-sxm", "2x8xa100-sxm-80gb"]
    global_batches = [256, 512]
    sequence_lengths = [4096]
    prices = ["on-demand", "spot", 1.99]
    pins = { tp = "1,2", schedule = "1f1b" }

    [[grids]]
    models = ["llama-3.1-405b"]
    clusters = ["512x8xh100-sxm", "two-sites.toml"]
    global_batches = [1024]
    stack = "megatron-core"
    precision = "bf16,fp8"
    options = { optimizer_offload = "yes", local_steps = "1,50" }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from planner.layout.layout_question import LayoutAsk, LayoutQuestion
from planner.many.sweep import Posed, Question
from planner.search.space import Space
from profiles.document import content_hash, read_document
from profiles.errors import (
    DocumentError,
    InputError,
    ModelError,
    ShardwrightError,
    TraceError,
    UnknownNameError,
)
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.prices.offer import Offer
from profiles.model.loaders import resolve_model
from shardwright.asking.asked_price import price_for
from shardwright.asking.axes import AXES, Axes, axes_of
from shardwright.asking.executor_layouts import (
    EXECUTOR,
    executor_space,
    layout_space_of,
    why_block_by_block,
)
from shardwright.asking.layout_task import layout_task
from shardwright.asking.named_model import DEFAULT_SEQUENCE, Sample, described_of, sample_of
from shardwright.asking.plan_options import (
    OPTION_FLAGS,
    asked_options,
    first_precision,
    need_stack,
)
from shardwright.asking.plan_request import default_precision
from shardwright.asking.solve_task import job_of, task_of
from simulator.training_run.framework.framework import load_framework
from simulator.values.workload import Workload

QUESTIONS_SCHEMA = "shardwright/questions@1"
_FRAMEWORKS_ONLY = ("cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Every combination of the lists is a question.

    models, clusters   as on the command line
    sequence_lengths   empty: the model's own, as `shardwright plan` assumes it
    precision          empty: what the devices train in
    prices             kinds of the price table, or US dollars per device-hour
    pins               axis (`tp`, `micro_batch`, ...) to what its flag takes (`4`, `1,2`)
    stack, options     a framework, whose layouts are then searched, and what may be chosen beside
                       the axes, as its flags take it (plan_options.py)
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
    options: Mapping[str, str | int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("models", "clusters", "global_batches", "prices"):
            if not getattr(self, name):
                raise InputError(f"{name} is empty: a grid needs one entry at least")
        for pin in self.pins:
            if not self.stack and pin in _FRAMEWORKS_ONLY:
                raise InputError(
                    f"pin {pin}: our own executor has no such axis; name the framework that will "
                    "run the plans, for example stack = megatron-core (--stack)"
                )
            if pin not in AXES:
                raise UnknownNameError("pin", pin, AXES)
        for option in self.options:
            if option not in OPTION_FLAGS:
                raise UnknownNameError("option", option, OPTION_FLAGS)
        if not self.stack:
            need_stack({name: str(text) for name, text in self.options.items()}, self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFile:
    """The grids of a file."""

    grids: tuple[Grid, ...]


def read_questions(path: Path, *, local: Path | None = None) -> tuple[Question, ...]:
    """The questions of a file; raises DocumentError."""
    grids = read_document(path, QuestionFile, schema=QUESTIONS_SCHEMA).grids
    if not grids:
        raise InputError(f"{path} holds no grid, so there is nothing to answer")
    return tuple(question for grid in grids for question in questions_of(grid, local=local))


def questions_of(grid: Grid, *, local: Path | None = None) -> tuple[Question, ...]:
    """The questions of a grid: models outermost, prices innermost.

    local  the file of this machine's profile

    Raises InputError for pins and workloads that cannot be; names that mean nothing are found
    when a question is posed, and are then that question's own fault.
    """
    axes = axes_of(grid.pins)
    layouts = _layouts_of(grid, axes) if grid.stack else None
    space: Space = Space() if layouts else axes.space()
    made = []
    for model, on, batch in product(grid.models, grid.clusters, grid.global_batches):
        for length in grid.sequence_lengths or (None,):
            sample = _sample(model, length, described=layouts is not None)
            precision, told = _precision(grid, on, local)
            work = Workload(
                global_batch=batch,
                sequence_length=sample.sequence_length,
                counted_in=sample.counted_in,
                # What a framework trains in stands beside its layouts.
                precision="bf16" if layouts else precision,
                optimizer=grid.optimizer,
            )
            assumed = (*sample.assumptions, *(() if layouts else told))
            made += [
                Question(
                    model=model,
                    cluster=on,
                    workload=work,
                    space=space,
                    layouts=layouts,
                    solver=grid.solver,
                    seed=grid.seed,
                    price=str(price),
                    assumed=assumed,
                )
                for price in grid.prices
            ]
    return tuple(made)


def _precision(grid: Grid, on: str, local: Path | None) -> tuple[str, tuple[str, ...]]:
    """The precision of a question, and what is told of it."""
    if grid.precision:
        return grid.precision, ()
    try:
        return default_precision(get_cluster(on, local=local))
    except ShardwrightError:
        return "bf16", ()  # the cluster cannot be read: the question fails when it is posed


def _layouts_of(grid: Grid, axes: Axes) -> LayoutAsk:
    load_framework(grid.stack)
    return LayoutAsk(
        stack=grid.stack,
        precision=first_precision(grid.precision),
        space=axes.layout_space(),
        options=asked_options(
            {name: str(text) for name, text in grid.options.items()}, grid.precision
        ),
    )


def _sample(model: str, length: int | None, *, described: bool) -> Sample:
    try:
        return described_of(model, length).sample if described else sample_of(model, length)
    except (ModelError, DocumentError, UnknownNameError):
        # The model cannot be read: the question fails when it is posed.
        return Sample(sequence_length=length or DEFAULT_SEQUENCE)


def pose(
    question: Question, *, local: Path | None = None, offers: tuple[Offer, ...] | None = None
) -> Posed:
    """The question with the content that its words name.

    local  the file of this machine's profile
    offers  in the place of those that we ship
    Raises ShardwrightError for a model, cluster or price that is none.
    """
    cluster = get_cluster(question.cluster, local=local)
    price = price_for(cluster, question.price, offers)
    layouts = question.layouts or _executor_layouts(question, cluster)
    if layouts is not None:
        job = job_of(layout_task(_layout_question(question, layouts, cluster)))
    else:
        spec, work = resolve_model(question.model), question.workload
        solver, seed = question.solver, question.seed
        job = job_of(task_of(spec, cluster, work, question.space, solver=solver, seed=seed))
    key = content_hash({"job": job.key, "question": question, "price": price})
    return Posed(question=question, key=key, job=job, price=price)


def _executor_layouts(question: Question, cluster: Cluster) -> LayoutAsk | None:
    """A question for our own executor as one of layouts; None where it is searched block by
    block, as a single question would be (commands/plan.py)."""
    work = question.workload
    if why_block_by_block(cluster, optimizer=work.optimizer, solver=question.solver):
        return None
    try:
        figures = described_of(question.model, work.sequence_length).figures
    except (InputError, TraceError):
        return None
    space = executor_space(layout_space_of(question.space), figures)
    return LayoutAsk(stack=EXECUTOR, precision=work.precision, space=space)


def _layout_question(question: Question, asked: LayoutAsk, cluster: Cluster) -> LayoutQuestion:
    return LayoutQuestion(
        name=question.model,
        model=described_of(question.model, question.workload.sequence_length).figures,
        cluster=cluster,
        stack=asked.stack,
        global_batch=question.workload.global_batch,
        seq_len=question.workload.sequence_length,
        precision=asked.precision,
        space=asked.space,
        options=asked.options,
    )
