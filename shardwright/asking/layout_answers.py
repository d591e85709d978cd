"""Answers of the search over layouts to a question of `plan`: one framework's, several, a front."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from planner.axes import Axes
from planner.best_first import Progress
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import choice_of, priced_choice
from planner.layout.layout_question import LayoutQuestion, coefficients_of
from planner.layout.pareto import device_front, memory_front
from planner.many.answer_cache import AnswerCache
from planner.space import EXECUTOR
from planner.tolerances import DEFAULT_FIT_RISK
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.figures.transformer import Transformer
from shardwright.asking.answered import Answered, layout_answered
from shardwright.asking.asked_price import price_for
from shardwright.asking.executor_layouts import executor_space, way_of
from shardwright.asking.layout_task import layout_task, solve_layout_task
from shardwright.asking.named_model import described_of
from shardwright.asking.plan_options import ANY_STACK, first_precision
from shardwright.asking.plan_request import PlanRequest, default_precision
from simulator.training_run.fit.logged_source import Calibration
from simulator.training_run.framework.framework import load_framework, offered_frameworks

# What the best framework would bring is asked of so many, for so many seconds at most.
_BESIDE, _BESIDE_S = 3, 6.0

Watched = Callable[[], AbstractContextManager[Progress | None]]
"""Opens what watches one search, and gives its progress."""


def _unwatched() -> AbstractContextManager[Progress | None]:
    return contextlib.nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class OneAnswer:
    """A framework's answer.

    found   how it came about;  others  answers of other frameworks, fastest first, where the
            question names none
    """

    answer: LayoutFile
    found: Answered[LayoutFile]
    others: tuple[LayoutFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkAnswers:
    """The answers with a layout, fastest first, and why the other frameworks have none."""

    answers: tuple[LayoutFile, ...]
    refused: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutAsker:
    """Answers a question of `plan` that is one of layouts.

    calibration  learnt from own runs, None for the shipped coefficients
    explain      with what would help
    cache        None neither reads nor writes one
    """

    request: PlanRequest
    calibration: Calibration | None = None
    explain: bool = False
    cache: AnswerCache | None = None
    watched: Watched = field(default=_unwatched)

    def question(self) -> tuple[LayoutQuestion, tuple[str, ...]]:
        """The question of the first framework's layouts, and what was assumed for want of a flag.

        Raises InputError, UnknownNameError, ModelError.
        """
        request = self.request
        described = described_of(request.model, request.seq)
        sample = described.sample
        precision, told = first_precision(request.precision), tuple[str, ...]()
        if not request.precision:
            precision, told = default_precision(request.cluster)
        stack = stacks_of(request.stack)[0]
        question = LayoutQuestion(
            name=request.model,
            model=described.figures,
            cluster=request.cluster,
            stack=stack,
            global_batch=request.global_batch,
            seq_len=sample.sequence_length,
            precision=precision,
            space=self._space(described.figures, stack),
            options=request.options,
            fit_risk=DEFAULT_FIT_RISK if request.fit_risk is None else request.fit_risk,
            calibration=self.calibration,
            lora_rank=request.lora_rank,
        )
        return question, (*sample.assumptions, *told)

    def one(self) -> OneAnswer:
        """The answer of the framework that is asked for, or of our own executor; where that has
        none and the question names no framework, the fastest other's."""
        question, assumed = self.question()
        found = self._answered(question, self.request.time_limit_s)
        answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
        others = () if self.request.stack else self._others(question)
        if answer.chosen is None and others:
            answer = _instead_of(answer, others[0])
        return OneAnswer(answer=answer, found=found, others=others)

    def by_framework(self) -> FrameworkAnswers:
        """The answers of every framework that is asked for."""
        question, _ = self.question()
        names = stacks_of(self.request.stack)
        return self._by_framework(question, names, self.request.time_limit_s)

    def front(self) -> list[tuple[Cluster, LayoutChoice]]:
        """The trade-off of step time against what `pareto` names, the fastest first.

        Raises InfeasibleError where nothing fits.
        """
        question, _ = self.question()
        request, coefficients = self.request, coefficients_of(question)
        if request.pareto == "memory":
            layouts = memory_front(question, coefficients)
            found = [(question.cluster, layout) for layout in layouts]
        else:
            found = list(
                device_front(question, coefficients, rebuild=get_cluster, clock=time.monotonic)
            )
        if not found:
            raise InfeasibleError(
                f"no layout of {question.name} fits on {question.cluster.name} with "
                f"{question.stack}; without --pareto the answer says what would fit"
            )

        return [
            (
                part,
                priced_choice(
                    choice_of(layout, None, part, coefficients, self.calibration),
                    price_for(part, request.price, request.offers),
                    request.reliability,
                ),
            )
            for part, layout in found
        ]

    def _space(self, figures: Transformer, stack: str) -> Axes:
        space = self.request.axes
        return executor_space(space, figures) if stack == EXECUTOR else space

    def _answered(self, question: LayoutQuestion, limit_s: float) -> Answered[LayoutFile]:
        task = layout_task(question, explain=self.explain)

        def solve() -> LayoutFile:
            with self.watched() as progress:
                return solve_layout_task(
                    task, clock=time.monotonic, time_limit_s=limit_s, progress=progress
                )

        return layout_answered(
            task,
            solve,
            price=price_for(question.cluster, self.request.price, self.request.offers),
            cache=self.cache,
            inputs=self.request.reliability,
            region=self.request.region,
        )

    def _by_framework(
        self, question: LayoutQuestion, names: tuple[str, ...], limit_s: float
    ) -> FrameworkAnswers:
        answers: list[LayoutFile] = []
        refused: dict[str, str] = {}
        end = time.monotonic() + limit_s
        for number, name in enumerate(names):
            # What is left is shared by the frameworks that are left.
            share = max(0.0, end - time.monotonic()) / (len(names) - number)
            try:
                asked = replace(question, stack=name, space=self._space(question.model, name))
                answer = self._answered(asked, share).answer
            except InputError as error:
                refused[name] = str(error)
                continue
            if answer.chosen is None:
                why = answer.infeasibility
                refused[name] = "nothing fits" + (f"; nearest: {why.nearest}" if why else "")
            else:
                answers.append(answer)
        answers.sort(key=_step_s)
        return FrameworkAnswers(answers=tuple(answers), refused=refused)

    def _others(self, question: LayoutQuestion) -> tuple[LayoutFile, ...]:
        """The answers of other frameworks to a question that names none, fastest first: those with
        the most axes, as many as a few seconds allow."""
        rules = {
            name: load_framework(name).rules for name in offered_frameworks() if name != EXECUTOR
        }
        able = [name for name, each in rules.items() if each is not None]
        names = sorted(
            able, key=lambda name: (-len(rules[name].axes), -int(rules[name].date[:4]), name)
        )
        beside = replace(self, explain=False, watched=_unwatched)
        limit_s = min(_BESIDE_S, self.request.time_limit_s)
        return beside._by_framework(question, tuple(names[:_BESIDE]), limit_s).answers


