"""The Python twins of the commands: the same words, values in and out, nothing printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from planner.layout.layout_answer import LayoutFile
from profiles.document import read_document, write_text
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel
from shardwright.asking.asked_price import price_for as price_for
from shardwright.asking.opened_plan import OpenedPlan, open_plan
from shardwright.asking.places import local_profile, trace_cache
from shardwright.asking.python_plan import cluster as cluster
from shardwright.asking.python_plan import frameworks as frameworks
from shardwright.asking.python_plan import plan as plan
from shardwright.asking.python_plan import target_of as target_of
from shardwright.asking.python_plan import tp_degrees_for as tp_degrees_for
from shardwright.asking.python_plan import trace as trace
from shardwright.findings.comparison import Comparison, compare_run
from shardwright.findings.plan_diff import PlanDiff, diff_plans
from simulator.traced.predict import predict as _predict
from simulator.traced.stack import load_stack
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.values.op_sharding_file import OP_SHARDING_SCHEMA, OpShardingFile, ShardedRun
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

if TYPE_CHECKING:
    from shardwright.reports.capacity import Fit


def fit(
    model: str, *, sequence_length: int | None = None, micro_batch: int = 1, precision: str = "bf16"
) -> Fit:
    """What a model is made of, and on which devices its training fits."""
    from shardwright.reports.capacity import fit_model

    traced = trace(model, sequence_length=sequence_length, precision=precision, tp_degrees=(1,))
    return fit_model(traced, micro_batch=micro_batch, precision=precision)


def shard(
    model: str,
    on: Cluster | str,
    mesh: tuple[int, ...],
    *,
    sequence_length: int,
    block: str = "",
    micro_batch: int = 1,
    micro_batches: int = 1,
    precision: str = "bf16",
    memory_limit_bytes: float | None = None,
    time_limit_s: float = 20.0,
    assumptions: tuple[str, ...] = (),
) -> OpShardingFile:
    """One strategy per op of a model, or of one of its blocks, on a mesh of devices."""
    from planner.op_sharding.shard_model import ShardQuestion, shard_model
    from profiles.model.op_graphs.traced_op_graph import traced_op_graph

    spec = resolve_model(model)
    work = Workload(global_batch=1, sequence_length=sequence_length, precision=precision)
    dtype = work.compute_dtype
    question = ShardQuestion(
        graph=traced_op_graph(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype=dtype,
            cache=trace_cache(),
        ),
        model=spec.source,
        model_hash=spec.content_hash,
        block=block,
        cluster=on if isinstance(on, Cluster) else cluster(on),
        mesh_sizes=mesh,
        sequence_length=sequence_length,
        micro_batch=micro_batch,
        dtype=dtype,
        micro_batches=micro_batches,
        memory_limit_bytes=memory_limit_bytes,
        time_limit_s=time_limit_s,
        assumptions=assumptions,
    )
    return shard_model(question)


def predict(chosen: Plan, model: TracedModel, on: Cluster | str) -> Prediction:
    """What a plan would do."""
    if not isinstance(chosen, Plan):
        raise InputError(
            f"a Plan is wanted (answer.plan), got {type(chosen).__name__}; of a plan file: "
            "shardwright.load_plan(path)"
        )
    where = on if isinstance(on, Cluster) else cluster(on)
    return _predict(chosen, model, where, stack=load_stack(), price=price_for(where))


def load_plan(path: str | Path) -> PlanFile | LayoutFile:
    """The answer in the plan file at `path`: a plan, or a framework's layout.

    Raises DocumentError, naming the key, where its decision was changed after it was made.
    """
    return open_plan(path).answer


def profile(
    model: str | None = None,
    *,
    quick: bool = False,
    devices: int | None = None,
    threads: int | None = None,
    sequence_length: int | None = None,
    micro_batches: tuple[int, ...] = (1,),
    precision: str = "fp32",
    output: str | Path | None = None,
) -> Cluster:
    """This machine, measured into a file that `cluster("local")` reads; with a model, its blocks
    too."""
    from shardwright.asking.machine_profile import profile_machine

    return profile_machine(
        Path(output) if output is not None else local_profile(),
        quick=quick,
        devices=devices,
        threads=threads,
        model=model,
        seq=sequence_length,
        micro_batches=micro_batches,
        precision=precision,
    )


def run(
    path: str | Path,
    *,
    model: str = "",
    steps: int = 10,
    check: bool = False,
    output: str | Path = "run.json",
    device: str = "cpu",
    timeout_s: float = 300.0,
    any_machine: bool = False,
) -> Measurement:
    """Run the plan in a file on this machine; `model` names it where the plan's name does not."""
    from executor.launch import run_plan

    opened = open_plan(path)
    return run_plan(
        path,
        model=model,
        steps=steps,
        check=check,
        output=output,
        device=device,
        timeout_s=timeout_s,
        any_machine=any_machine,
        answer=opened.planned,
    )


def run_sharding(path: str | Path, *, steps: int = 3, output: str = "run.json") -> ShardedRun:
    """Run the placements in a file on this machine, beside one process."""
    from executor.sharding.launch_sharding import run_sharding as _run

    return _run(path, steps=steps, output=output)


def load_sharding(path: str | Path) -> OpShardingFile:
    """The file of `shard` at `path`."""
    return read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)


def load_run(path: str | Path) -> Measurement:
    """The measurement of `run` at `path`."""
    return read_document(path, Measurement, schema=MEASUREMENT_SCHEMA)


def compare(plan_path: str | Path, run_path: str | Path) -> Comparison:
    """A plan's prediction beside its run."""
    opened = open_plan(plan_path)
    return compare_run(opened.planned, load_run(run_path))


def diff(before: str | Path, after: str | Path) -> PlanDiff:
    """What is different in the second plan file, and why its step is another."""
    return diff_plans(open_plan(before).answer, open_plan(after).answer)


def report(
    plan: str | Path | PlanFile | LayoutFile,
    output: str | Path = "report.html",
    *,
    run: str | Path | Measurement | None = None,
) -> Path:
    """Writes the HTML report of a plan, with its run beside it where there is one; its path.

    A path that ends in .pdf, .png or .svg gets one page for print of a plan of our own executor.
    """
    from shardwright.findings.layout_explanation import explain_layout
    from shardwright.reports.html import report_html
    from shardwright.reports.layout_html import layout_html
    from shardwright.reports.print_figure import FORMATS, write_print_figure

    opened = plan if isinstance(plan, (PlanFile, LayoutFile)) else open_plan(plan)
    provenance = opened.provenance if isinstance(opened, OpenedPlan) else None
    answer = opened.answer if isinstance(opened, OpenedPlan) else opened
    where = str(plan) if isinstance(plan, (str, Path)) else "the answer"
    measured = load_run(run) if isinstance(run, (str, Path)) else run
    if isinstance(answer, PlanFile) and Path(output).suffix.lower() in FORMATS:
        write_print_figure(Path(output), answer, measured)
        return Path(output)
    if isinstance(answer, LayoutFile):
        page = layout_html(answer, explain_layout(where, answer), provenance=provenance)
    elif answer.plan is None:
        raise DocumentError(f"{where} holds no plan: its status is {answer.status!r}")
    else:
        page = report_html(answer, measured, provenance=provenance)
    write_text(output, page)
    return Path(output)
