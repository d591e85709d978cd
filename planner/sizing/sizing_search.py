"""`size_device`: the best number of nodes, layout, framework and batch for a device type.

One search over layouts (planner/layout/layout_search.py) with the whole run as its goal covers
every number of nodes at once (run_goal.py). The frameworks and batches of a device are searched one
after the other and share the best value so far, so that most layouts are discarded by their bounds.
Ties are broken by order: the first one stays. `solve_text` is the same search from text to text,
for worker processes (planner/batch/local_workers.py): equal texts give equal texts, unless a time
limit ends it.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.batch.local_workers import answers_of
from planner.best_first import BestFirst
from planner.layout.layout_question import LayoutQuestion, LayoutSolver, context_of
from planner.layout.layout_search import Array, nodes_of_run
from planner.layout.refined_layout import PricedLayout
from planner.sizing.run_goal import RunGoal, RunStretch, power_of, run_stretch
from planner.sizing.size_question import TOKENS, DeviceChoice, SizeQuestion, StackChoice
from profiles.document import decode, encode
from profiles.errors import InputError, ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster, get_device, get_link
from profiles.hardware.catalogue.cluster import Cluster
from simulator.goodput.reliability import cheapest_spares
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.training_run.fit.interval import step_interval
from simulator.training_run.fit.step_spread import run_spreads
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Degrees
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedRun:
    """The best run on one device type: its layout, and its totals in closed form.

    value  of the goal
    nodes  paid for
    width  devices of a node that may be used
    steps  of the whole run
    hours, usd, kwh  of the whole run
    """

    choice: DeviceChoice
    stack: str
    batch: int
    width: int
    layout: PricedLayout
    value: float
    nodes: int
    steps: float
    tokens: float
    hours: float
    usd: float | None = None
    kwh: float

    @property
    def devices(self) -> int:
        """Number of paid devices."""
        return self.nodes * self.choice.node_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedDevice:
    """Result of the search for one device type.

    best     None if nothing keeps the limits
    bound    lower bound on the value of its runs; None if there are no runs
    refused  frameworks without a layout, with reasons
    """

    choice: DeviceChoice
    best: SizedRun | None = None
    bound: float | None = None
    considered: int
    complete: bool
    refused: tuple[tuple[str, str], ...]


def size_device(question: SizeQuestion, choice: DeviceChoice, solver: LayoutSolver) -> SizedDevice:
    """The best run on devices of one type, for the first group of frameworks that has a run."""
    considered, refused = 0, list[tuple[str, str]]()
    for stacks in question.stack_groups(choice):
        found = _size_with(question, choice, stacks, solver)
        considered += found.considered
        refused += found.refused
        if found.best is not None or not found.complete:
            break
    return replace(found, considered=considered, refused=tuple(refused))


def _size_with(
    question: SizeQuestion,
    choice: DeviceChoice,
    stacks: tuple[StackChoice, ...],
    solver: LayoutSolver,
) -> SizedDevice:
    search: BestFirst[SizedRun] = BestFirst(clock=solver.clock)
    considered, refused = 0, dict[str, str]()

    def opened(way: tuple[StackChoice, int, int]) -> None:
        nonlocal considered
        stack, width, batch = way
        try:
            goal = goal_of(question, choice, stack, batch)
            asked = layout_question_of(question, choice, stack, batch, width, choice.most)
            outcome = solver.search(asked, goal=goal, below=search.best)
        except InputError as error:
            refused[stack.name] = str(error)
            return
        considered += outcome.considered
        search.complete &= outcome.complete
        search.count_refined(math.inf if outcome.complete else outcome.bound_s)
        if outcome.layouts:
            layout, value = outcome.layouts[0], outcome.values[0]
            run = sized_run(question, choice, goal, stack.name, layout, value, width)
            search.offer(None, (value,), run)

    # Each may have any value: they are searched in this order.
    ways = itertools.product(stacks, choice.widths, question.batches)
    search.explore([(-math.inf, number, way) for number, way in enumerate(ways)], opened)
    return SizedDevice(
        choice=choice,
        best=next((run for _, run in search.ranked()), None),
        bound=search.bound if math.isfinite(search.bound) else None,
        considered=considered,
        complete=search.complete,
        refused=tuple(refused.items()),
    )


@functools.lru_cache(maxsize=64)
def stretch_of(question: SizeQuestion, choice: DeviceChoice, stack: StackChoice) -> RunStretch:
    """Wall time of the whole run over the steady step time of its tokens.

    The bound of a step has no layout, so its interval is the wider of two plain layouts of the
    framework on this many nodes: all devices data-parallel, and tensor and expert parallelism that
    fill a node.
    """
    asked = layout_question_of(
        question, choice, stack, question.batches[0], choice.node_devices, choice.most
    )
    base, _ = context_of(asked)

    def step_bands(counts: Sequence[int]) -> list[Interval]:
        runs = [
            plain_layout(base, n * choice.node_devices, width) for width in widths for n in counts
        ]
        spreads = run_spreads(runs).reshape(len(widths), len(counts)).max(axis=0).tolist()
        return [
            step_interval(run, 1.0, spread)
            for run, spread in zip(runs[: len(counts)], spreads, strict=True)
        ]

    widths = (1, choice.node_devices)
    return run_stretch(
        question.model.parameters,
        choice.device,
        choice.node_devices,
        choice.most,
        question.reliability,
        step_bands=step_bands,
        price=choice.usd_per_hour,
        confidence=question.confidence,
    ).times(question.stretch)


def plain_layout(base: TrainingRun, devices: int, width: int) -> TrainingRun:
    """The run with one sequence per device, sharded as far as its framework supports, and tensor
    and expert parallelism, if the framework has them, over up to this many devices: tensor
    parallelism at most over the number of key heads."""
    rules, model = load_framework(base.stack).rules, base.model
    tp = math.gcd(model.num_kv_heads, width) if "tp" in rules.axes else 1
    dp = devices // tp
    ep = math.gcd(max(1, model.num_experts), dp, width) if "ep" in rules.axes else 1
    return replace(
        base,
        degrees=Degrees(tp=tp, pp=1, dp=dp, ep=ep),
        global_batch=devices,
        zero_stage=max(rules.zero_stages_at(1)),
    )


def goal_of(
    question: SizeQuestion,
    choice: DeviceChoice,
    stack: StackChoice,
    batch: int,
) -> RunGoal:
    """The goal of a question for one device type and framework."""
    per_step = batch * question.seq_len
    peak = get_device(choice.device).peak_or_twins("bfloat16").value
    return RunGoal(
        minimise=question.minimise,
        node_devices=choice.node_devices,
        fewest=choice.fewest,
        most=choice.most,
        # If tokens are unknown, the value is the share of the limits that one step takes, divided
        # by its tokens, so that batches can be compared.
        steps=1.0 / per_step if question.tokens is None else math.ceil(question.tokens / per_step),
        stretch=stretch_of(question, choice, stack),
        usd=choice.usd_per_hour.value if choice.usd_per_hour is not None else None,
        usd_per_run_hour=question.storage.usd_per_hour.value if question.storage else 0.0,
        usd_once=question.storage.egress_usd.value if question.storage else 0.0,
        spares=spare_nodes(choice.device, choice.node_devices, choice.most, question.reliability),
        power=power_of(choice.device, question.pue),
        flop_per_s=choice.node_devices * peak,
        step_flop=per_step * question.flop_per_token,
        deadline_h=None if question.deadline_s is None else question.deadline_s / 3600.0,
        budget_usd=question.budget_usd,
    )


@functools.lru_cache(maxsize=64)
def spare_nodes(device: str, node_devices: int, most: int, inputs: ReliabilityInputs) -> Array:
    """[nodes] spare nodes by nodes of the run, from 0 to `most`: the given number, or as many as
    cost less than waiting for repairs."""
    if inputs.spare_nodes is not None:
        return np.full(most + 1, inputs.spare_nodes)
    per_node = inputs.broken_nodes(node_devices, device)
    nodes = np.arange(most + 1, dtype=np.float64)
    return cheapest_spares(per_node * nodes, nodes)


def layout_question_of(
    question: SizeQuestion,
    choice: DeviceChoice,
    stack: StackChoice,
    batch: int,
    width: int,
    nodes: int,
) -> LayoutQuestion:
    """The search problem over layouts on this many nodes."""
    return layout_question_on(question, _cluster(choice, width, nodes), stack, batch)


def layout_question_on(
    question: SizeQuestion, cluster: Cluster, stack: StackChoice, batch: int
) -> LayoutQuestion:
    """The search problem over layouts on a cluster."""
    return LayoutQuestion(
        name=question.name,
        model=question.model,
        cluster=cluster,
        stack=stack.name,
        global_batch=batch,
        seq_len=question.seq_len,
        precision=question.precision,
        space=stack.space,
        fit_risk=question.fit_risk,
        lora_rank=question.lora_rank,
        options=question.options,
    )


def question_of_run(
    question: SizeQuestion, run: SizedRun, *, batch: int = 0, nodes: int = 0
) -> LayoutQuestion:
    """The search problem of a sized run's layout, optionally with another batch or nodes."""
    stack = stack_named(question, run.stack)
    return layout_question_of(
        question, run.choice, stack, batch or run.batch, run.width, nodes or run.nodes
    )


