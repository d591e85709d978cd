"""`shardwright demo`: profiles this machine; plans, runs, compares and reports a small model."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from profiles.document import write_document, write_text
from profiles.errors import ToleranceError
from profiles.extras import need_package
from profiles.hardware.catalogue.catalog import CLUSTER_SCHEMA
from profiles.model.loaders import resolve_model
from shardwright.console.output import Bar, show
from shardwright.reports.terminal_console import console
from shardwright.requests.provenance import provenance
from simulator.values.workload import Workload

MODEL = "tiny-llama-demo"
SEQUENCE = 128
GLOBAL_BATCH = 8
MICRO_BATCH = 2
STEPS = 12


EXAMPLES = "Examples:\n\n  shardwright demo\n\n  shardwright demo --output /tmp/tour"


def demo(
    output: Annotated[Path, typer.Option("--output", help="folder to write")] = Path("demo-output"),
) -> None:
    """Run the demo, writing all files into a folder; raises the errors of its commands."""
    # Here, since --help needs none of them.
    from executor.launch import run_plan
    from planner.axes import Axes
    from shardwright import api
    from shardwright.analysis.breakdown import critical_rank
    from shardwright.analysis.comparison import compare_run, outdated_profile
    from shardwright.reports.brief.brief_terminal import brief_report, section_report
    from shardwright.reports.brief.comparison_section import comparison_section
    from shardwright.reports.brief.plan_answers import answer_brief
    from shardwright.reports.brief.plan_page import report_html
    from shardwright.reports.chrome_trace import chrome_trace
    from shardwright.reports.roofline import roofline
    from simulator.values.plan_file import write_plan_file

    need_package("torch", "`shardwright demo`", extra="hf")
    # Here, since they import torch.
    from executor.probe_pipeline import BlockProbe
    from profiles.hardware.probe.probe import measure_machine

    begin = time.monotonic()
    today = datetime.date.today().isoformat()
    local, plan_path, run_path = (output / n for n in ("local.json", "plan.json", "run.json"))
    spec = resolve_model(MODEL)

    _step(
        1,
        "measure this machine as two devices (what a Llama in fp32 needs; the command: all)",
        f"profile --quick --devices 2 -o {local}",
    )
    with Bar("measuring", quiet=False) as progress:
        cluster = measure_machine(
            2, 1, date=today, quick=True, of_transformers=True, progress=progress
        )

    _step(
        2, f"trace {MODEL}, a Llama of 8 layers", f"fit {MODEL} --seq {SEQUENCE} --precision fp32"
    )
    traced = api.trace(
        MODEL, sequence_length=SEQUENCE, precision="fp32", tp_degrees=(1,), target="cpu"
    )
    graph = traced.at(MICRO_BATCH)
    _print_line(
        f"{graph.full_parameter_count / 1e6:.1f} M parameters in {len(graph.chain)} blocks of "
        f"{len(graph.kinds)} kinds"
    )

    for attempt in (1, 2):
        _step(
            3,
            "measure its blocks in place",
            f"profile --model {MODEL} --seq {SEQUENCE} --micro-batch {MICRO_BATCH} -o {local}",
        )
        with Bar("measuring", quiet=False) as progress:
            cluster = BlockProbe(spec, traced, cluster, 1, progress).profiled(MICRO_BATCH)
        write_document(local, cluster, schema=CLUSTER_SCHEMA, provenance=provenance(cluster))

        _step(
            4,
            "plan for the two devices",
            f"plan {MODEL} --on local --local {local} --global-batch {GLOBAL_BATCH} "
            f"--seq {SEQUENCE} --pp 2 --schedule 1f1b --micro-batch {MICRO_BATCH} "
            f"--precision fp32 -o {plan_path}",
        )
        space = Axes(pp=(2,), tp=(1,), schedule=("1f1b",), micro_batch=(MICRO_BATCH,))
        work = Workload(global_batch=GLOBAL_BATCH, sequence_length=SEQUENCE, precision="fp32")
        answer = api.plan(traced, cluster, work, space=space)
        write_plan_file(plan_path, answer, provenance=provenance(cluster))
        show(brief_report(answer_brief(answer), short=True))

        _step(
            5,
            "run it on two processes, gradients checked",
            f"run {plan_path} --steps {STEPS} --check -o {run_path}",
        )
        with Bar("steps", quiet=False) as progress:
            measured = run_plan(
                plan_path, steps=STEPS, check=True, output=run_path, progress=progress
            )

        _step(
            6,
            "compare",
            f"compare {plan_path} {run_path} --local {local} --html {output / 'report.html'}",
        )
        comparison = compare_run(answer, measured)
        outdated = outdated_profile(comparison)
        inside = any(row.inside for row in comparison.rows if row.name == "step")
        if not outdated or inside or attempt == 2:
            break
        _print_line(
            f"{outdated}: the profile is measured again, then the plan is made and run again"
        )

    _step(7, "report", "")
    made = provenance(cluster)
    assert answer.plan is not None  # a step of this model fits into any machine
    assert answer.prediction is not None
    lines = roofline(answer.plan, graph, cluster, measured, rank=critical_rank(answer.prediction))
    page = report_html(answer, measured, roofline=lines, provenance=made)
    write_text(output / "report.html", page)
    trace = chrome_trace(answer.prediction, measured)
    write_text(output / "trace.json", json.dumps(trace))
    show(Text(""))
    show(section_report(comparison_section(comparison)))
    show(Text(""))
    show(Text(f"Report: {output / 'report.html'} (open it in a browser)"))
    show(Text(f"Trace:  {output / 'trace.json'} (open it at ui.perfetto.dev)"))
    show(Text(f"Done in {time.monotonic() - begin:.0f} s."))
    check = measured.gradient_check
    if check is not None and not check.passed:
        raise ToleranceError(
            f"the gradients differ from the unsplit model's: {check.worst_parameter} by "
            f"{check.worst_relative_error:.1e}"
        )


def _step(number: int, title: str, command: str) -> None:
    to_user = console(stderr=True)
    to_user.print(Text.assemble((f"{number}/7 ", "bold"), title))
    if command:
        to_user.print(Text(f"    shardwright {command}", style="dim"))


def _print_line(title: str) -> None:
    console(stderr=True).print(Text(f"    {title}"))
