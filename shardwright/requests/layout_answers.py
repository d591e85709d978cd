"""Answers of `plan` by the search over layouts: of one framework, of several, or a Pareto front."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.batch.answer_cache import AnswerCache
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import choice_of, priced_choice, with_layout_price
from planner.layout.layout_question import LayoutQuestion
from planner.layout.pareto import device_front, memory_front
from planner.space import EXECUTOR
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import resolve_model
from shardwright.requests.cached_answer import CachedAnswer
from shardwright.requests.compared_frameworks import compared_frameworks, preference
from shardwright.requests.named_model import described_of
from shardwright.requests.plan_choices import (
    ANY_STACK,
    first_precision,
    framework_flag,
    named_stacks,
    need_framework,
    step_optimizer,
)
from shardwright.requests.plan_request import PlanRequest, default_precision
from shardwright.requests.plan_route import executor_space, route_of
from shardwright.requests.price_request import price_for
from shardwright.requests.solve_task import LayoutTask, key_of
from shardwright.requests.usual_batch import notes_on_batch
from simulator.training_run.fit.recalibration import Calibration
from simulator.training_run.framework.framework import load_framework, offered_frameworks

# Seconds of the search for each framework after the first, if the request names none.
_OTHER_S = 6.0

Watched = Callable[[], AbstractContextManager[Progress | None]]
"""Opens the display of a search; returns its progress function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequester:
    """Answers requests of `plan` by the search over layouts.

    calibration  fitted on own runs, None for the shipped coefficients
    explain      include sensitivities
    cache        None neither reads nor writes one
    """

    request: PlanRequest
    calibration: Calibration | None = None
    explain: bool = False
    cache: AnswerCache | None = None
    watched: Watched = contextlib.nullcontext

    def question(self, stack: str = "") -> tuple[LayoutQuestion, tuple[str, ...]]:
        """The search problem for a framework, and the assumptions for missing flags.

        stack  the framework; "" for the first of those to compare

        Raises InputError, UnknownNameError, ModelError.
        """
        request, options = self.request, self.request.options
        stack = stack or self.compared[0]
        described = described_of(options.model, options.seq, runs_here=stack == EXECUTOR)
        sample = described.sample
        precision, told = first_precision(options.precision), tuple[str, ...]()
        if not options.precision:
            offered = load_framework(stack).rules.precisions
            precision, told = default_precision(request.cluster, options.model, offered)
        question = LayoutQuestion(
            name=options.model,
            model=described.figures,
            cluster=request.cluster,
            stack=stack,
            global_batch=request.global_batch,
            seq_len=sample.sequence_length,
            precision=precision,
            space=self._space(described.figures, stack, sample.sequence_length),
            options=request.choices,
            fit_risk=DEFAULT_FIT_RISK if options.fit_risk is None else options.fit_risk,
            calibration=self.calibration,
            lora_rank=options.lora,
        )
        many = notes_on_batch(request.global_batch, sample.sequence_length)
        return question, (*many, *request.assumed, *sample.assumptions, *told)

    @property
    def compared(self) -> tuple[str, ...]:
        """The requested framework; without one, the frameworks to compare, our executor last.

        A Pareto front and a user's module, which only our executor runs, are not compared. Raises
        InputError for options that our executor does not have.
        """
        options = self.request.options
        if options.stack:
            return stacks_of(options.stack)[:1]
        if options.pareto or resolve_model(options.model).factory:
            need_framework(options)
            return (EXECUTOR,)
        device = self.request.cluster.groups[0].device.name
        return compared_frameworks(device, ours=not framework_flag(options))

    def one(self) -> CachedAnswer[LayoutFile]:
        """The answer of the requested framework; without one, the fastest of the compared
        frameworks with enough evidence. If none has an answer, our executor's."""
        names = self.compared
        if len(names) == 1:
            question, assumed = self.question()
            found = self._answered(question, self.request.time_limit_s)
            return replace(found, answer=_assuming(found.answer, assumed))
        refused: list[InputError] = []
        every = [self._one_of(name, refused) for name in names]
        took = [name for name, each in zip(names, every, strict=True) if each]
        fitting = sorted(
            (each for each in every if each and each.answer.chosen),
            key=lambda each: _step_s(each.answer),
        )
        device = self.request.cluster.groups[0].device.name
        groups = preference([each.answer.stack for each in fitting], device)
        preferred = [each for group in groups for each in fitting if each.answer.stack in group]
        best = next((each for each in (*preferred, *every[::-1]) if each), None)
        if best is None:
            raise refused[0]
        listed = ", ".join(name for name in took if name != best.answer.stack)
        compared = f"compared with {listed or 'no other framework'} (--stack names one, or any)"
        reasons = [f"not compared: {error}" for error in refused]
        _, assumed = self.question(best.answer.stack)
        answer = _assuming(best.answer, (*assumed, compared, *reasons))
        rest = tuple(each.answer for each in fitting if each is not best)
        return replace(best, answer=answer, others=rest)

    def _one_of(self, name: str, refused: list[InputError]) -> CachedAnswer[LayoutFile] | None:
        """The answer of one of several frameworks; None if it does not accept the request, with the
        reason added to `refused`."""
        first = name == self.compared[0]
        limit_s = self.request.time_limit_s if first else min(_OTHER_S, self.request.time_limit_s)
        try:
            return self._answered(self.question(name)[0], limit_s)
        except InputError as error:
            refused.append(error)
            return None

    def by_framework(self) -> tuple[list[LayoutFile], dict[str, str]]:
        """The answers of all requested frameworks with a layout, fastest first, and why the others
        have none."""
        answers: list[LayoutFile] = []
        refused: dict[str, str] = {}
        names = stacks_of(self.request.options.stack)
        end = time.monotonic() + self.request.time_limit_s
        for number, name in enumerate(names):
            # The remaining frameworks share the remaining time.
            share = max(0.0, end - time.monotonic()) / (len(names) - number)
            try:
                answer = self._answered(self.question(name)[0], share).answer
            except InputError as error:
                refused[name] = str(error)
                continue
            if answer.chosen is None:
                why = answer.infeasibility
                refused[name] = "nothing fits" + (f"; nearest: {why.nearest}" if why else "")
            else:
                answers.append(answer)
        answers.sort(key=_step_s)
        return answers, refused

    def front(self) -> list[tuple[Cluster, LayoutChoice]]:
        """The trade-off of step time against memory or dollars (`pareto`), fastest first.

        Raises InfeasibleError if nothing fits.
        """
        question, _ = self.question()
        request = self.request
        if request.options.pareto == "memory":
            layouts = memory_front(question)
            found = [(question.cluster, layout) for layout in layouts]
        else:
            found = list(device_front(question, clock=time.monotonic))
        if not found:
            raise InfeasibleError(
                f"no layout of {question.name} fits on {question.cluster.name} with "
                f"{question.stack}; leave out --pareto to see what would fit"
            )

        return [
            (
                part,
                priced_choice(
                    choice_of(layout, None, part, self.calibration),
                    price_for(part, request.options.price, request.offers),
                    request.reliability,
                ),
            )
            for part, layout in found
        ]

    def _space(self, figures: Transformer, stack: str, tokens: int) -> Axes:
        space, options = self.request.axes, self.request.options
        if stack != EXECUTOR:
            return space
        shared = tokens if options.sequence_parallel else 0
        return executor_space(space, figures, options.model, tokens=shared)

    def _answered(self, question: LayoutQuestion, limit_s: float) -> CachedAnswer[LayoutFile]:
        """The answer with its dollars, from the cache or searched; stored if the search was
        complete."""
        request, cache = self.request, self.cache
        price = price_for(question.cluster, request.options.price, request.offers)
        task = LayoutTask(question=question, explain=self.explain)
        key = key_of(task)
        known = cache.find(key) if cache is not None else None
        if isinstance(known, LayoutFile):
            found = known
        else:
            with self.watched() as progress:
                found = task.solve(clock=time.monotonic, time_limit_s=limit_s, progress=progress)
            if cache is not None and found.status in ("optimal", "infeasible"):
                cache.keep(key, with_layout_price(found, None))
        answer = with_layout_price(found, price, request.reliability, request.region)
        return CachedAnswer(answer=answer, cached=found is known)