def _cluster(choice: DeviceChoice, width: int, nodes: int) -> Cluster:
    count = f"{nodes}x" if nodes > 1 else ""
    found = get_cluster(f"{count}{width}x{choice.device}")
    if choice.cluster is not None:
        found = first_nodes(choice.cluster, nodes)
    if not choice.network or nodes == 1:
        return found
    outer = found.levels[-1]
    link = replace(get_link(choice.network), shared_by=outer.link.shared_by)
    levels = (*found.levels[:-1], replace(outer, link=link))
    return replace(found, levels=levels)


def first_nodes(cluster: Cluster, nodes: int) -> Cluster:
    """The first nodes of a cluster of equal nodes, with the levels that connect them."""
    (group,) = cluster.groups
    devices = nodes * group.devices_per_node
    inside = [level for level in cluster.levels if level.domain_size < devices]
    levels = cluster.levels[: len(inside) + 1] if devices > 1 else ()
    return replace(
        cluster,
        name=f"{nodes} nodes of {cluster.name}",
        groups=(replace(group, count=nodes),),
        levels=levels,
    )


def stack_named(question: SizeQuestion, name: str) -> StackChoice:
    """The framework of a run, from the question's list."""
    return next(stack for stack in question.stacks if stack.name == name)


def sized_run(
    question: SizeQuestion,
    choice: DeviceChoice,
    goal: RunGoal,
    stack: str,
    layout: PricedLayout,
    value: float,
    width: int,
) -> SizedRun:
    """The whole run of a layout."""
    per_step = layout.run.global_batch * question.seq_len
    tokens = 1.0 / value if question.minimise == TOKENS else float(question.tokens or 0.0)
    steps = tokens / per_step if question.minimise == TOKENS else goal.steps
    nodes = max(choice.fewest, nodes_of_run(layout.run))
    seconds, paid = np.asarray([layout.step_time_s]), np.asarray([nodes])
    # If tokens are unknown, the goal has one step.
    hours = goal.hours(paid, seconds) / goal.steps * steps
    usd = float(goal.dollars(paid, hours)[0])
    return SizedRun(
        choice=choice,
        stack=stack,
        batch=layout.run.global_batch,
        width=width,
        layout=layout,
        value=value,
        nodes=nodes,
        steps=steps,
        tokens=tokens,
        hours=float(hours[0]),
        usd=usd if math.isfinite(usd) else None,
        kwh=float(goal.kwh(paid, seconds, hours)[0]),
    )


_FUNCTION = "planner.sizing.sizing_search:solve_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTask:
    """One device type of a question; `end_s` is on the machine's monotonic clock."""

    question: SizeQuestion
    choice: int
    end_s: float


def solve_text(text: str) -> str:
    """The SizedDevice of a SizeTask, both as JSON; {"fault": reason} if that fails."""
    try:
        task = decode(SizeTask, json.loads(text), where="the task")
        solver = LayoutSolver(clock=time.monotonic, end_s=task.end_s)
        found = size_device(task.question, task.question.choices[task.choice], solver)
        return json.dumps(encode(found), allow_nan=False)
    except ShardwrightError as error:
        return json.dumps({"fault": str(error)})


def size_on_workers(tasks: list[SizeTask], workers: int) -> tuple[SizedDevice, ...]:
    """The results of all tasks in order, on worker processes of this machine.

    Raises InputError if a task or its process fails.
    """
    return tuple(answers_of(_FUNCTION, tasks, SizedDevice, workers))
