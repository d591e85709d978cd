"""Solve one question, from text to text: the function that workers of a sweep run.

The text contains all inputs, since a worker on another machine does not have the sender's files.
Only `package.module:factory` stays a name; its code must be importable on the worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.axes import Axes
from planner.batch.answer_cache import answer_key, code_and_data_version, trace_content
from planner.batch.sweep import Job, Verdict
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_plan import plan_layout
from planner.layout.layout_question import LayoutQuestion
from profiles.document import content_hash, decode, to_line
from profiles.errors import InputError, ShardwrightError
from profiles.hardware.catalogue.catalog import device_names
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import HEAD_COUNTS, ModelSpec
from profiles.model.tracing.traced import TracedModel, trace_model
from shardwright.requests import python_plan
from shardwright.requests.local_paths import trace_cache
from simulator.training_run.framework.framework import load_framework
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTask:
    """A search problem that contains all its inputs.

    explain  include sensitivities
    alone    without runners-up and other additional searches
    version  of the sender's code and data (planner/batch/answer_cache.py)
    """

    question: LayoutQuestion
    explain: bool = False
    alone: bool = False
    version: str = field(default_factory=code_and_data_version)

    def solve(
        self,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        time_limit_s: float | None = None,
        progress: Progress | None = None,
    ) -> LayoutFile:
        """The answer without prices; used for single requests and for sweeps."""
        return plan_layout(
            self.question,
            device_names=device_names(),
            clock=clock,
            time_limit_s=time_limit_s,
            progress=progress,
            explain=self.explain,
            alone=self.alone,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with all its inputs.

    tp_degrees  for which the model is traced
    version     of the sender's code and data (planner/batch/answer_cache.py)
    sequence_parallel  tensor-parallel ranks share the tokens between their layers
    """

    spec: ModelSpec
    cluster: Cluster
    workload: Workload
    space: Axes
    solver: str
    seed: int
    tp_degrees: tuple[int, ...]
    version: str
    sequence_parallel: bool = False


def task_of(
    spec: ModelSpec,
    cluster: Cluster,
    workload: Workload,
    space: Axes,
    *,
    solver: str = "auto",
    seed: int = 0,
    sequence_parallel: bool = False,
) -> Task:
    """The task of finding the best plan; free tensor parallelism stays within a node.

    Raises InputError for a tp that does not divide the heads of the model's configuration.
    """
    _check_heads(spec, space.tp or ())
    free = space.tp is None
    degrees = python_plan.tp_degrees_for(cluster) if free else tuple(sorted({1, *(space.tp or ())}))
    return Task(
        spec=spec,
        cluster=cluster,
        workload=workload,
        space=space,
        solver=solver,
        seed=seed,
        tp_degrees=degrees,
        version=code_and_data_version(),
        sequence_parallel=sequence_parallel,
    )


def _check_heads(spec: ModelSpec, degrees: tuple[int, ...]) -> None:
    heads = {name: spec.config.get(name) for name in HEAD_COUNTS}
    counts = {name: n for name, n in heads.items() if isinstance(n, int) and n > 0}
    if not degrees or not counts:
        return
    values = counts.values()
    able = [tp for tp in range(1, min(values) + 1) if not any(n % tp for n in values)]
    if not set(degrees) & set(able):
        told = ", ".join(f"{name}={n}" for name, n in counts.items())
        raise InputError(
            f"--tp {','.join(map(str, degrees))} does not divide {told} of {spec.source}; use "
            f"{', '.join(map(str, able))}"
        )


def trace_task(task: Task) -> TracedModel:
    """The traced model of a task, from the cache of traces if possible.

    Raises InputError, with the block and the reason, if its ranks cannot share tokens as they
    should.
    """
    traced = trace_model(
        task.spec,
        sequence_length=task.workload.sequence_length,
        dtype=task.workload.compute_dtype,
        tp_degrees=task.tp_degrees,
        target=python_plan.target_of(task.cluster),
        cache=trace_cache(),
        sequence_parallel=task.sequence_parallel,
    )
    traced.need_shared_tokens()
    return traced


def key_of(task: Task | LayoutTask, traced: TracedModel | None = None) -> str:
    """The cache key of the task's answer; a factory's model is identified by its traces."""
    if isinstance(task, LayoutTask):
        framework = load_framework(task.question.stack)
        return content_hash({"layout": task, "framework": framework})
    model = task.spec.content_hash
    if task.spec.factory:
        model = trace_content(traced if traced is not None else trace_task(task))
    return answer_key(
        content_hash(
            {
                "model": model,
                "tp_degrees": task.tp_degrees,
                "name": task.spec.source,
                "sequence_parallel": task.sequence_parallel,
            }
        ),
        task.cluster,
        task.workload,
        task.space,
        solver=task.solver,
        seed=task.seed,
        version=task.version,
    )


def job_of(task: Task | LayoutTask) -> Job:
    """The task as text for a worker."""
    return Job(key=key_of(task), text=to_line(task), kin=_kin_of(task))


def _kin_of(task: Task | LayoutTask) -> str:
    """Key of tasks that share prices of layers (known_features.py): equal model and device type."""
    cluster = task.question.cluster if isinstance(task, LayoutTask) else task.cluster
    devices = " ".join(dict.fromkeys(group.device.name for group in cluster.groups))
    if isinstance(task, LayoutTask):
        asked = task.question
        return f"{asked.name} {devices} {asked.stack} {asked.seq_len} {asked.precision}"
    return f"{task.spec.source} {devices}"


def solve_text(text: str) -> str:
    """The result of a task, both as JSON. Never raises: an error becomes the result's reason."""
    try:
        data = json.loads(text)
        # A layout's task holds its question as one value.
        kind = LayoutTask if "question" in data else Task
        verdict = _solve(decode(kind, data, where="the task"))
    except Exception as error:  # a worker must outlive any question
        verdict = Verdict(reason=reason_of(error))
    return to_line(verdict)


def reason_of(error: Exception) -> str:
    """The reason why a question has no answer: a message for the user, or an internal error."""
    if isinstance(error, ShardwrightError):
        return str(error)
    return (
        f"a fault of Shardwright's, not yours: {type(error).__name__}: {error}; "
        "please report it with the question"
    )


def need_version(version: str) -> None:
    """Raises InputError if code, data or libraries differ from those of the sweep's process."""
    mine = code_and_data_version()
    if version != mine:
        raise InputError(
            f"this worker has other versions of Shardwright, its data or libraries ({mine}) than "
            f"the machine that started the sweep ({version}); install the same on every node"
        )


def _solve(task: Task | LayoutTask) -> Verdict:
    need_version(task.version)
    if isinstance(task, LayoutTask):
        return Verdict(layout=task.solve())
    answer = python_plan.plan(
        trace_task(task),
        task.cluster,
        task.workload,
        space=task.space,
        solver=task.solver,
        seed=task.seed,
        price=None,
    )
    assert isinstance(answer, PlanFile)  # without a stack
    return Verdict(answer=answer)
