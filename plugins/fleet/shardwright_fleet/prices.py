"""Duration and cost of every phase of a fleet on every number of nodes, cached or searched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planner.axes import Axes
from planner.batch.answer_cache import code_and_data_version
from planner.layout.layout_question import LayoutQuestion
from planner.space import EXECUTOR
from profiles.document import content_hash, read_document, write_document
from profiles.errors import InfeasibleError, ShardwrightError
from shardwright.requests.plan_route import executor_space
from shardwright_fleet.phase_price import StepAnswer, StepTask, all_steps, phase_of
from shardwright_fleet.question import (
    FleetQuestion,
    FleetRun,
    Priced,
    PricedChoice,
    node_counts,
    undominated,
)
from simulator.goodput.reliability_inputs import DEFAULT, SPOT

STEP_SCHEMA = "shardwright/fleet-step@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrices:
    """Step times and costs of phases, computed or cached.

    folder   cache of answers, None for none
    workers  processes of this machine
    """

    folder: Path | None
    workers: int = 1

    def of(self, question: FleetQuestion) -> Priced:
        """[run][phase][choice] of all runs; raises InfeasibleError if a phase fits nowhere."""
        asked = [
            (number, index, cluster, nodes)
            for number, run in enumerate(question.runs)
            for index in range(len(run.phases))
            for cluster in run.clusters
            for nodes in node_counts(question.clusters[cluster], run)
        ]
        tasks = [step_task(question, *each) for each in asked]
        answers = self._answers(tasks)
        priced: list[tuple[tuple[PricedChoice, ...], ...]] = []
        for number, run in enumerate(question.runs):
            phases = []
            for index in range(len(run.phases)):
                found = tuple(
                    chosen
                    for place, answer in zip(asked, answers, strict=True)
                    if place[:2] == (number, index)
                    and (chosen := _choice(question, *place, answer)) is not None
                )
                if not found:
                    raise InfeasibleError(_fits_nowhere(question, run, index))
                phases.append(undominated(found))
            priced.append(tuple(phases))
        return tuple(priced)

    def one(self, question: FleetQuestion, run: int, phase: int, cluster: int, nodes: int
            ) -> PricedChoice | None:  # fmt: skip
        """An additional choice for a phase; None if nothing fits."""
        (answer,) = self._answers([step_task(question, run, phase, cluster, nodes)])
        return _choice(question, run, phase, cluster, nodes, answer)

    def _answers(self, tasks: list[StepTask]) -> list[StepAnswer]:
        keys = [content_hash(task) for task in tasks]
        known: dict[str, StepAnswer | None] = {key: self._kept(key) for key in keys}
        missing = {key: task for key, task in zip(keys, tasks, strict=True) if known[key] is None}
        # A process takes seconds to begin.
        workers = self.workers if len(missing) > 12 else 1
        for key, answer in zip(missing, all_steps(list(missing.values()), workers), strict=True):
            known[key] = answer
            if self.folder is not None:
                write_document(self.folder / f"{key}.json", answer, schema=STEP_SCHEMA)
        return [found for key in keys if (found := known[key]) is not None]

    def _kept(self, key: str) -> StepAnswer | None:
        path = None if self.folder is None else self.folder / f"{key}.json"
        if path is None or not path.is_file():
            return None
        try:
            return read_document(path, StepAnswer, schema=STEP_SCHEMA)
        except ShardwrightError:
            return None  # computed again, and overwritten


def _choice(
    question: FleetQuestion, run: int, phase: int, cluster: int, nodes: int, answer: StepAnswer
) -> PricedChoice | None:
    """The whole phase with the step of `answer`; None if nothing fits."""
    if answer.price is None:
        return None
    place, job = question.clusters[cluster], question.runs[run]
    price = phase_of(
        answer.price,
        job.phases[phase].steps,
        place.parts[nodes],
        job.model.parameters,
        reliability=SPOT if place.spot else DEFAULT,
        sure=question.sure,
    )
    return PricedChoice(cluster=cluster, nodes=nodes, price=price)


def step_task(question: FleetQuestion, run: int, phase: int, cluster: int, nodes: int) -> StepTask:
    """The task of finding a phase's step on `nodes` nodes of a cluster."""
    job, place = question.runs[run], question.clusters[cluster]
    part = job.phases[phase]
    return StepTask(
        questions=tuple(
            LayoutQuestion(
                name=job.model_name,
                model=job.model,
                cluster=place.parts[nodes],
                stack=stack,
                global_batch=part.global_batch,
                seq_len=part.seq_len,
                precision=job.precision,
                space=(executor_space(Axes(), job.model) if stack == EXECUTOR else Axes()),
                lora_rank=job.lora_rank,
                options=job.options,
            )
            for stack in job.stacks
        ),
        version=code_and_data_version(),
    )


def _fits_nowhere(question: FleetQuestion, run: FleetRun, phase: int) -> str:
    tried = [
        f"{max(node_counts(question.clusters[n], run), default=0)} nodes of "
        f"{question.clusters[n].name} ({question.clusters[n].on})"
        for n in run.clusters
    ]
    part = run.phases[phase]
    named = f", {part.name}" if part.name else ""
    adapters = f"--lora {run.lora_rank} " if run.lora_rank else ""
    more = adapters + "".join(f"{words} " for words in run.options.words)
    return (
        f"job {run.name}{named}: {run.model_name} at {part.seq_len} tokens per sequence has no "
        f"layout that fits with {', '.join(run.stacks)} on {', '.join(tried)}; `shardwright plan "
        f"{run.model_name} --on {question.clusters[run.clusters[0]].on} --stack "
        f"{run.stacks[0]} {more}--global-batch {part.global_batch}` says what would fit"
    )
