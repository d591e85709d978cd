"""`refuse_idle_options`: refuse options of a row that have no effect, since they are probably of
another run."""

from __future__ import annotations

from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from shardwright.runs.run import PublishedRun
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS


def refuse_idle_options(
    run: PublishedRun, model: Transformer, recompute: str, precision: str
) -> None:
    """Raises InputError for an option that nothing in the run answers to.

    model, recompute, precision  of the run, completed
    """
    idle = (
        (
            run.expert_imbalance is not None
            and run.expert_imbalance != 1.0
            and not model.num_experts,
            "expert_imbalance is given, but the model has no experts",
        ),
        (
            run.lora_rank is not None and run.family != "lora",
            "lora_rank is given, but family is not lora: all weights are trained",
        ),
        (
            bool(run.base_precision) and run.family != "lora",
            f"base_precision={run.base_precision} is of frozen weights, but family is not lora: "
            "all weights are trained",
        ),
        (
            bool(run.recompute_layers) and recompute != "full",
            f"recompute_layers={run.recompute_layers} is of full recomputation, and recompute is "
            f"{recompute!r}",
        ),
        (
            bool(run.wide_layers) and precision not in LOW_PRECISIONS,
            f"wide_layers={run.wide_layers} stay in bf16 where the rest is lower, and the "
            f"precision is {precision}",
        ),
        (
            (run.local_workers or 1) > 1 and (run.local_steps or 1) == 1,
            f"local_workers={run.local_workers} need local_steps of 2 or more",
        ),
    )
    for is_idle, why in idle:
        if is_idle:
            raise InputError(why)
