"""`shardwright plan --stack`: the best layout of a described model for a named framework."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from planner.answer_cache import AnswerCache
from planner.layout.layout_answer import LAYOUT_SCHEMA
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import LayoutQuestion
from planner.layout.pareto import device_front, memory_front
from profiles.document import encode, to_json, write_document
from profiles.errors import InfeasibleError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from profiles.units import format_time, parse_quantity
from shardwright.answered import how_it_came_about, layout_answered
from shardwright.commands.asked import described_of, layout_space_of
from shardwright.commands.output import note, show
from shardwright.commands.plan_options import asked_options, first_precision
from shardwright.layout_task import layout_task, solve_layout_task
from shardwright.questions import price_for
from shardwright.report.layout_report import front_report, layout_report
from simulator.training_run.coefficients import shipped_coefficients


def plan_for_stack(
    model: str,
    on: str,
    global_batch: int,
    seq: int | None,
    *,
    stack: str,
    pareto: str | None,
    axes: dict[str, str | None],
    options: dict[str, str | None],
    precision: str,
    cache: AnswerCache | None,
    output: Path | None,
    json_output: bool,
    explain: bool,
    time_limit: str | None,
    local: Path | None,
    quiet: bool,
    price: str,
) -> None:
    """Print (and write) the answer; raises InfeasibleError where no layout fits."""
    described, length, assumed = described_of(model, seq)
    question = LayoutQuestion(
        name=model,
        model=described.figures,
        cluster=get_cluster(on, local=local),
        stack=stack,
        global_batch=global_batch,
        seq_len=length,
        precision=first_precision(precision),
        space=layout_space_of(axes),
        options=asked_options(options, precision),
    )
    if pareto is not None:
        show(_front(question, pareto, price))
        return
    limit = parse_quantity(time_limit, "time", where="--time-limit") if time_limit else None
    live = not (quiet or json_output) and sys.stderr.isatty()

    def progress(bound: float, incumbent: float, gap: float, seconds: float) -> None:
        if live:
            best = format_time(incumbent) if incumbent < float("inf") else "none yet"
            text = f"bound {format_time(bound)}  best {best}  gap {gap:.1%}  {seconds:.1f} s"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    task = layout_task(question, explain=explain)
    found = layout_answered(
        task,
        lambda: solve_layout_task(
            task, clock=time.monotonic, time_limit_s=limit, progress=progress
        ),
        price=price_for(question.cluster, price),
        cache=cache,
    )
    if live:
        sys.stderr.write("\r\x1b[K")
    answer = replace(found.answer, assumptions=(*assumed, *found.answer.assumptions))
    if output is not None:
        write_document(output, answer, schema=LAYOUT_SCHEMA, provenance=_provenance())
    if json_output:
        sys.stdout.write(to_json({"schema": LAYOUT_SCHEMA, **encode(answer)}))
    else:
        show(layout_report(answer))
        if said := how_it_came_about(found):
            show(said)
        if output is not None and answer.chosen is not None:
            note(f"written: {output}")
    if answer.chosen is None:
        raise InfeasibleError(f"no layout of {model} fits on {on} with {stack}")


def _front(question: LayoutQuestion, against: str, price: str) -> RenderableType:
    coefficients = shipped_coefficients()
    if against == "memory":
        layouts = memory_front(question, coefficients)
        choices = [(question.cluster, layout) for layout in layouts]
    else:
        choices = list(
            device_front(question, coefficients, rebuild=get_cluster, clock=time.monotonic)
        )
    if not choices:
        raise InfeasibleError(
            f"no layout of {question.name} fits on {question.cluster.name} with {question.stack}; "
            "without --pareto the answer says what would fit"
        )

    def priced(part: Cluster) -> Sourced | None:
        return price_for(part, price)

    return front_report(
        against, [(part, choice_of(layout, None, part, priced)) for part, layout in choices]
    )


def _provenance() -> dict[str, Any]:
    from shardwright import __version__

    return {"version": __version__, "command": " ".join(["shardwright", *sys.argv[1:]])}
