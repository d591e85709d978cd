"""Plans for exporters: layouts by hand, predicted as `plan` predicts them."""

from __future__ import annotations

from dataclasses import fields, replace

from shardwright_frameworks.exports.values.planned_run import (
    PlannedRun,
    PlannedStage,
    stages_of_run,
)

from profiles.hardware.catalogue.catalog import get_device
from profiles.model.figures.figures_from_config import figures_of_config
from profiles.model.loaders import resolve_model
from simulator.memory.footprint import footprint
from simulator.training_run.explain.run_prediction import run_prediction
from simulator.training_run.fit.interval import step_interval
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import price_runs
from simulator.values.degrees import Degrees
from simulator.values.prediction import Component, Interval, Part, Prediction, RankMemory

SMALL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def layout(name: str, stack: str, **axes: object) -> TrainingRun:
    """A run of a shipped model on H100s: every degree 1 and a batch of 64 where not given."""
    settings: dict[str, object] = {
        "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "dp": 1, "ep": 1, "zero_stage": 1,
        "recompute": "none", "micro_batch": 1, "global_batch": 64, "seq_len": 4096,
        "precision": "bf16", "schedule": "1f1b", "node_devices": 8, "device": "h100-sxm-80gb",
    }  # fmt: skip
    settings |= axes
    model = figures_of_config(resolve_model(name).config, name)
    settings.setdefault("sequence_parallel", settings["tp"] != 1)
    named = {each.name for each in fields(Degrees)} & set(settings)
    degrees = Degrees(**{axis: settings.pop(axis) for axis in named})  # type: ignore[arg-type] # fields by name
    return TrainingRun(
        id=name,
        model=model,
        degrees=degrees,
        stack=stack,
        **settings,  # type: ignore[arg-type]  # values of several types by name
    )


def planned(name: str, stack: str, **axes: object) -> PlannedRun:
    """The plan of such a run."""
    return of_run(name, layout(name, stack, **axes))


def of_run(name: str, run: TrainingRun) -> PlannedRun:
    """A plan of a run, with its prediction."""
    parts = price_runs([run]).parts
    step = step_interval(run, float(parts.total_s[0]))
    return PlannedRun(
        plan="plan.json",
        plan_text="",
        model=name,
        config=resolve_model(name).config,
        run=run,
        stages=stages_of_run(run),
        prediction=run_prediction(run, step, parts.components(), footprint(run)),
        device_type=get_device(run.device).type,
    )


def uneven(plan: PlannedRun, layers: tuple[int, ...]) -> PlannedRun:
    """The plan with so many layers in its stages."""
    last = len(layers) - 1
    stages = tuple(
        PlannedStage(
            rank=old.rank,
            recompute=(plan.run.recompute,) * count,
            has_embedding=number == 0,
            has_head=number == last,
        )
        for number, (old, count) in enumerate(zip(plan.stages, layers, strict=True))
    )
    return replace(plan, stages=stages)


def small(stack: str = "torch", **axes: object) -> PlannedRun:
    """A plan of a Llama of four layers on two CPU processes, with figures out of the air: no
    described device is a CPU."""
    base = layout("tiny-llama-demo", stack, **{"seq_len": 64, "global_batch": 8, **axes})
    run = replace(base, model=figures_of_config(SMALL, "small"), device="cpu", node_devices=2)
    rank = RankMemory(
        rank=0,
        parameters_bytes=1e8,
        gradients_bytes=0.0,
        optimizer_bytes=0.0,
        activations_bytes=0.0,
        transient_bytes=0.0,
        communication_bytes=0.0,
        capacity_bytes=1e9,
        peak_time_s=0.0,
    )
    second = Interval(value=1.0, low=0.5, high=2.0)
    return PlannedRun(
        plan="plan.json",
        plan_text="",
        model="small",
        config=SMALL,
        run=run,
        stages=stages_of_run(run),
        prediction=Prediction(
            step_time_s=second,
            components=(Component(name=Part.COMPUTE, time_s=1.0),),
            tokens_per_s=second.scaled(512.0),
            mfu=second.scaled(0.1),
            peak_memory_bytes=second.scaled(1e8),
            bubble_fraction=0.0,
            ranks=(rank,),
        ),
        device_type="cpu",
        priced=False,
    )
