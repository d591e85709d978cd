"""What a row may ask beside its layout: the options of `plan --stack`, and windows of attention.

Columns have the names of the options (docs/runs.md); an empty cell leaves what the framework or the
model has. What cannot be is refused with the column's name.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.errors import InputError, UnknownNameError
from profiles.model.figures.transformer import Transformer
from profiles.published.run import PublishedRun
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.compression import REDUCTIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.run.unsupported import UnsupportedRunError
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.pipeline_layout import layout_ranks, pipeline_layout_text, stages_of_layout


def with_model_options(run: PublishedRun, model: Transformer) -> Transformer:
    """The model with the row's window and tokens predicted ahead.

    Raises InputError where a window has no layers or more than have attention.
    """
    changed = model
    if run.sliding_window is not None or run.window_layers is not None:
        window = model.window if run.sliding_window is None else run.sliding_window
        layers = run.window_layers
        if layers is None:
            layers = model.window_layers or model.attention_count
        if run.window_layers and not window:
            raise InputError(f"window_layers={run.window_layers} need a sliding_window")
        changed = replace(changed, window=window, window_layers=layers if window else 0)
    if run.mtp_layers is not None:
        changed = replace(changed, predicted_ahead=run.mtp_layers)
    return changed


def with_run_options(run: PublishedRun, completed: TrainingRun, said: list[str]) -> TrainingRun:
    """The run with the row's options.

    Raises UnsupportedRunError for a value that the option does not take, or that nothing in the
    run answers to (adapters' rank where all weights are trained, imbalance without experts).
    """
    _refuse_idle(run, completed)
    try:
        if run.order and run.order not in AXIS_ORDERS:
            raise UnknownNameError("order", run.order, AXIS_ORDERS)
        if run.reduce and run.reduce not in REDUCTIONS:
            raise UnknownNameError("reduction", run.reduce, REDUCTIONS)
        workers = run.local_workers
        steps = run.local_steps or 1
        if steps > 1 and workers is None:
            workers = completed.degrees.dp
            said.append(f"{workers} local workers (every replica)")
        return replace(
            completed,
            recompute_layers=run.recompute_layers or 0,
            lora_rank=run.lora_rank or completed.lora_rank,
            frozen_type=run.base_precision,
            expert_imbalance=1.0 if run.expert_imbalance is None else run.expert_imbalance,
            document_length=run.document_length or 0.0,
            pipeline_layout=_pipeline_layout(run, completed),
            optimizer_offload=bool(run.optimizer_offload),
            activation_offload=run.activation_offload or 0.0,
            gradient_reduction=run.reduce,
            compression="" if run.compress == "none" else run.compress,
            local_steps=steps,
            local_workers=workers if steps > 1 and workers else 1,
            wide_layers=run.wide_layers or 0,
            degrees=replace(
                completed.degrees, axis_order=run.order or completed.degrees.axis_order
            ),
        )
    except UnsupportedRunError:
        raise
    except InputError as error:
        reason = str(error).removeprefix(f"{run.id}: ")
        raise UnsupportedRunError(run.id, reason) from error


def _pipeline_layout(run: PublishedRun, completed: TrainingRun) -> str:
    """The row's layout of stages, in canonical form; raises InputError if it is of another model or
    number of stages."""
    if not run.pipeline_layout or completed.degrees.pp == 1:
        return ""
    model, count = completed.model, completed.degrees.num_stages
    where = "pipeline_layout"
    stages = stages_of_layout(run.pipeline_layout, model.num_layers, model.predicted_ahead, where)
    text = pipeline_layout_text(stages)
    if len(stages) != count or completed.degrees.pp not in layout_ranks(text):
        ranks = " or ".join(map(str, layout_ranks(text)))
        raise InputError(
            f"{where} {run.pipeline_layout!r} has {len(stages)} stages, for pp of {ranks}; the run "
            f"has pp {completed.degrees.pp} x vpp {completed.degrees.vpp}"
        )
    return text


def _refuse_idle(run: PublishedRun, completed: TrainingRun) -> None:
    """Options that would change nothing were meant for another run."""
    idle = (
        (
            run.expert_imbalance is not None
            and run.expert_imbalance != 1.0
            and not completed.model.num_experts,
            "expert_imbalance is given, but the model has no experts",
        ),
        (
            run.lora_rank is not None and not completed.lora,
            "lora_rank is given, but family is not lora: all weights are trained",
        ),
        (
            bool(run.base_precision) and not completed.lora,
            f"base_precision={run.base_precision} is of frozen weights, but family is not lora: "
            "all weights are trained",
        ),
        (
            bool(run.recompute_layers) and completed.recompute != "full",
            f"recompute_layers={run.recompute_layers} is of full recomputation, and recompute is "
            f"{completed.recompute!r}",
        ),
        (
            bool(run.wide_layers) and completed.precision not in LOW_PRECISIONS,
            f"wide_layers={run.wide_layers} stay in bf16 where the rest is lower, and the "
            f"precision is {completed.precision}",
        ),
        (
            (run.local_workers or 1) > 1 and (run.local_steps or 1) == 1,
            f"local_workers={run.local_workers} need local_steps of 2 or more",
        ),
    )
    for is_idle, why in idle:
        if is_idle:
            raise UnsupportedRunError(run.id, why)
