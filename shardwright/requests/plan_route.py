"""`route_of`: whether a plan for our own executor is searched over layouts or block by block.

Also the executor's limits on layouts (`executor_space`, `unsupported_options`), and the conversion
of a layout to a plan that runs (`runnable_answer`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.layout.layout_answer import LayoutFile
from planner.layout.plan_of_layout import first_layer, plan_of_layouts
from planner.run_option import RequestedOptions
from planner.space import divisors
from profiles.errors import InputError, ShardwrightError, TraceError
from profiles.hardware.catalogue.catalog import device_names
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.building.tensor_parallel_rules import HEAD, left_whole
from profiles.model.figures.described_model import is_read_from_config
from profiles.model.figures.figures_from_trace import figures_of_trace
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from shardwright.requests.layout_check import why_not_layouts
from shardwright.requests.local_paths import trace_cache
from shardwright.requests.named_model import described_of, import_from_here, uncounted_words
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.run.used_options import used_options
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.plan_file import PlanFile
from simulator.values.workload import PRECISIONS, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The search for a request: over layouts, or block by block.

    figures     of the model, for the search over layouts; None for the search block by block
    why_blocks  reason for the search block by block; "" for layouts
    others      whether other frameworks have layouts of a model that is searched block by block
    """

    figures: Transformer | None
    why_blocks: str = ""
    others: bool = False


def route_of(
    model: str | TracedModel,
    cluster: Cluster,
    *,
    seq: int | None,
    optimizer: str = "adamw",
    solver: str = "auto",
) -> Route:
    """The search that answers a request for our own executor, and predicts its plans.

    Layouts need a transformer of equal layers, and devices of one type of the catalog. CPUs and
    profiled devices are planned block by block, from their measurements.

    seq  tokens per sequence, None for the model's default
    Raises ModelError for an unknown model.
    """
    why = _why_block_by_block(cluster, optimizer=optimizer, solver=solver)
    if not why and isinstance(model, TracedModel) and model.target != "gpu":
        why = f"{model.source} was traced for a CPU"
    if why:
        return Route(figures=None, why_blocks=why)
    try:
        figures = figures_of(model, seq)
        if why := _why_unlike(model, figures, seq):
            raise InputError(why)
        return Route(figures=figures)
    except (InputError, TraceError) as error:
        return Route(figures=None, why_blocks=str(error), others=_has_figures(model, seq))


def _why_unlike(model: str | TracedModel, figures: Transformer, seq: int | None) -> str:
    """Why figures from a trace do not give the price of a model's blocks; "" if they do, and for
    figures from a configuration."""
    if isinstance(model, TracedModel):
        spec, length = model.spec, model.sequence_length
    else:
        spec, length = resolve_model(model), described_of(model, seq).sample.sequence_length
    if is_read_from_config(spec):
        return ""
    why = why_not_layouts(spec, figures, length)
    return f"{spec.source}: {why}" if why else ""


def _has_figures(model: str | TracedModel, seq: int | None) -> bool:
    """Whether figures describe a named model, as other frameworks need."""
    if not isinstance(model, str) or resolve_model(model).factory:
        return False
    try:
        return bool(figures_of(model, seq, runs_here=False))
    except (InputError, TraceError):
        return False


def _why_block_by_block(cluster: Cluster, *, optimizer: str, solver: str) -> str:
    if not cluster.homogeneous:
        return "the devices are of several types"
    device = cluster.groups[0].device
    measured = device.measurements
    if device.type == "cpu" or (measured and (measured.blocks or measured.references)):
        return f"{device.name} is planned from blocks measured on it"
    if device.name not in device_names():
        return f"{device.name} is not in the catalog of devices"
    if optimizer != "adamw":
        return f"figures are priced with AdamW, not {optimizer}"
    if solver != "auto":
        return f"--solver {solver} is a solver of chains of blocks"
    return ""


def figures_of(model: str | TracedModel, seq: int | None, *, runs_here: bool = True) -> Transformer:
    """The figures of a model. A named model has the same figures before and after tracing.

    seq        tokens per sequence, None for the model's default
    runs_here  for our executor (`described_of`)
    Raises ModelError for an unknown model, InputError and TraceError, with the reason, for a model
    that is not a chain of equal transformer layers.
    """
    if isinstance(model, str):
        return described_of(model, seq, runs_here=runs_here).figures
    if _is_named(model) or model.target != "gpu":
        return described_of(model.source, seq, runs_here=runs_here).figures
    whole = not any(kind == HEAD for _, kind in model.tensor_parallel)
    graph = model.at(2)
    found = figures_of_trace(graph)
    if runs_here and found.figures.uncounted:
        raise InputError(uncounted_words(model.source, found.figures))
    if runs_here:
        first_layer(found.entries, found.figures.num_layers)
        if matrix := left_whole(graph.matrices, model.tensor_parallel, found.entries):
            raise InputError(
                f"{model.source}: tensor parallelism leaves {matrix} whole, and layouts split all "
                "of a layer"
            )
    return replace(found.figures, whole_vocabulary=whole)


def _is_named(model: TracedModel) -> bool:
    """Whether the model's name resolves to the traced configuration."""
    try:
        spec = resolve_model(model.source)
    except ShardwrightError:
        return False
    return not spec.factory and spec.content_hash == model.content_hash


