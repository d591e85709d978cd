"""`why_not_layouts`: whether layouts of a traced model have the prices of its blocks.

Layouts are priced by the layers of Llama, BERT and GPT-2 (profiles/data/frameworks/torch.toml). A
module with the same widths may run other kernels and keep other tensors, in its layers or its loss.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from planner.layout.layout_choice import layout_prediction
from planner.layout.layout_question import base_run
from planner.layout.plan_of_layout import executable_plan
from planner.space import EXECUTOR
from profiles.errors import TraceError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.figures_from_trace import figures_of_trace
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import trace_model
from shardwright.requests.local_paths import trace_cache
from simulator.traced.predict import predict
from simulator.training_run.framework.framework import load_framework, load_stack
from simulator.values.degrees import Degrees
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

# Relative difference of steps and of peaks.
_WITHIN = 0.05
# The compared plans have 8 micro-batches of about 8,192 tokens per replica on this cluster. There,
# layouts of Llama are within 5 % of its blocks; with fewer tokens, or on other devices, prices
# differ for other reasons than the model.
_CLUSTER = "8xh100-sxm"
_MICRO_BATCHES = 8
_TOKENS = 8192


@functools.lru_cache(maxsize=64)
def why_not_layouts(spec: ModelSpec, figures: Transformer, length: int) -> str:
    """How much step or peak of a layout differs from that of the same plan by its blocks; "" within
    5 % of both. Compared are ZeRO 3, tensor parallelism and pipeline parallelism in bf16.

    length  tokens of a sample, for a model that does not make its own inputs

    A model that cannot be traced in bf16 is not compared. Raises InputError if its blocks are not
    the layers of the figures.
    """
    cluster = get_cluster(_CLUSTER)
    devices, split = cluster.num_devices, (figures.num_kv_heads, figures.ffn_size)
    tp = next(tp for tp in (4, 2, 1) if not any(width % tp for width in split))
    pp = next(pp for pp in (4, 2, 1) if figures.num_layers % pp == 0)
    try:
        traced = trace_model(
            spec,
            sequence_length=length,
            dtype="bfloat16",
            tp_degrees=(1, tp),
            cache=trace_cache(),
        )
    except TraceError:
        return ""
    length = figures_of_trace(traced.at(2)).sequence_length
    base = base_run(
        spec.source,
        figures,
        cluster,
        rules=load_framework(EXECUTOR).rules,
        global_batch=1,
        seq_len=length,
        precision="bf16",
    )
    base = replace(base, micro_batch=max(1, _TOKENS // length))
    for degrees in (
        Degrees(tp=1, pp=1, dp=devices),
        Degrees(tp=tp, pp=1, dp=devices // tp),
        Degrees(tp=1, pp=pp, dp=devices // pp),
    ):
        if degrees.tp not in traced.tp_degrees:
            continue
        run = replace(
            base,
            degrees=degrees,
            zero_stage=3 if degrees.dp == devices else 1,
            global_batch=degrees.dp * base.micro_batch * _MICRO_BATCHES,
        )
        work = Workload(global_batch=run.global_batch, sequence_length=length)
        plan = executable_plan(run, traced, cluster, work)
        layout = layout_prediction(run, cluster)
        blocks = predict(plan, traced, cluster, stack=load_stack())
        for what, one, other in (
            ("step", layout.step_time_s.value, blocks.step_time_s.value),
            ("peak memory", _peak(layout), _peak(blocks)),
        ):
            if abs(one / other - 1) > _WITHIN:
                return (
                    f"the {what} of tp{degrees.tp} pp{degrees.pp} dp{degrees.dp} as a layout is "
                    f"{one / other - 1:+.0%} off that of its blocks (on {_CLUSTER})"
                )
    return ""


def _peak(prediction: Prediction) -> float:
    return max(rank.peak_bytes for rank in prediction.ranks)
