"""`answer_text`: one question of a study, from text to text; the function that workers of a sweep
run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from planner.batch.answer_cache import code_and_data_version
from planner.batch.sweep import Job
from planner.layout.layout_question import LayoutSolver
from planner.sizing.run_outlook import SizeAnswer
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_answer import answer_of, search_here
from profiles.document import content_hash, decode, to_line
from shardwright.requests.sizing.size_request import SizeRequest
from shardwright.requests.solve_task import need_version, reason_of, solve_text

WORKER = "shardwright.sweeps.worker:answer_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizingTask:
    """A question of `size` with all its inputs.

    assumed, left_out   as of a SizeRequest
    version             of the sender's code and data (planner/batch/answer_cache.py)
    """

    sizing: SizeQuestion
    assumed: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeVerdict:
    """The parsed text of a worker for a SizingTask: its answer, or the reason for having none."""

    size: SizeAnswer | None = None
    reason: str = ""


def sizing_job(request: SizeRequest) -> Job:
    """The question as text for a worker."""
    task = SizingTask(
        sizing=request.question,
        assumed=request.assumed,
        left_out=request.left_out,
        version=code_and_data_version(),
    )
    question = request.question
    devices = " ".join(choice.device for choice in question.choices)
    stacks = " ".join(stack.name for stack in question.stacks)
    kin = f"{question.name} {devices} {stacks} {question.seq_len}"
    return Job(key=content_hash(task), text=to_line(task), kin=kin)


def answer_text(text: str) -> str:
    """The answer of a task as JSON; its `reason` is "", or why there is no answer. Never raises.

    A SizeVerdict for a SizingTask, otherwise a Verdict (planner/batch/sweep.py).
    """
    try:
        data = json.loads(text)
        if "sizing" not in data:
            return solve_text(text)
        return to_line(SizeVerdict(size=_sized(decode(SizingTask, data, where="the task"))))
    except Exception as error:  # a worker must outlive any question
        verdict = SizeVerdict(reason=reason_of(error))
    return to_line(verdict)


def _sized(task: SizingTask) -> SizeAnswer:
    need_version(task.version)
    # Time does not move for the solver: no limit of time may end a search of a sweep.
    solver = LayoutSolver(clock=lambda: 0.0)
    search = search_here(solver)
    answer = answer_of(task.sizing, search(task.sizing), search=search, solver=solver)
    return replace(
        answer,
        refused=(*answer.refused, *task.left_out),
        assumptions=(*task.assumed, *answer.assumptions),
    )