def executor_space(
    space: Axes, figures: Transformer, model: TracedModel | str = "", *, tokens: int = 0
) -> Axes:
    """The space, restricted to tensor-parallel degrees that the executor can split: every rank gets
    whole heads of queries, keys and values, and an equal share of the feed-forward layer.

    tokens  of a sequence of the model, which the ranks share equally; 0 without sharing

    Raises InputError where --tp leaves none, for layers that figures do not count, and, with the
    block and the reason, if the executor cannot run the model with shared tokens.
    """
    if figures.uncounted:
        name = model if isinstance(model, str) else model.source
        raise InputError(f"{uncounted_words(name, figures)}; name another framework (--stack)")
    if tokens:
        if isinstance(model, str):
            work = Workload(global_batch=1, sequence_length=tokens)
            model = trace_blocks(model, work, sequence_parallel=True)
        model.need_shared_tokens()
    heads, keys = figures.num_heads, figures.num_kv_heads
    inner = figures.ffn_size or figures.expert_size
    able = [tp for tp in divisors(heads) if keys % tp == 0 and (not inner or inner % tp == 0)]
    able = [tp for tp in able if tokens % tp == 0]
    allowed = tuple(tp for tp in able if space.allows("tp", tp))
    if not allowed:
        shared = f", and {tokens} tokens with --sequence-parallel," if tokens else ""
        raise InputError(
            f"--tp {','.join(map(str, space.tp or ()))}: our executor splits {heads} heads of "
            f"queries and {keys} of keys{shared} evenly; tp can be {', '.join(map(str, able))}, or "
            "name another framework (--stack)"
        )
    return replace(space, tp=allowed)


# Options that plans for our executor have.
_RUN_OPTIONS = ("dp_replicate", "optimizer_offload", "sequence_parallel")


def unsupported_options(run: TrainingRun) -> str:
    """The options of a layout that our executor does not have, as text; "" if there are none."""
    return "; ".join(
        f"our executor has no option for {each.words}"
        for each in used_options(run)
        if each.name not in _RUN_OPTIONS
    )


def _flags(run: TrainingRun) -> tuple[str, ...]:
    """The flags of `plan` that set a run's options, without its axes."""
    asked = RequestedOptions(
        orders=() if run.degrees.axis_order == AXIS_ORDERS[0] else (run.degrees.axis_order,),
        reductions=() if run.gradient_reduction in ("", "fp32") else (run.gradient_reduction,),
        compressions=(run.compression,) if run.compression else (),
        local_steps=(run.local_steps,) if run.local_steps > 1 else (),
        wide_layers=run.wide_layers,
        pipeline_layout=run.pipeline_layout,
        optimizer_offload=run.optimizer_offload,
        sequence_parallel=run.sequence_parallel,
        activation_offloads=(run.activation_offload,) if run.activation_offload else (),
        frozen_type=run.frozen_type,
        optimizer=run.optimizer,
    )
    others = (f"--lora {run.lora_rank}",) if run.lora else ()
    return others + asked.words + (("--lengths",) if run.document_length else ())


def runnable_answer(
    answer: LayoutFile, cluster: Cluster, traced: TracedModel | None = None, *, where: str = ""
) -> PlanFile:
    """The answer as a plan file for the executor: stages of the traced model's blocks.

    traced  the model, if it is already traced
    where   file of the answer, for messages

    Raises TraceError and ModelError if the model cannot be traced; InputError if its blocks differ
    from the layers of the figures, if tp does not divide them, or if the layout uses options that
    the executor does not have (`unsupported_options`).
    """
    chosen = answer.chosen
    if chosen is None:
        work = Workload(global_batch=1, sequence_length=1)
        return plan_of_layouts(answer, {}, cluster, work)
    run = chosen.run
    if why := unsupported_options(run):
        raise InputError(
            f"{where or 'the answer'}: the plan of {answer.model} cannot be run: {why}. Plan "
            f"without {' '.join(_flags(run))}, or for another framework (--stack any lists them)"
        )
    work = Workload(
        global_batch=run.global_batch,
        sequence_length=run.seq_len,
        precision=run.precision if run.precision in PRECISIONS else "bf16",
    )
    shares = run.sequence_parallel
    if traced is not None and run.degrees.tp > 1 and traced.sequence_parallel != shares:
        raise InputError(
            f"the best plan of {answer.model} has tp {run.degrees.tp} "
            f"{'with' if shares else 'without'} sequence parallelism, and the model was traced "
            f"otherwise; trace it with sequence_parallel={shares}"
        )
    best = traced or trace_blocks(answer.model, work, sequence_parallel=shares)
    why = best.why_not_tensor_parallel
    if run.degrees.tp > 1 and why:
        raise InputError(f"--tp {run.degrees.tp} cannot be used for {answer.model}: {why}")
    graph = best.at(2)
    entries = [ref.entry for ref in graph.chain]
    whole = left_whole(graph.matrices, best.tensor_parallel, entries)
    if run.degrees.tp > 1 and whole:
        raise InputError(
            f"--tp {run.degrees.tp} cannot be used for {answer.model}: our executor leaves {whole} "
            "whole on every rank, and the layout counts on a share of it. Plan with --tp 1, or for "
            "another framework (--stack any lists them)"
        )
    usable = {best.sequence_parallel: best}
    others = {x.run.sequence_parallel for x in answer.alternatives if x.run.degrees.tp > 1}
    if traced is None and others - usable.keys():
        other = trace_blocks(answer.model, work, sequence_parallel=not shares)
        if not other.why_not_tensor_parallel:
            usable[not shares] = other
    return plan_of_layouts(answer, usable, cluster, work)


def trace_blocks(
    model: str, work: Workload, *, tp: int = 1, target: str = "gpu", sequence_parallel: bool = False
) -> TracedModel:
    """The blocks of a model on one rank and on one of `tp` ranks, with the rules to split them."""
    import_from_here(model)
    return trace_model(
        resolve_model(model),
        sequence_length=work.sequence_length,
        dtype=work.compute_dtype,
        tp_degrees=tuple(sorted({1, tp})),
        target=target,
        cache=trace_cache(),
        sequence_parallel=sequence_parallel,
    )
