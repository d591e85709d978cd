"""What kernels take inside a step: by hand from the shipped coefficients; what stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_device
from profiles.model.graph import AttentionShape, MatmulShape, Op, OpKind, Phase
from simulator.traced.in_step import eager_steps, exposed_seconds, price_in_step, step_overhead_s
from simulator.traced.op_cost import price_op
from simulator.training_run.step.coefficients import shipped_coefficients
from tests.simulator.hand_made import device

N = 8192
PRODUCT = Op(
    name="mm",
    kind=OpKind.MATMUL,
    phase=Phase.FORWARD,
    dtype="bfloat16",
    module="",
    matmul=MatmulShape(batch=1, m=N, n=N, k=N),
    attention=None,
    work_flop=2 * N**3,
    read_bytes=4 * N * N,
    written_bytes=2 * N * N,
)
ADDITION = replace(PRODUCT, name="add", kind=OpKind.MEMORY, matmul=None, work_flop=N * N)
ATTENTION = replace(
    PRODUCT,
    name="flash",
    kind=OpKind.ATTENTION,
    matmul=None,
    attention=AttentionShape(
        batch=4, heads=32, kv_heads=32, q_len=4096, kv_len=4096, head_dim=128, causal=True
    ),
)


def test_a_product_runs_at_the_power_limit_where_that_is_slower() -> None:
    h100 = get_device("h100-sxm")
    values = shipped_coefficients().values
    burst = values["matmul.*"] * price_op(PRODUCT, h100).time_s
    power = values["power.h100-sxm-80gb.16"] * 2 * N**3 / h100.peak("bfloat16").value
    # So large a product is bound by the power limit; the norm joins the two from above.
    assert power > burst
    assert price_in_step(PRODUCT, h100).time_s == pytest.approx(
        (burst**6 + power**6) ** (1 / 6), rel=1e-12
    )


def test_types_of_32_bits_and_cpus_are_as_alone() -> None:
    h100 = get_device("h100-sxm")
    wide = replace(PRODUCT, dtype="float32")
    assert price_in_step(wide, h100).time_s == price_op(wide, h100).time_s
    cpu = replace(device(), type="cpu")
    for op in (PRODUCT, ADDITION):
        assert price_in_step(op, cpu) == price_op(op, cpu)
    assert exposed_seconds(3.0, 5.0, cpu) == 3.0
    assert step_overhead_s(cpu) == 0.0


def test_memory_bound_kernels_take_the_fitted_multiple() -> None:
    a100 = get_device("a100-sxm-80gb")
    alone, inside = price_op(ADDITION, a100), price_in_step(ADDITION, a100)
    for name in ("time_s", "low_s", "high_s"):
        ratio = getattr(inside, name) / getattr(alone, name)
        assert ratio == pytest.approx(eager_steps().memory)


def test_what_waits_for_its_launch_stays() -> None:
    a100 = get_device("a100-sxm-80gb")
    small = replace(ADDITION, read_bytes=64, written_bytes=64)
    assert price_op(small, a100).limit == "launch"
    assert price_in_step(small, a100) == price_op(small, a100)


def test_flash_attention_2_on_hopper_is_an_a100s_half_as_fast_again() -> None:
    """335 / 225 times as fast (Dao 2023, section 4.1)."""
    a100, h100 = get_device("a100-sxm-80gb"), get_device("h100-sxm")
    ratio = price_in_step(ATTENTION, a100).time_s / price_in_step(ATTENTION, h100).time_s
    assert ratio == pytest.approx(335 / 225)
    alone = price_op(ATTENTION, a100).time_s
    assert price_in_step(ATTENTION, a100).time_s == pytest.approx(eager_steps().attention * alone)


def test_messages_cost_what_does_not_hide() -> None:
    h100, share = get_device("h100-sxm"), eager_steps().exposed
    assert exposed_seconds(2.0, 5.0, h100) == pytest.approx(2.0 * share)
    assert exposed_seconds(7.0, 5.0, h100) == pytest.approx(2.0 + 5.0 * share)


def test_the_file_says_how_well_it_fits() -> None:
    file = eager_steps()
    assert file.runs >= 50
    assert file.residual < file.left_out_model < 0.05
    assert set(file.left_out_device) == {"a100-sxm-80gb", "h100-sxm-80gb"}
    assert max(file.left_out_device.values()) < 0.08
    assert 0.0 <= file.exposed <= 1.0