def _assuming(answer: LayoutFile, assumed: Sequence[str]) -> LayoutFile:
    return replace(answer, assumptions=(*assumed, *answer.assumptions))


def stacks_of(text: str) -> tuple[str, ...]:
    """The frameworks of a flag; all for `any`. Raises InputError for an empty list."""
    if not text:
        return (EXECUTOR,)
    names = named_stacks(text)
    return offered_frameworks() if ANY_STACK in names else names


def _step_s(answer: LayoutFile) -> float:
    """Seconds of the chosen layout's step; infinite if there is none."""
    return answer.chosen.prediction.step_time_s.value if answer.chosen else float("inf")


def none_fits(request: PlanRequest, refused: dict[str, str]) -> str:
    """Message: none of several frameworks has a layout, with the reason for each."""
    said = "; ".join(f"{name}: {why}" for name, why in refused.items())
    return f"no layout of {request.options.model} fits on {request.cluster.name}: {said}"


def why_no_layouts(request: PlanRequest) -> str:
    """Reason why a request is searched block by block; "" if it is searched over layouts, as for
    every framework but our own executor."""
    if request.options.stack not in ("", EXECUTOR):
        return ""
    route = route_of(
        request.options.model,
        request.cluster,
        seq=request.options.seq,
        optimizer=step_optimizer(request.options),
        solver=request.options.solver,
    )
    return "" if route.others and not request.options.stack else route.why_blocks
