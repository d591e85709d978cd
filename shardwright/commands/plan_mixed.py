"""`shardwright plan` on a cluster of mixed devices."""

from __future__ import annotations

from dataclasses import replace

from planner.heterogeneous.parts import only
from planner.heterogeneous.plan_mixed import plan_mixed
from planner.search.answer import SearchOptions
from profiles.errors import InfeasibleError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.sourced import Sourced
from shardwright.analysis.answer_json import answer_json
from shardwright.console.output import Heartbeat, note, print_json, show, tell_price
from shardwright.console.report_files import write_plan_reports
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import planned_mixed
from shardwright.reports.brief.plan_brief import plan_brief
from shardwright.requests.plan_request import AnswerOutput, PlanRequest, workload_of
from shardwright.requests.price_request import price_for
from shardwright.requests.provenance import provenance
from shardwright.requests.solve_task import task_of, trace_task
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan_file import write_plan_file


def plan_on_mixed(request: PlanRequest, output: AnswerOutput) -> None:
    """Print (and write) the answer; raises InfeasibleError where nothing fits."""
    space, cluster = request.axes.for_blocks(), request.cluster
    work, assumed = workload_of(request)
    options = request.options
    spec = resolve_model(options.model)
    words = f"tracing {options.model} and searching on mixed devices"
    with Heartbeat(words, quiet=output.quiet or output.json):
        answer = plan_mixed(
            trace_task(
                task_of(
                    spec,
                    cluster,
                    work,
                    space,
                    solver=options.solver,
                    seed=options.seed,
                )
            ),
            cluster,
            work,
            space=space,
            stack=load_stack(),
            usd_per_hour=prices_of(cluster, request),
            options=SearchOptions(
                solver=options.solver, seed=options.seed, time_limit_s=request.time_limit_s
            ),
        )
    answer = replace(answer, assumptions=(*assumed, *answer.assumptions))
    if output.file is not None:
        write_plan_file(output.file, answer, provenance=provenance(cluster))
    assert answer.comparison is not None  # of devices of several types
    planned = planned_mixed(answer, answer.comparison)
    write_plan_reports(output.reports, lambda: planned, request.price_notes)
    if output.json:
        print_json(answer_json(answer) | {"price_notes": list(request.price_notes)})
    else:
        show(brief_report(plan_brief(planned), short=not output.explain))
        tell_price(request.price_notes)
        unlike = answer.plan is not None and answer.plan.pipelines is not None
        if output.file is not None and answer.step_time_s is not None:
            after = f". Next: shardwright predict {output.file} --html report.html"
            if unlike:
                after = (
                    ". Our executor runs replicas that are alike only: this plan is for other "
                    "runtimes"
                )
            note(f"written: {output.file}{after}")
    if answer.step_time_s is None:
        raise InfeasibleError(f"no plan of {spec.name} fits on {cluster.name}")


def prices_of(cluster: Cluster, request: PlanRequest) -> dict[str, Sourced]:
    """US dollars per device-hour of each type that has a price of the kind that is asked for."""
    names = {group.device.name for group in cluster.groups}
    found = {
        name: price_for(only(cluster, name), request.options.price, request.offers)
        for name in sorted(names)
    }
    return {name: each for name, each in found.items() if each is not None}
