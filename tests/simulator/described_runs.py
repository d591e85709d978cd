"""Described runs with round numbers, coefficients without a fit, and random ones for properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from profiles.model.figures.transformer import Transformer
from shardwright.runs.known_models import known_model
from shardwright.runs.network_text import network_of
from simulator.training_run.run.training_run import TrainingRun, with_settings
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import assign
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import StepParts, step_parts
from simulator.values.degrees import Degrees

Array = NDArray[np.float64]


def figures(name: str) -> Transformer:
    """A well-known model's public figures."""
    known = known_model(name)
    assert known is not None
    assert known.figures is not None
    return known.figures


GPT_175B = figures("GPT-3 175B")
LLAMA_8B = figures("Llama 3 8B")
MIXTRAL = figures("Mixtral 8x7B")
DEEPSEEK_V3 = figures("DeepSeek-V3")

# One of eight pipeline stages of GPT-3 on A100, as Narayanan et al. ran it (arXiv 2104.04473).
GPT_RUN = TrainingRun(
    id="gpt",
    model=GPT_175B,
    device="a100-sxm-80gb",
    degrees=Degrees(tp=8, pp=8, dp=1),
    node_devices=8,
    network=network_of("8x200Gb/s HDR IB per node", "a100-sxm-80gb", 8),
    sequence_parallel=False,
    zero_stage=0,
    recompute="none",
    micro_batch=1,
    global_batch=32,
    seq_len=2048,
    precision="fp16",
    schedule="1f1b",
    stack="megatron-2021",
)
# Eight H100 of one node, weights sharded over all of them.
LLAMA_RUN = replace(
    GPT_RUN,
    id="llama",
    model=LLAMA_8B,
    network=None,
    device="h100-sxm-80gb",
    degrees=Degrees(tp=1, pp=1, dp=8),
    zero_stage=3,
    global_batch=16,
    seq_len=4096,
    precision="bf16",
    schedule="none",
    stack="torch-fsdp",
)


def changed(run: TrainingRun, **settings: Any) -> TrainingRun:
    """The run with other values of its fields and of its degrees."""
    return with_settings(run, settings)


def plain(**changes: float) -> dict[str, float]:
    """Coefficients that leave the counted seconds alone and add nothing; `changes` are by kind."""
    values = {
        kind.name: 0.0 if kind.name.endswith(("_us", "_ms")) or kind.name == "congestion" else 1.0
        for kind in KINDS
    }
    # Matmuls at the surfaces' speed alone, without the second bound of the power limit.
    values |= {"power": 0.0}
    assert set(changes) <= set(values)
    return values | changes


def of_each(values: Mapping[str, float], count: int = 1) -> dict[str, Array]:
    """The same coefficients for `count` runs, as step_parts takes them."""
    return {name: np.full(count, value) for name, value in values.items()}


def at_starts(runs: Sequence[TrainingRun]) -> StepParts:
    """The parts of runs' steps with every coefficient where its fit begins."""
    assigned = assign(runs)
    return step_parts(features(runs), assigned.of(assigned.starts()))


_SCHEDULES = ("1f1b", "interleaved", "zb-h1", "zb-2p", "zbv")
_DEVICES = ("a100-sxm-80gb", "h100-sxm-80gb", "gb200-nvl72", "tpu-v5p", "v100-sxm2-32gb")
_STACKS = ("megatron-2021", "megatron-core", "nanotron", "torch-fsdp", "maxtext")


@st.composite
def training_runs(draw: st.DrawFn) -> TrainingRun:
    """Any layout of a small dense model or one with experts that could be run."""

    def power(most: int) -> int:
        return 1 << draw(st.integers(0, most))

    tp, pp, cp, dp, micro_batch = power(3), power(2), power(1), power(3), power(1)
    experts = draw(st.sampled_from((0, 0, 8)))
    schedule = draw(st.sampled_from(_SCHEDULES)) if pp > 1 else "none"
    device = draw(st.sampled_from(_DEVICES))
    model = Transformer(
        num_layers=pp * draw(st.sampled_from((2, 4, 6))),
        hidden_size=1024 * power(2),
        ffn_size=4096 * power(1),
        num_heads=32,
        num_kv_heads=draw(st.sampled_from((4, 8, 32))),
        head_size=64,
        vocab_size=32000,
        gated=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        num_experts=experts,
        top_k=2 if experts else 0,
        expert_size=2048 if experts else 0,
        first_dense_layers=draw(st.integers(0, 1)) if experts else 0,
    )
    values: dict[str, Any] = {
        "model": model,
        "device": device,
        "degrees": Degrees(
            dp=dp,
            tp=tp,
            pp=pp,
            vpp=2 if schedule in ("interleaved", "zbv") else 1,
            cp=cp,
            ep=min(dp, experts) if experts else 1,
        ),
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "zero_stage": draw(st.integers(0, 3)) if pp == 1 else draw(st.integers(0, 1)),
        "recompute": draw(st.sampled_from(("none", "selective", "mlp", "minimal", "full"))),
        "micro_batch": micro_batch,
        "global_batch": dp * micro_batch * draw(st.integers(1, 3 * pp)),
        "seq_len": 1024 * power(2),
        "precision": "fp16" if device.startswith("v100") else "bf16",
        "schedule": schedule,
        "stack": draw(st.sampled_from(_STACKS)),
        "lora": draw(st.booleans()) and not experts,
    }
    return replace(GPT_RUN, **values)
