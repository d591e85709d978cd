"""`shardwright plan --stack`: the best layout of a described model, for one framework or more."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.answer_cache import AnswerCache
from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import LayoutQuestion
from planner.layout.pareto import device_front, memory_front
from planner.tolerances import DEFAULT_FIT_RISK, DEFAULT_TIME_LIMIT_S
from profiles.document import to_json, write_document, write_text
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from profiles.units import format_time, parse_quantity
from shardwright.answer_json import answer_json, frameworks_json, front_json
from shardwright.answered import LayoutAnswered, how_it_came_about, layout_answered
from shardwright.commands.asked import figures_of, layout_space_of, sequence_of
from shardwright.commands.output import note, show
from shardwright.commands.plan_options import asked_options, first_precision
from shardwright.layout_task import layout_task, solve_layout_task
from shardwright.questions import price_for
from shardwright.report.layout_report import (
    frameworks_report,
    front_report,
    largest_difference,
    layout_report,
)
from simulator.training_run.coefficients import shipped_coefficients
from simulator.training_run.framework import framework_names
from simulator.training_run.recalibrate import Calibration, calibrated

DEFAULT_STACK = "torch"
"""The framework of a question that names none: our own executor."""
ANY_STACK = "any"
# Seconds that finding out what the best framework would bring may take beside an answer.
_BESIDE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutFlags:
    """How a question is answered and where the answer goes.

    time_limit, fit_risk, price   as typed; None where not
    """

    explain: bool = False
    time_limit: str | None = None
    price: str = "on-demand"
    cache: AnswerCache | None = None
    output: Path | None = None
    json_output: bool = False
    quiet: bool = False

    @property
    def limit_s(self) -> float:
        """Seconds that a search may take."""
        if self.time_limit is None:
            return DEFAULT_TIME_LIMIT_S
        return parse_quantity(self.time_limit, "time", where="--time-limit")


def plan_for_stack(
    model: str,
    on: str,
    global_batch: int,
    seq: int | None,
    *,
    stack: str | None,
    pareto: str | None,
    axes: dict[str, str | None],
    options: dict[str, str | None],
    precision: str,
    fit_risk: str | None,
    calibration: Path | None,
    local: Path | None,
    flags: LayoutFlags,
) -> None:
    """Print (and write) the answer; raises InfeasibleError where no layout fits.

    stack  a framework, several with commas, `any`, or None for DEFAULT_STACK
    """
    length, assumed = sequence_of(model, seq)
    names = stacks_of(stack)
    question = LayoutQuestion(
        name=model,
        model=figures_of(model),
        cluster=get_cluster(on, local=local),
        stack=names[0],
        global_batch=global_batch,
        seq_len=length,
        precision=first_precision(precision),
        space=layout_space_of(axes),
        options=asked_options(options, precision),
        fit_risk=DEFAULT_FIT_RISK if fit_risk is None else risk_of(fit_risk),
        calibration=None if calibration is None else _calibration(calibration),
    )
    if pareto is not None:
        _front(question, pareto, flags)
        return
    if len(names) > 1:
        _several(question, names, flags)
        return
    found = _answered(question, flags, flags.limit_s)
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    _write(flags.output, answer)
    if flags.json_output:
        sys.stdout.write(to_json(answer_json(answer)))
    else:
        show(layout_report(answer))
        if said := how_it_came_about(found, flags.limit_s):
            show(said)
        if stack is None and (said := _best_of_others(question, answer, flags)):
            show(said)
        if flags.output is not None and answer.chosen is not None:
            note(f"written: {flags.output}")
    if answer.chosen is None:
        raise InfeasibleError(f"no layout of {model} fits on {on} with {names[0]}")


def stacks_of(text: str | None) -> tuple[str, ...]:
    """The frameworks of a flag; every one for `any`. Raises InputError where it names none."""
    if text is None:
        return (DEFAULT_STACK,)
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InputError(f"--stack {text!r} names no framework; write megatron-core, or any")
    return framework_names() if ANY_STACK in names else names


def risk_of(text: str) -> float:
    """A probability as typed: `10%`, `0.1`. Raises InputError."""
    try:
        return float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        raise InputError(f"--fit-risk {text!r} is no probability; write 10%, or 0.1") from None


def _calibration(path: Path) -> Calibration:
    # Here, since only this flag needs what reads tables of runs.
    from shardwright.commands.calibrate import loaded_calibration

    return loaded_calibration(path)


def _answered(question: LayoutQuestion, flags: LayoutFlags, limit_s: float) -> LayoutAnswered:
    live = not (flags.quiet or flags.json_output) and sys.stderr.isatty()

    def progress(bound: float, incumbent: float, gap: float, seconds: float) -> None:
        if live:
            best = format_time(incumbent) if incumbent < float("inf") else "none yet"
            text = f"bound {format_time(bound)}  best {best}  gap {gap:.1%}  {seconds:.1f} s"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    task = layout_task(question, explain=flags.explain)
    found = layout_answered(
        task,
        lambda: solve_layout_task(
            task, clock=time.monotonic, time_limit_s=limit_s, progress=progress
        ),
        price=price_for(question.cluster, flags.price),
        cache=flags.cache,
    )
    if live:
        sys.stderr.write("\r\x1b[K")
    return found


def _by_framework(
    question: LayoutQuestion, names: tuple[str, ...], flags: LayoutFlags, limit_s: float
) -> tuple[list[LayoutFile], dict[str, str]]:
    """The answers with a layout, fastest first, and why the other frameworks have none."""
    answers: list[LayoutFile] = []
    refused: dict[str, str] = {}
    end = time.monotonic() + limit_s
    for number, name in enumerate(names):
        # What is left is shared by the frameworks that are left.
        share = max(0.0, end - time.monotonic()) / (len(names) - number)
        try:
            answer = _answered(replace(question, stack=name), flags, share).answer
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


def _step_s(answer: LayoutFile) -> float:
    return answer.chosen.prediction.step_time_s.value if answer.chosen else float("inf")


def _several(question: LayoutQuestion, names: tuple[str, ...], flags: LayoutFlags) -> None:
    """One table of frameworks; the file is the fastest one's."""
    answers, refused = _by_framework(question, names, flags, flags.limit_s)
    if flags.json_output:
        best = answers[0].chosen if answers else None
        why = {
            each.stack: largest_difference(each.chosen, best)
            for each in answers[1:]
            if each.chosen is not None and best is not None
        }
        sys.stdout.write(to_json(frameworks_json(answers, refused, why)))
    elif answers:
        show(frameworks_report(answers, refused))
    if not answers:
        said = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name}: {said}"
        )
    _write(flags.output, answers[0])
    if flags.output is not None and not flags.json_output:
        note(f"written: {flags.output} ({answers[0].stack})")


