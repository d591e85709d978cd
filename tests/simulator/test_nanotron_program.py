"""nanotron's first rank against torch's allocator: by hand, against counts, against peaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.host_lead import HostLead, fitted_shares, lead_regimes
from simulator.training_run.memory.footprint import footprint
from simulator.training_run.nanotron.nanotron_program import peak_of_program
from simulator.training_run.nanotron.nanotron_shapes import nanotron_shapes
from simulator.training_run.nanotron.reserved_peak import (
    SMALL_TENSORS_BYTES,
    likelier_bytes,
    program_peak,
    reported_peak_bytes,
)
from simulator.training_run.run.training_run import TrainingRun

GIB, MIB = 2**30, 2**20
THREE_B = Transformer(
    num_layers=28,
    hidden_size=3072,
    ffn_size=8192,
    num_heads=32,
    num_kv_heads=32,
    head_size=96,
    vocab_size=131_072,
    gated=True,
    tied_embeddings=True,
)
RUN = TrainingRun(
    id="r",
    model=THREE_B,
    device="h100-sxm-80gb",
    num_devices=8,
    node_devices=8,
    dp=8,
    tp=1,
    pp=1,
    vpp=1,
    cp=1,
    expert_parallel=1,
    sequence_parallel=True,
    zero_stage=1,
    recompute="none",
    micro_batch=1,
    global_batch=256,
    seq_len=4096,
    precision="bf16",
    schedule="1f1b",
    stack="nanotron",
)


def _reserved(run: TrainingRun, launches_ahead: int = 0) -> float:
    shapes = nanotron_shapes(run)
    assert shapes is not None
    return peak_of_program(
        shapes, capacity_bytes=math.inf, launches_ahead=launches_ahead
    ).reserved_bytes


# GiB on the first rank, from the benchmarks of the Ultra-Scale playbook (ultra-3B-0948, -1048,
# -0690, -0658, -0675, -0795); nothing is fitted without tensor parallelism.
@pytest.mark.parametrize(
    ("dp", "pp", "zero_stage", "micro_batch", "peak"),
    [
        (256, 1, 1, 1, 45.6),
        (256, 2, 1, 1, 25.8),
        (32, 2, 1, 1, 36.7),
        (16, 2, 0, 1, 59.6),
        (8, 4, 0, 1, 42.3),
        (128, 1, 1, 2, 64.3),
    ],
)
def test_published_peaks(dp: int, pp: int, zero_stage: int, micro_batch: int, peak: float) -> None:
    run = replace(RUN, dp=dp, pp=pp, num_devices=dp * pp, zero_stage=zero_stage)
    run = replace(run, micro_batch=micro_batch)
    found = reported_peak_bytes(run)
    assert found is not None
    assert found / GIB == pytest.approx(peak, rel=0.03)


def test_what_lasts() -> None:
    shapes = nanotron_shapes(replace(RUN, zero_stage=0))
    assert shapes is not None
    # A layer has 4 h^2 + 3 h f weights, the tied table V h.
    weights = 28 * (4 * 3072**2 + 3 * 3072 * 8192) + 131_072 * 3072
    assert shapes.num_parameters == weights
    # bf16 weights, fp32 gradients and fp32 masters; the moments are made in the first step.
    assert shapes.lasting_bytes == 10 * weights
    sharded = nanotron_shapes(RUN)
    assert sharded is not None
    assert sharded.lasting_bytes == 6.5 * weights


def test_a_model_of_one_layer_by_hand() -> None:
    # One layer on a rank without embedding or head, tp 1: every tensor is its own. h = 2048,
    # f = 8192, 2048 tokens. In MiB: hidden 8, query, key and value 24, inner 32.
    model = replace(THREE_B, num_layers=1, hidden_size=2048, ffn_size=8192, head_size=64)
    run = replace(RUN, model=model, dp=1, num_devices=1, zero_stage=0, seq_len=2048, global_batch=1)
    shapes = nanotron_shapes(run)
    assert shapes is not None
    shapes = replace(
        shapes,
        has_embedding=False,
        has_head=False,
        parameters=tuple(p for p in shapes.parameters if p[0] != "embedding"),
    )
    found = peak_of_program(shapes, capacity_bytes=math.inf, launches_ahead=0)
    # Kept: input, normed, middle, normed middle and the output 8 each, projections 24, keys and
    # values 16, attention 8, the sums of 32 heads 0.25 (small pool), gate and up 64, activated and
    # product 32 each: 216 with what is new in the backward pass of the feed-forward: its output's
    # gradient 8, the product's 32 and the down projection's 32; the workspaces are 64, the moments
    # of the second step 8 bytes for each of 67,108,864 weights, 512.
    kept = 5 * 8 + 24 + 16 + 8 + 64 + 32 + 32
    peak = kept + 64 + 512 + 8 + 32 + 32
    assert shapes.num_parameters == 64 * MIB + 4 * 2048**2 - 16 * MIB
    # The least that a peak can be is at the first matmul of the backward pass; later moments add.
    dynamic = (found.allocated_bytes - shapes.lasting_bytes) / MIB
    assert peak <= dynamic <= peak + 3 * 32 + 64
    assert found.reserved_bytes >= found.allocated_bytes


def test_the_parameters_that_zero_gathers_fit_no_block() -> None:
    run = replace(RUN, dp=128, num_devices=128)
    shapes = nanotron_shapes(run)
    assert shapes is not None
    found = peak_of_program(shapes, capacity_bytes=math.inf, launches_ahead=0)
    # bf16 of all parameters in one piece, which no activation's block is as large as.
    assert found.reserved_bytes - found.allocated_bytes > 2 * shapes.num_parameters
    whole = nanotron_shapes(replace(run, dp=1, num_devices=1))
    assert whole is not None
    alone = peak_of_program(whole, capacity_bytes=math.inf, launches_ahead=0)
    assert alone.reserved_bytes - alone.allocated_bytes < 2 * shapes.num_parameters


def test_a_host_that_is_ahead_reserves_more_with_tensor_parallelism() -> None:
    run = replace(RUN, tp=8, dp=1, zero_stage=0, micro_batch=4)
    found = [_reserved(run, launches) for launches in (0, 100, 400, 800)]
    assert found == sorted(found)
    whole = 2 * 4 * 4096 * 3072
    # 800 launches are some 20 layers of the 28: two whole tensors each, and of backward passes.
    assert 40 <= (found[-1] - found[0]) / whole <= 60
    alone = replace(run, tp=1, dp=8)
    assert _reserved(alone, 800) == _reserved(alone)


def test_layers_that_run_again_keep_their_input() -> None:
    run = replace(RUN, micro_batch=2)
    again = replace(run, recompute="full")
    # Of 28 layers 27 keep 14 s b h and more less, in bf16.
    assert _reserved(run) - _reserved(again) > 27 * 10 * 2 * 2 * 4096 * 3072
    assert _reserved(replace(again, micro_batch=4)) > _reserved(again)


def test_more_micro_batches_than_are_in_flight_change_nothing() -> None:
    run = replace(RUN, pp=4, dp=8, num_devices=32)
    assert _reserved(replace(run, global_batch=8 * 40)) == _reserved(
        replace(run, global_batch=8 * 12)
    )
    # All-forward-all-backward keeps every micro-batch.
    gpipe = replace(run, schedule="gpipe", global_batch=8 * 12)
    assert _reserved(gpipe) > 2 * _reserved(replace(run, global_batch=8 * 12))


def test_what_no_program_covers_is_counted() -> None:
    for other in (
        replace(RUN, recompute="selective"),
        replace(RUN, optimizer_offload=True),
        replace(RUN, activation_offload=0.5),
        replace(RUN, tp=8, dp=1, sequence_parallel=False),
    ):
        assert nanotron_shapes(other) is None
        assert program_peak(other, 0) is None
        assert footprint(other).shown_bytes == footprint(other, runs_program=False).shown_bytes
    assert footprint(RUN).shown_bytes == reported_peak_bytes(RUN)
    assert footprint(RUN).needed_bytes == footprint(RUN, runs_program=False).needed_bytes


def test_the_likelier_peak_has_the_least_expected_error() -> None:
    for share in (0.1, 0.4, 0.52, 0.6, 0.9):
        low, high = 20.0, 26.0
        chosen = likelier_bytes(low, high, share)

        def expected(value: float, share: float = share) -> float:
            return share * abs(value / 26.0 - 1) + (1 - share) * abs(value / 20.0 - 1)

        assert expected(chosen) <= min(expected(20.0 + 0.1 * step) for step in range(61)) + 1e-12
    # Odds of 26 / 20 are what `high` needs.
    assert likelier_bytes(20.0, 26.0, 0.56) == 20.0
    assert likelier_bytes(20.0, 26.0, 0.57) == 26.0


def test_shares_shrink_towards_wider_regimes() -> None:
    regimes = [("a, b", "a", "*")] * 2 + [("a, c", "a", "*")] * 2 + [("d, b", "d", "*")] * 4
    found = fitted_shares(regimes, [1, 1, 1, 0, 0, 0, 0, 0], [1.0] * 8)
    # 2 rows of the wider share stand in: (3 + 2 / 2) / (8 + 2), then (3 + 0.8) / 6 and so on.
    assert found["*"] == pytest.approx(0.4)
    assert found["a"] == pytest.approx(3.8 / 6)
    assert found["a, b"] == pytest.approx((2 + 2 * 3.8 / 6) / 4)
    assert found["d, b"] < found["d"] < found["*"]


def test_regimes_and_launches_of_a_run() -> None:
    run = replace(RUN, tp=16, dp=4, pp=2, num_devices=128)
    names = lead_regimes(run)
    # 4 h^2 + 3 h f weights, 6 each, 4096 tokens on 16 devices: 0.17 TFLOP.
    assert names[0] == "pp 2, tp in two nodes, 16 to 63 nodes, short layers, ZeRO 1"
    assert names[-2:] == ("pp 2", "*")
    lead = HostLead(
        source="s",
        method="m",
        date="2026-11-21",
        launches=9,
        two_stage_launches=6,
        pipeline_launches=4,
        share={"pp 2": 0.3, "*": 0.6},
    )
    # 0.17 TFLOP at 400 TFLOP/s are 0.4 ms, under half of the host's 4.5 + 16 x 2.45 ms; 60 times as
    # many tokens make 26 ms of it.
    assert (lead.share_of(run), lead.launches_of(run)) == (0.3, 0)
    assert lead.launches_of(replace(run, micro_batch=60, global_batch=240)) == 6
    # In one node no message keeps the host waiting: 1.7 ms are under half of 4.5 ms, 3.4 ms not.
    near = replace(run, num_devices=8, tp=4, dp=1)
    assert lead.launches_of(near) == 0
    assert lead.launches_of(replace(near, micro_batch=2)) == 6
    assert lead.launches_of(replace(run, pp=4, num_devices=256)) == 4
    alone = replace(run, pp=1)
    assert (lead.share_of(alone), lead.launches_of(alone)) == (0.6, 9)
    assert SMALL_TENSORS_BYTES < 0.01 * 45 * GIB
