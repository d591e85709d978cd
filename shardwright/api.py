"""The Python twins of the commands: the same words, values in and out, nothing printed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from planner.branch_and_bound import Progress
from planner.layout.layout_answer import LayoutFile
from planner.space import Space
from profiles.document import read_document, write_text
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.hardware.prices import price_of
from profiles.model.loaders import ModelSpec, resolve_model
from profiles.model.traced import TracedModel, trace_model
from profiles.sourced import Sourced
from shardwright.axes import Axes, axes_from
from shardwright.comparison import Comparison, compare_run
from shardwright.executor_layouts import (
    EXECUTOR,
    executor_space,
    runnable_answer,
    why_block_by_block,
)
from shardwright.named_model import described, import_from_here, sample_of, sample_of_factory
from shardwright.opened_plan import OpenedPlan, open_plan
from shardwright.places import local_profile, trace_cache
from shardwright.plan_diff import PlanDiff, diff_plans
from simulator.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.op_sharding_file import OP_SHARDING_SCHEMA, OpShardingFile, ShardedRun
from simulator.plan import Plan
from simulator.plan_file import PlanFile
from simulator.predict import predict as _predict
from simulator.prediction import Prediction
from simulator.stack import load_stack
from simulator.workload import Workload

if TYPE_CHECKING:
    from profiles.model.build_given import Inputs, Module
    from profiles.model.transformer import Transformer
    from shardwright.capacity import Fit

TP_DEGREES = (1, 2, 4, 8)
Pin = int | tuple[int, ...] | None
NamePin = str | tuple[str, ...] | None


class Pins(TypedDict, total=False):
    """One value fixes an axis, a tuple allows only its values, None leaves it free."""

    tp: Pin
    pp: Pin
    dp: Pin
    cp: Pin
    ep: Pin
    zero: Pin
    vpp: Pin
    micro_batch: Pin
    recompute: NamePin
    schedule: NamePin


def target_of(cluster: Cluster) -> str:
    """The kind of device that a model is traced for: `cpu` or `gpu`."""
    return "cpu" if cluster.groups[0].device.type == "cpu" else "gpu"


def tp_degrees_for(cluster: Cluster) -> tuple[int, ...]:
    """The tensor-parallel degrees worth tracing: powers of two within the innermost level."""
    inner = cluster.levels[0].domain_size if cluster.levels else 1
    return tuple(tp for tp in TP_DEGREES if tp <= max(1, inner))


def cluster(text: str) -> Cluster:
    """A cluster string, a cluster file, or `local`."""
    if not isinstance(text, (str, Path)):
        raise InputError(f"a cluster is named by text (4x8xh100-sxm), got {text!r}")
    return get_cluster(str(text), local=local_profile())


def frameworks() -> tuple[str, ...]:
    """The frameworks that `plan(..., stack=NAME)` plans for."""
    from simulator.training_run.framework import framework_names

    return framework_names()


def trace(
    model: str | Module,
    inputs: Inputs | None = None,
    *,
    targets: Any = None,
    loss_fn: Any = None,
    sequence_length: int | None = None,
    precision: str = "bf16",
    tp_degrees: tuple[int, ...] = TP_DEGREES,
    target: str = "gpu",
) -> TracedModel:
    """The traced model of a name (shipped, config.json, `package.module:factory`), or of a torch
    module with example inputs whose dimension 0 is the batch.

    targets, loss_fn  of a module: the loss is loss_fn(output, targets)
    sequence_length   None takes the model's own
    Raises InputError for what is no model, TraceError for what cannot be traced.
    """
    if isinstance(model, str):
        if inputs is not None or targets is not None or loss_fn is not None:
            raise InputError(f"{model}: inputs, targets and loss_fn go with a module, not a name")
        import_from_here(model)
        spec = resolve_model(model)
        length = sample_of(model, sequence_length).sequence_length
    else:
        spec = _spec_of(model, inputs, targets, loss_fn, sequence_length)
        length = sample_of_factory(spec, sequence_length).sequence_length
    dtype = Workload(global_batch=1, sequence_length=length, precision=precision).compute_dtype
    return trace_model(
        spec,
        sequence_length=length,
        dtype=dtype,
        tp_degrees=tp_degrees,
        target=target,
        cache=trace_cache(),
    )


def _spec_of(
    module: Any, inputs: Any, targets: Any, loss_fn: Any, sequence_length: int | None
) -> ModelSpec:
    from profiles.model.build_given import spec_of_module

    return spec_of_module(
        module, inputs, targets=targets, loss_fn=loss_fn, tokens_per_sample=sequence_length
    )


def fit(
    model: str, *, sequence_length: int | None = None, micro_batch: int = 1, precision: str = "bf16"
) -> Fit:
    """What a model is made of, and on which devices its training fits."""
    from shardwright.capacity import fit_model

    traced = trace(model, sequence_length=sequence_length, precision=precision, tp_degrees=(1,))
    return fit_model(traced, micro_batch=micro_batch, precision=precision)


def price_for(on: Cluster, kind: str = "on-demand") -> Sourced | None:
    """The price of a device-hour of a cluster of one device type, or None."""
    return price_of(on.groups[0].device.name, kind) if on.homogeneous else None


@overload
def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: None = None,
    space: Space | None = None,
    solver: str = "auto",
    seed: int = 0,
    time_limit_s: float | None = None,
    price: Sourced | str | None = "on-demand",
    progress: Progress | None = None,
    **pins: Unpack[Pins],
) -> PlanFile: ...


@overload
def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: str,
    solver: str = "auto",
    seed: int = 0,
    time_limit_s: float | None = None,
    price: Sourced | str | None = "on-demand",
    progress: Progress | None = None,
    **pins: Unpack[Pins],
) -> LayoutFile: ...


def plan(
    model: TracedModel | str,
    on: Cluster | str,
    work: Workload,
    *,
    stack: str | None = None,
    space: Space | None = None,
    solver: str = "auto",
    seed: int = 0,
    time_limit_s: float | None = None,
    price: Sourced | str | None = "on-demand",
    progress: Progress | None = None,
    **pins: Unpack[Pins],
) -> PlanFile | LayoutFile:
    """The best plan.

    model, on        values, or names that lead to them
    stack            a framework (`frameworks()`), whose layouts are then searched
    pins             axes that are not free (`Pins`): tp, pp, dp, cp, ep, zero, vpp, micro_batch,
                     recompute, schedule
    space            the axes as one value, in the place of the pins
    time_limit_s     of the search; None for none
    price            of a device-hour: a kind of the price table, a Sourced value, or None

    Raises InputError for what is none of these, and where no cell is legal. An answer that is
    infeasible is a value with its reasons.
    """
    axes = axes_from(**pins)
    if not isinstance(work, Workload):
        raise InputError(f"a Workload is wanted as the third argument, got {type(work).__name__}")
    where = on if isinstance(on, Cluster) else cluster(on)
    if stack is not None:
        return _plan_for_stack(model, where, work, axes, stack, time_limit_s, price, progress)
    if space is not None and axes.pins():
        raise InputError(f"space and {' '.join(axes.pins())} say the same; give one of them")
    if not isinstance(model, (str, TracedModel)):
        raise InputError(
            f"a traced model or a model's name is wanted, got {type(model).__name__}; "
            "shardwright.trace(module, inputs) traces a module"
        )
    figures = None
    if space is None and not why_block_by_block(where, optimizer=work.optimizer, solver=solver):
        figures = _figures(model, work)
    if figures is not None:
        answer = _plan_for_stack(model, where, work, axes, EXECUTOR, time_limit_s, price, progress)
        return runnable_answer(answer, where, model if isinstance(model, TracedModel) else None)
    if space is None:
        space = axes.space()
    if isinstance(model, str):
        degrees = tp_degrees_for(where) if space.tp is None else tuple(sorted({1, *space.tp}))
        model = trace(
            model,
            sequence_length=work.sequence_length if work.counted_in == "tokens" else None,
            precision=work.precision,
            tp_degrees=degrees,
            target=target_of(where),
        )
    from planner.search import search

    return search(
        model,
        where,
        work,
        space=space,
        solver=solver,
        seed=seed,
        stack=load_stack(),
        price=_price(price, where),
        time_limit_s=time_limit_s,
        progress=progress,
    )


def _price(price: Sourced | str | None, on: Cluster) -> Sourced | None:
    return price_for(on, price) if isinstance(price, str) else price


def _figures(model: TracedModel | str, work: Workload) -> Transformer | None:
    """The figures of a model; None where its blocks are not alike layers."""
    try:
        if isinstance(model, str):
            return described(model, work.sequence_length).figures
        if model.target != "gpu":
            return None
        from profiles.model.figures_of_trace import figures_of_trace

        return figures_of_trace(model.at(2)).figures
    except InputError:
        return None


def _plan_for_stack(
    model: TracedModel | str,
    on: Cluster,
    work: Workload,
    axes: Axes,
    stack: str,
    time_limit_s: float | None,
    price: Sourced | str | None,
    progress: Progress | None,
) -> LayoutFile:
    import time

    from planner.layout.layout_price import with_layout_price
    from planner.layout.layout_question import LayoutQuestion
    from shardwright.layout_task import layout_task, solve_layout_task

    if not isinstance(model, (str, TracedModel)):
        raise InputError(f"a model's name or a traced model is wanted, got {type(model).__name__}")
    name = model if isinstance(model, str) else model.source
    figures = _figures(model, work)
    if figures is None:
        # Asked by its name, the model says why it has none.
        figures = described(name, work.sequence_length).figures
    space = axes.layout_space()
    question = LayoutQuestion(
        name=name,
        model=figures,
        cluster=on,
        stack=stack,
        global_batch=work.global_batch,
        seq_len=work.sequence_length,
        precision=work.precision,
        space=executor_space(space, figures) if stack == EXECUTOR else space,
    )
    found = solve_layout_task(
        layout_task(question), clock=time.monotonic, time_limit_s=time_limit_s, progress=progress
    )
    return with_layout_price(found, _price(price, on))


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
    from profiles.model.traced_op_graph import traced_op_graph

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
    from shardwright.machine_profile import profile_machine

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
    from executor.launch_sharding import run_sharding as _run

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
    from shardwright.layout_explanation import explain_layout
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
