"""`shardwright plan`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from planner.answer_cache import AnswerCache
from planner.tolerances import DEFAULT_TIME_LIMIT_S
from profiles.document import to_json, write_document
from profiles.errors import InfeasibleError, InputError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.units import format_time, parse_quantity
from shardwright import api
from shardwright.answer_json import answer_json
from shardwright.answered import answered, how_it_came_about
from shardwright.commands.asked import import_from_here, sequence_of, space_of
from shardwright.commands.output import note, show
from shardwright.commands.plan_options import need_stack
from shardwright.places import answer_cache, local_profile
from shardwright.questions import price_for
from shardwright.report import terminal
from shardwright.solve_task import task_of, trace_task
from simulator.plan import PLAN_SCHEMA
from simulator.plan_file import PlanFile
from simulator.workload import Workload


def plan(
    model: str,
    on: str,
    global_batch: int,
    seq: int | None,
    *,
    axes: dict[str, str | None],
    options: dict[str, str | None],
    stack: str | None,
    pareto: str | None,
    fit_risk: str | None,
    calibration: Path | None,
    precision: str,
    optimizer: str,
    solver: str,
    output: Path | None,
    json_output: bool,
    explain: bool,
    time_limit: str | None,
    seed: int,
    local: Path | None,
    quiet: bool,
    price: str,
    cache: bool,
) -> None:
    """`shardwright plan`."""
    if stack is not None:
        # Here, since only this branch needs the described models.
        from shardwright.commands.plan_layout import LayoutFlags, plan_for_stack

        plan_for_stack(
            model,
            on,
            global_batch,
            seq,
            stack=stack,
            pareto=pareto,
            axes=axes,
            options=options,
            precision=precision,
            fit_risk=fit_risk,
            calibration=calibration,
            local=local or local_profile(),
            flags=LayoutFlags(
                explain=explain,
                time_limit=time_limit,
                price=price,
                cache=AnswerCache(folder=answer_cache()) if cache else None,
                output=output,
                json_output=json_output,
                quiet=quiet,
            ),
        )
        return
    if fit_risk is not None or calibration is not None:
        given = "--fit-risk" if fit_risk is not None else "--calibration"
        raise InputError(f"{given} needs --stack: it is of layouts of described models")
    need_stack(options, precision)
    if pareto is not None:
        raise InputError("--pareto needs --stack: fronts are of layouts of described models")
    for axis in ("cp", "ep"):
        if axes.get(axis) not in (None, "1"):
            raise InputError(
                f"--{axis} {axes[axis]}: our own executor has no such axis; name the framework "
                f"that will run the plan, for example --stack megatron-core"
            )
    import_from_here(model)
    space = space_of(axes)
    cluster = get_cluster(on, local=local or local_profile())
    length, assumed = sequence_of(model, seq)
    work = Workload(
        global_batch=global_batch, sequence_length=length, precision=precision, optimizer=optimizer
    )
    limit = DEFAULT_TIME_LIMIT_S
    if time_limit:
        limit = parse_quantity(time_limit, "time", where="--time-limit")
    if not cluster.homogeneous:
        # Here, since only this branch needs replicas that differ.
        from shardwright.commands.plan_mixed import plan_on_mixed

        task = task_of(resolve_model(model), cluster, work, space, solver=solver, seed=seed)
        plan_on_mixed(
            lambda: trace_task(task),
            cluster,
            work,
            space,
            price=price,
            solver=solver,
            seed=seed,
            time_limit_s=limit,
            assumed=assumed,
            output=output,
            json_output=json_output,
            explain=explain,
            provenance=provenance(cluster),
        )
        return
    still = quiet or json_output
    found = answered(
        task_of(resolve_model(model), cluster, work, space, solver=solver, seed=seed),
        lambda traced: search(traced, cluster, work, space, solver, limit, seed, quiet=still),
        price=price_for(cluster, price),
        cache=AnswerCache(folder=answer_cache()) if cache else None,
        time_limit_s=limit,
    )
    answer = found.answer
    if assumed:
        from dataclasses import replace

        answer = replace(answer, assumptions=(*assumed, *answer.assumptions))
    if output is not None:
        write_document(output, answer, schema=PLAN_SCHEMA, provenance=provenance(cluster))
    if json_output:
        sys.stdout.write(to_json(answer_json(answer)))
    else:
        show(terminal.plan_report(answer))
        if said := how_it_came_about(found, limit):
            show(said)
        if explain and answer.plan is not None:
            show(terminal.prediction_report(answer, explain=True))
        if output is not None and answer.plan is not None:
            note(f"written: {output}. Next: shardwright predict {output} --html report.html")
    if answer.plan is None:
        why = answer.infeasibility
        what = f"{why.term} of stage {why.stage}" if why else "the pins"
        raise InfeasibleError(f"no plan of {model} fits on {on}: {what}")


def search(
    traced: Any,
    cluster: Cluster,
    work: Workload,
    space: Any,
    solver: str,
    limit: float,
    seed: int,
    *,
    quiet: bool,
) -> PlanFile:
    """The search with bound, incumbent and gap on a terminal."""
    live = not quiet and sys.stderr.isatty()

    def progress(bound: float, incumbent: float, gap: float, seconds: float) -> None:
        if live:
            best = format_time(incumbent) if incumbent < float("inf") else "none yet"
            text = f"bound {format_time(bound)}  best {best}  gap {gap:.1%}  {seconds:.1f} s"
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    answer = api.plan(
        traced,
        cluster,
        work,
        space=space,
        solver=solver,
        seed=seed,
        time_limit_s=limit,
        progress=progress,
    )
    if live:
        sys.stderr.write("\r\x1b[K")
    return answer


def provenance(cluster: Cluster) -> dict[str, Any]:
    """How a file came about: version and command."""
    from shardwright import __version__

    return {
        "version": __version__,
        "command": " ".join(["shardwright", *sys.argv[1:]]),
        "cluster_devices": cluster.num_devices,
    }
