"""What must hold of every described run whatever its figures: more work is never faster, no device
beats its datasheet, a faster network never costs time, intervals hold their value, memory holds the
states that are kept for sure."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from profiles.hardware.catalogue.catalog import device_names, get_device
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun

_STACKS = (
    "Megatron-LM",
    "Megatron-Core r0.12",
    "Megatron-Bridge 26.02",
    "Megatron-DeepSpeed",
    "composer/llm-foundry FSDP",
    "torchtitan",
    "nanotron",
    "MaxText",
    "",
)
_MANY = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def described(draw: st.DrawFn) -> PublishedRun:
    """Runs unlike the published ones: any device, stack, degrees and sizes that fit each other."""
    head = draw(st.sampled_from((64, 96, 128)))
    heads = draw(st.sampled_from((8, 16, 24, 40, 64)))
    hidden = head * heads
    tp, pp = (draw(st.sampled_from((1, 2, 4, 8))) for _ in range(2))
    dp = draw(st.sampled_from((1, 2, 8, 64, 500)))
    cp = draw(st.sampled_from((1, 1, 2, 4)))
    micro_batch = draw(st.sampled_from((1, 2, 3, 8)))
    schedule = draw(st.sampled_from(("1f1b", "gpipe", "interleaved", "zb-h1")))
    experts: dict[str, int] = {}
    if draw(st.booleans()):
        experts = {
            "num_experts": draw(st.sampled_from((8, 60, 256))),
            "top_k": draw(st.integers(1, 8)),
            "moe_ffn_size": draw(st.sampled_from((768, 2048, hidden))),
            "num_shared_experts": draw(st.integers(0, 2)),
            "first_dense_layers": draw(st.integers(0, 1)),
            "ep": draw(st.sampled_from((1, 4, 32))),
        }
    return PublishedRun(
        row=1,
        id="r",
        num_layers=pp * draw(st.integers(1, 12)),
        hidden_size=hidden,
        ffn_size=draw(st.sampled_from((4 * hidden, 256 * (hidden // 96), 1000))),
        num_heads=heads,
        num_kv_heads=draw(st.sampled_from((8, heads))),
        head_dim=head,
        vocab_size=draw(st.sampled_from((1000, 50257, 128256, 256000))),
        seq_len=draw(st.sampled_from((128, 1000, 4096, 32768, 262144))),
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        device=draw(st.sampled_from(device_names())),
        num_devices=tp * pp * dp * cp,
        devices_per_node=draw(st.sampled_from((None, 1, 4, 6, 8, 16, 72))),
        inter_node_link=draw(st.sampled_from(("", "1x25 Gb/s", "8x400Gb/s IB per node"))),
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        zero_stage=draw(st.sampled_from((None, 0, 1, 2, 3))),
        recompute=draw(st.sampled_from(("", "none", "selective", "full"))),
        micro_batch=micro_batch,
        global_batch=dp * micro_batch * draw(st.integers(1, 12)),
        precision=draw(st.sampled_from(("bf16", "fp16", "fp32", "fp8", "nvfp4"))),
        schedule=schedule,
        # Said, since a silent one follows from the number of layers.
        vpp=2 if schedule == "interleaved" else 1,
        framework=draw(st.sampled_from(_STACKS)),
        **experts,  # type: ignore[arg-type] # only names of counts
    )


def both(run: PublishedRun, other: PublishedRun) -> tuple[PredictedRow, PredictedRow]:
    first, second = predict_runs([run, other])
    for found in (first, second):
        if found.run is None:
            assert found.why_not
    assume(first.run is not None and second.run is not None)
    return first, second


def step_s(found: PredictedRow) -> float:
    assert found.step_time_s is not None
    return found.step_time_s.value


@_MANY
@given(run=described())
def test_figures_are_possible(run: PublishedRun) -> None:
    (found,) = predict_runs([run])
    if found.run is None:
        assert found.why_not
        return
    assert found.prediction is not None
    step, done = found.prediction.step_time_s, found.run
    seconds = found.prediction.seconds.values()
    assert 0.0 < step.low <= step.value <= step.high < math.inf
    assert sum(seconds) == pytest.approx(step.value)
    assert min(seconds) >= -1e-9 * step.value
    # 6 flop per token and weight that it passes, at the best rate on the datasheet.
    model = done.model
    active = model.num_layers * model.attention_parameters
    active += (model.num_layers - model.num_expert_layers) * model.dense_parameters
    active += model.num_expert_layers * model.top_k * model.expert_parameters
    work_flop = 6.0 * active * done.global_batch * done.seq_len
    peaks = get_device(done.device).peak_flop_per_s
    names = {"fp8": "float8_e4m3fn", "nvfp4": "float4_e2m1fn_x2"}
    best = max(p.value for name, p in peaks.items() if name == names.get(done.precision, name))
    assert step.value > work_flop / done.degrees.num_devices / best
    memory = found.shown_memory_bytes
    if memory is None:
        assert found.why_no_memory
        return
    assert 0.0 < memory.low <= memory.value <= memory.high < math.inf
    # Weights of 2 bytes, gradients of 2 and 8 bytes of moments, split over every device there is.
    assert memory.value > 12.0 * model.parameters / done.degrees.num_devices * 0.9


_MORE_WORK = {
    "sequence": lambda r: replace(r, seq_len=2 * r.seq_len),
    "batch": lambda r: replace(r, global_batch=2 * r.global_batch),
    "layers": lambda r: replace(r, num_layers=2 * r.num_layers),
    # A single one moves the cuts too, which can even out the stages.
    "one layer a chunk": lambda r: replace(r, num_layers=r.pp * r.vpp + r.num_layers),
    "feed-forward": lambda r: replace(r, ffn_size=2 * r.ffn_size),
    "vocabulary": lambda r: replace(r, vocab_size=2 * r.vocab_size),
}


@pytest.mark.parametrize("what", _MORE_WORK)
@_MANY
@given(run=described())
def test_more_work_is_never_faster(what: str, run: PublishedRun) -> None:
    # The idle time of other schedules is a timeline's, whose stages a larger head can even out.
    assume(run.schedule in ("1f1b", "gpipe"))
    # nanotron cuts stages by cost: more of it may move a layer to where it hides.
    assume(run.pp in (None, 1) or run.framework != "nanotron")
    first, second = both(run, _MORE_WORK[what](run))
    # Of alternate recomputation one share of work runs again of all matmuls' seconds, though a
    # wider feed-forward takes fewer seconds per FLOP: small layers may so come out 0.2 % faster.
    slack = 5e-3 if run.recompute in ("selective", "alternate") else 1e-9
    assert step_s(second) >= step_s(first) * (1 - slack)


@_MANY
@given(run=described())
def test_recomputation_costs_time_and_never_memory(run: PublishedRun) -> None:
    first, second = both(replace(run, recompute="none"), replace(run, recompute="full"))
    assert step_s(second) >= step_s(first) * (1 - 1e-9)
    if first.shown_memory_bytes is not None and second.shown_memory_bytes is not None:
        assert second.shown_memory_bytes.value <= first.shown_memory_bytes.value * (1 + 1e-9)


@_MANY
@given(run=described(), cards=st.sampled_from((1, 2, 4, 8)))
def test_half_the_network_is_never_faster(run: PublishedRun, cards: int) -> None:
    fast, slow = (replace(run, inter_node_link=f"{n}x100 Gb/s") for n in (2 * cards, cards))
    first, second = both(fast, slow)
    assert step_s(second) >= step_s(first) * (1 - 1e-9)
