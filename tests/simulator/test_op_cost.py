"""Op costs: the roofline by hand, measured points, launch floor, and what may never happen."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import (
    AttentionPoint,
    MatmulPoint,
    Measurements,
    MemoryPoint,
)
from profiles.hardware.kernels.gemm_surface import load_surface
from profiles.model.graph import AttentionShape, Op, OpKind, Phase
from simulator.traced.op_cost import price_op
from tests.simulator.hand_made import device, matmul, memory_op, said

SIZES = (128, 512, 2048)
# u = 0.5 at every shape: 2 m n k / 100e12 / 0.5; all of them bound by compute at 1 TB/s or near.
MEASURED = Measurements(
    source="points by hand",
    date="2026-11-21",
    matmul=tuple(
        MatmulPoint(
            dtype="bfloat16",
            batch=1,
            m=m,
            n=n,
            k=k,
            time_s=max(2 * m * n * k / 100e12, 2 * (m * k + k * n + m * n) / 1e12) / 0.5,
        )
        for m, n, k in itertools.product(SIZES, repeat=3)
    ),
    attention=tuple(
        AttentionPoint(
            dtype="bfloat16",
            phase="forward",
            batch=1,
            heads=16,
            kv_heads=16,
            q_len=s,
            kv_len=s,
            head_dim=128,
            causal=True,
            time_s=2 * 16 * s * s * 128 / 100e12 / 0.4,
        )
        for s in (1024, 2048, 4096)
    ),
    memory=tuple(
        MemoryPoint(op=op, moved_bytes=size, time_s=size / 0.5e12)
        for op in ("elementwise", "reduction", "copy")
        for size in (10**6, 10**7, 10**8)
    ),
)


def attention(seq: int, *, phase: Phase = Phase.FORWARD, causal: bool = True) -> Op:
    flop = 4 * 16 * seq * seq * 128 // (2 if causal else 1)
    flop = flop * 5 // 2 if phase is Phase.BACKWARD else flop
    moved = 4 * 16 * seq * 128 * 2
    return Op(
        name="flash_attention_backward" if phase is Phase.BACKWARD else "flash_attention",
        kind=OpKind.ATTENTION,
        phase=phase,
        module="attn",
        dtype="bfloat16",
        work_flop=flop,
        read_bytes=moved * 3 // 4,
        written_bytes=moved // 4,
        attention=AttentionShape(
            batch=1, heads=16, kv_heads=16, q_len=seq, kv_len=seq, head_dim=128, causal=causal
        ),
    )


def test_a_measured_matmul_costs_what_was_measured():
    gpu = device(measurements=MEASURED, launch_s=0.0)
    for point in MEASURED.matmul:
        cost = price_op(matmul(point.m, point.n, point.k, dtype="bfloat16"), gpu)
        assert cost.time_s == pytest.approx(point.time_s, rel=1e-9)
        assert cost.method == "measured"
        assert cost.source == "points by hand"


def test_between_measured_matmuls_the_utilisation_holds():
    # u = 0.5 everywhere: 2 x 1000^3 / 100e12 / 0.5 = 40 us.
    cost = price_op(
        matmul(1000, 1000, 1000, dtype="bfloat16"), device(measurements=MEASURED, launch_s=0.0)
    )
    assert cost.time_s == pytest.approx(40e-6)
    assert cost.method == "interpolated"


def test_a_small_op_costs_its_launch():
    # 2 x 16^3 flop take 82 ps: what remains is the launch.
    cost = price_op(matmul(16, 16, 16, dtype="bfloat16"), device(launch_s=5e-6))
    assert cost.time_s == 5e-6
    assert cost.launch_bound


def test_memory_bound_ops_follow_their_curve():
    cost = price_op(memory_op("add", 10**7), device(measurements=MEASURED, launch_s=0.0))
    assert cost.time_s == pytest.approx(20e-6)
    assert cost.method == "measured"
    between = price_op(memory_op("add", 3 * 10**7), device(measurements=MEASURED, launch_s=0.0))
    assert between.time_s == pytest.approx(60e-6)
    assert between.method == "interpolated"


def test_attention_forward_is_measured_and_backward_derived():
    gpu = device(measurements=MEASURED, launch_s=0.0)
    forward = price_op(attention(2048), gpu)
    backward = price_op(attention(2048, phase=Phase.BACKWARD), gpu)
    assert forward.time_s == pytest.approx(2 * 16 * 2048**2 * 128 / 100e12 / 0.4)
    assert forward.method == "measured"
    # 2.5 times the flop (FlashAttention-2), at the forward's rate or somewhat less.
    assert 2.5 <= backward.time_s / forward.time_s <= 3.2
    assert backward.method == "assumed"
    assert (backward.high - backward.low) / backward.time_s > (
        forward.high - forward.low
    ) / forward.time_s


BACK, HALF, OTHER = "backward", "bfloat16", "float16"


@pytest.mark.parametrize(
    ("measured", "share"),
    [
        ({(BACK, HALF, True): 0.2, (BACK, HALF, False): 0.3}, 0.2),
        ({(BACK, HALF, False): 0.3, (BACK, OTHER, True): 0.4}, 0.3),
        ({(BACK, OTHER, False): 0.3, ("forward", HALF, True): 0.4}, 0.3),
    ],
)
def test_attention_is_read_off_the_nearest_points_by_pass_type_and_mask(measured, share):
    def points(phase, dtype, causal, part):
        flops = (2.5 if phase == BACK else 1) * (1 if causal else 2) * 0.4 / part
        for each in MEASURED.attention:
            time_s = each.time_s * flops
            yield replace(each, phase=phase, dtype=dtype, causal=causal, time_s=time_s)

    every = tuple(each for key, part in measured.items() for each in points(*key, part))
    gpu = device(measurements=replace(MEASURED, attention=every), launch_s=0.0)
    cost = price_op(attention(2048, phase=Phase.BACKWARD), gpu)
    assert cost.time_s == pytest.approx(2.5 * 2 * 16 * 2048**2 * 128 / 100e12 / share)
    assert cost.method == ("measured" if share == 0.2 else "assumed")


def test_nothing_measured_is_assumed_and_wide():
    # 2 x 4096^3 / 100e12 = 1.37 ms at full rate; kernels reach about two thirds of it.
    cost = price_op(matmul(4096, 4096, 4096, dtype="bfloat16"), device())
    assert cost.method == "assumed"
    assert 1.37e-3 < cost.time_s < 2 * 1.37e-3 * 1.1
    assert cost.low < 0.85 * cost.time_s
    assert cost.high > 1.2 * cost.time_s


def test_every_assumption_widens_the_interval() -> None:
    """In logs: by 0.23 for kernels of another device, by as much for a variant of the device, by
    0.3 for a backward of attention."""

    def width(op: Op, on: str = "h100-sxm-80gb", **changes: str) -> float:
        cost = price_op(op, replace(get_device(on), **changes))
        assert cost.high / cost.time_s == pytest.approx(cost.time_s / cost.low)
        return math.log(cost.high / cost.time_s)

    product = matmul(4096, 4096, 4096, dtype="bfloat16")
    measured = load_surface("h100-sxm-80gb").table("bfloat16").uncertainty
    assert width(product) == pytest.approx(math.log1p(measured))
    for borrower in ("h800-sxm-80gb", "h100-sxm-96gb"):
        assert width(product, borrower) == pytest.approx(width(product) + 0.23)
        own = width(product, borrower, name="own", efficiency_of=borrower)
        assert own == pytest.approx(width(product) + 0.46)
    forward, backward = attention(4096), attention(4096, phase=Phase.BACKWARD)
    assert width(backward) == pytest.approx(width(forward) + 0.3)


def test_a_view_costs_an_accelerator_nothing():
    view = Op(
        name="transpose",
        kind=OpKind.VIEW,
        phase=Phase.FORWARD,
        module="",
        dtype="bfloat16",
        work_flop=0,
        read_bytes=0,
        written_bytes=0,
    )
    assert price_op(view, device()).time_s == 0.0


SHAPE = st.integers(1, 8192)


@given(SHAPE, SHAPE, SHAPE, st.floats(1.0, 10.0))
@settings(deadline=None)
def test_a_faster_device_is_never_slower(m, n, k, factor):
    op = matmul(m, n, k, dtype="bfloat16")
    for faster in (
        device(flop_per_s=100e12 * factor),
        device(bandwidth=1e12 * factor),
        device(launch_s=1e-6 / factor),
    ):
        assert price_op(op, faster).time_s <= price_op(op, device()).time_s * (1 + 1e-12)


@given(SHAPE, SHAPE, SHAPE, st.booleans())
@settings(deadline=None)
def test_the_interval_holds_the_value(m, n, k, measured):
    gpu = device(measurements=MEASURED if measured else None)
    for op in (matmul(m, n, k, dtype="bfloat16"), memory_op("add", m * n)):
        cost = price_op(op, gpu)
        assert 0 <= cost.low <= cost.time_s <= cost.high


def test_half_precision_types_share_points_and_rates():
    gpu = replace(
        device(measurements=MEASURED, launch_s=0.0, rates=("bfloat16",)),
        peak_flop_per_s={"bfloat16": said(100e12), "float16": said(100e12)},
    )
    bf16 = matmul(512, 512, 512, dtype="bfloat16")
    assert price_op(replace(bf16, dtype="float16"), gpu).time_s == pytest.approx(
        price_op(bf16, gpu).time_s
    )