def _best_of_others(question: LayoutQuestion, answer: LayoutFile, flags: LayoutFlags) -> str:
    """One line of what the best framework would bring; empty where it is this one."""
    names = tuple(name for name in framework_names() if name != answer.stack)
    beside = replace(flags, explain=False, quiet=True)
    answers, _ = _by_framework(question, names, beside, min(_BESIDE_S, flags.limit_s))
    if not answers or answers[0].chosen is None or answer.chosen is None:
        return ""
    best = answers[0]
    if _step_s(best) >= _step_s(answer):
        return ""
    return (
        f"Best:   {best.stack} would take {format_time(_step_s(best))}: {answer.stack} is "
        f"{largest_difference(answer.chosen, answers[0].chosen)}; --stack any compares all"
    )


def _front(question: LayoutQuestion, against: str, flags: LayoutFlags) -> None:
    coefficients = calibrated(shipped_coefficients(), question.calibration)
    if against == "memory":
        layouts = memory_front(question, coefficients)
        found = [(question.cluster, layout) for layout in layouts]
    else:
        found = list(
            device_front(question, coefficients, rebuild=get_cluster, clock=time.monotonic)
        )
    if not found:
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name} with {question.stack}; "
            "without --pareto the answer says what would fit"
        )

    def priced(part: Cluster) -> Sourced | None:
        return price_for(part, flags.price)

    choices = [
        (part, choice_of(layout, None, part, priced, coefficients, question.calibration))
        for part, layout in found
    ]
    text = to_json(front_json(against, [(part.name, choice) for part, choice in choices]))
    if flags.output is not None:
        write_text(flags.output, text)
    if flags.json_output:
        sys.stdout.write(text)
        return
    show(front_report(against, choices))
    if flags.output is not None:
        note(f"written: {flags.output}")


def _write(output: Path | None, answer: LayoutFile) -> None:
    if output is not None:
        write_document(output, answer, schema=LAYOUT_SCHEMA, provenance=_provenance())


def _provenance() -> dict[str, Any]:
    from shardwright import __version__

    return {"version": __version__, "command": " ".join(["shardwright", *sys.argv[1:]])}
