"""What kernels take inside a step: by hand from the shipped coefficients; what stays as it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.model.graph import AttentionShape, MatmulShape, Op, OpKind, Phase
from profiles.model.kernels import DeviceKernel, Kernel
from simulator.traced.comm_cost import price_collective
from simulator.traced.in_step import (
    exposed_seconds,
    host_of,
    in_step,
    message_in_step,
    paced,
    prices_in_step,
)
from simulator.traced.kernel_seconds import kernels_costs, step_width
from simulator.traced.op_cost import price_op
from simulator.training_run.framework.executor_states import Software
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.values.prediction import Interval
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


VALUES = shipped_coefficients().values
LEVEL = VALUES["level.torch-fsdp"]


def test_a_product_runs_at_the_power_limit_where_that_is_slower() -> None:
    h100 = get_device("h100-sxm")
    burst = VALUES["matmul.*"] * price_op(PRODUCT, h100).time_s
    power = VALUES["power.h100-sxm-80gb.16"] * 2 * N**3 / h100.peak("bfloat16").value
    # So large a product is bound by the power limit; the norm joins the two from above.
    assert power > burst
    assert prices_in_step([PRODUCT], h100)[0].time_s == pytest.approx(
        LEVEL * (burst**6 + power**6) ** (1 / 6), rel=1e-12
    )


def test_what_a_cpu_took_stays() -> None:
    cpu = replace(device(), type="cpu")
    for op in (PRODUCT, ADDITION):
        assert prices_in_step([op], cpu)[0] == price_op(op, cpu)
    assert exposed_seconds(3.0, 5.0, cpu) == 3.0
    assert host_of(Software.EXECUTOR, cpu).forward_us == 0.0
    assert in_step(cpu).message(4) == 1.0


def test_kernels_that_were_not_measured_take_their_share_of_peak_or_bandwidth() -> None:
    a100 = get_device("a100-sxm-80gb")
    kernel = DeviceKernel(
        kernel=Kernel.ELEMENTWISE,
        dtype="bfloat16",
        read_bytes=ADDITION.read_bytes,
        written_bytes=ADDITION.written_bytes,
    )
    inside = prices_in_step([replace(ADDITION, kernels=(kernel,))], a100)[0]
    assert inside.time_s == pytest.approx(LEVEL * kernels_costs([(kernel,)], a100)[0].time_s)
    assert inside.low < inside.time_s < inside.high
    plain = prices_in_step([replace(ADDITION, kernels=(kernel,))], a100, Software.TORCH)[0]
    assert LEVEL * plain.time_s == pytest.approx(inside.time_s)
    # At least what the bytes take that no cache holds.
    bytes_s = 6 * N * N / a100.memory_bandwidth_bytes_per_s.value
    assert 0.8 * bytes_s < plain.time_s < 2 * bytes_s


def test_flash_attention_2_on_hopper_is_an_a100s_half_as_fast_again() -> None:
    """335 / 225 times as fast (Dao 2023, section 4.1)."""
    a100, h100 = get_device("a100-sxm-80gb"), get_device("h100-sxm")
    older, newer = (prices_in_step([ATTENTION], each)[0].time_s for each in (a100, h100))
    assert older / newer == pytest.approx(335 / 225)
    alone = price_op(ATTENTION, a100).time_s
    wanted = LEVEL * VALUES["attention.flash-2-kernels"] * alone
    assert prices_in_step([ATTENTION], a100)[0].time_s == pytest.approx(wanted)


def test_messages_cost_what_does_not_hide() -> None:
    h100, share = get_device("h100-sxm"), VALUES["gather_exposed.*"]
    for message_s, compute_s in ((2.0, 5.0), (7.0, 5.0)):
        longer = (message_s**6 + compute_s**6) ** (1 / 6) - compute_s
        wanted = longer + share * min(message_s, compute_s)
        assert exposed_seconds(message_s, compute_s, h100) == pytest.approx(wanted)


def test_a_device_waits_for_a_host_that_launches_more_slowly() -> None:
    h100 = get_device("h100-sxm")
    host = host_of(Software.EXECUTOR, h100)
    own = VALUES["launch_us.*"] * LEVEL * load_framework("torch").dispatch
    assert host.forward_us == host.backward_us == pytest.approx(own)
    short, long = (Interval(value=s, low=s / 2, high=2 * s) for s in (1e-6, 10.0))
    assert paced(short, 0.033, h100).value == pytest.approx(0.033, rel=1e-4)
    assert paced(long, 0.033, h100).value == pytest.approx(10.0)
    assert paced(short, 0.0, h100) == short
    # The norm of both seconds, and of both at each end.
    alike = paced(Interval(value=0.03, low=0.02, high=0.05), 0.04, h100)
    spread = math.exp(step_width(h100))
    both = ((0.03, 0.04), (0.02, 0.04 / spread), (0.05, 0.04 * spread))
    wanted = [(busy**6 + host**6) ** (1 / 6) for busy, host in both]
    assert [alike.value, alike.low, alike.high] == pytest.approx(wanted)


def test_messages_between_nodes_meet_others() -> None:
    two = get_cluster("2x8xh100-sxm")
    inside, across = tuple(range(8)), tuple(range(16))
    within = message_in_step("all_gather", 1e9, inside, two).time_s
    assert within == pytest.approx(
        LEVEL * VALUES["inner.*"] * price_collective("all_gather", 1e9, inside, two).time_s
    )
    between = message_in_step("all_gather", 1e9, across, two).time_s
    collided = VALUES["outer.*"] * (1 + VALUES["congestion.*"])
    alone = price_collective("all_gather", 1e9, across, two).time_s
    assert between == pytest.approx(LEVEL * collided * alone)