def stacks_of(text: str) -> tuple[str, ...]:
    """The frameworks of a flag; every one for `any`. Raises InputError where it names none."""
    if not text:
        return (EXECUTOR,)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"--stack {text!r} names no framework; write megatron-core, or any")
    return offered_frameworks() if ANY_STACK in names else names


def _step_s(answer: LayoutFile) -> float:
    """Seconds of the chosen layout's step; infinite where there is none."""
    return answer.chosen.prediction.step_time_s.value if answer.chosen else float("inf")


def none_fits(request: PlanRequest, refused: dict[str, str]) -> str:
    """That none of several frameworks has a layout, and why each has none."""
    said = "; ".join(f"{name}: {why}" for name, why in refused.items())
    return f"no layout of {request.model} fits on {request.cluster.name}: {said}"


def _instead_of(answer: LayoutFile, other: LayoutFile) -> LayoutFile:
    """Another framework's answer where our own executor has none."""
    why = answer.infeasibility
    lacks = f"the nearest, {why.nearest}, lacks {why.term}" if why else "no layout is legal"
    told = (
        f"{other.stack} is planned for, since nothing fits with {answer.stack}: {lacks} (--stack)"
    )
    return replace(other, assumptions=(told, *other.assumptions))


def why_no_layouts(request: PlanRequest) -> str:
    """Why a question is searched block by block and not over layouts; "" where it is not."""
    if request.stack:
        return ""
    way = way_of(
        request.model,
        request.cluster,
        seq=request.seq,
        optimizer=request.optimizer,
        solver=request.solver,
    )
    return way.why_blocks
