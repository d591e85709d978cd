"""What a CPU does around a step's passes, by hand: copies of weights, gathering, exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import (
    ActionOverhead,
    Device,
    MatmulPoint,
    Measurements,
    MemoryPoint,
)
from simulator.memory.held import Held
from simulator.traced.block_cost import BlockCost, price_block
from simulator.traced.comm_cost import price_collective
from simulator.traced.stage_cost import copy_seconds, gather_seconds
from simulator.traced.step_tail import exchange_buckets, price_tail
from simulator.values.plan import Recompute
from simulator.values.prediction import Interval
from tests.simulator.hand_made import cluster, device, layer, replicas


def points(op: str, seconds_per_byte: float, *, call_s: float = 0.0) -> tuple[MemoryPoint, ...]:
    return tuple(
        MemoryPoint(
            op=op, moved_bytes=size, time_s=size * seconds_per_byte + call_s, dtype="float32"
        )
        for size in (10**4, 10**6, 10**8)
    )


def cpu(*measured: MemoryPoint) -> Device:
    found = Measurements(
        source="points by hand",
        date="2026-11-22",
        matmul=(MatmulPoint(dtype="float32", batch=1, m=512, n=512, k=512, time_s=1e-5),),
        memory=measured,
    )
    return replace(device(measurements=found, launch_s=0.0), type="cpu")


def test_gradients_are_summed_in_buckets():
    mib = 2**20
    assert exchange_buckets(60 * mib) == [(25 * mib, 2), (10 * mib, 1)]
    assert exchange_buckets(25 * mib) == [(25 * mib, 1)]
    assert exchange_buckets(0) == []


def test_mixed_precision_copies_parameters_once_per_micro_batch():
    block = layer()
    cpus = cluster(of=cpu(*points("copy", 1e-9)))
    cost = price_block(block, recompute=Recompute.NONE, devices=(0,), cluster=cpus)

    def both(
        precision: str,
        on: str = "cpu",
        *,
        sharded: bool = True,
        once: bool = False,
        many: int = 4,
    ) -> tuple[float, float]:
        where = cluster(of=replace(cpus.device_at(0), type=on))
        group = replicas(
            where,
            dp=2,
            zero_stage=2 if sharded else 0,
            pipelined=once,
            precision=precision,
            num_microbatches=many,
        )
        return copy_seconds(cost, group)

    # Weights 4 bytes, working copy 2, gradient 4: 6 + 4 + 4 before and 6 + 8 + 8 behind.
    count = cost.parameter_count
    assert both("bf16") == pytest.approx((14e-9 * count, 22e-9 * count))
    nothing = (0.0, 0.0)
    assert both("bf16", once=True) == both("fp32") == both("bf16", "gpu") == nothing
    # Where no parameter is sharded the cast is in the block; the sum is read by every micro-batch
    # but the first, in its backward.
    for once in (False, True):
        before, behind = both("bf16", sharded=False, once=once)
        assert before == 0.0
        assert behind == pytest.approx(3 / 4 * 4e-9 * count)
        assert both("bf16", sharded=False, once=once, many=1) == nothing
    none = ActionOverhead(
        forward_cpu_s=0.0, forward_outside_s=0.0, backward_cpu_s=0.0, backward_outside_s=0.0
    )
    cost = replace(cost, action=none)
    assert both("bf16", sharded=False, once=True) == nothing


def test_frozen_parameters_are_cast_where_they_are_sharded_and_have_no_gradients():
    block = layer()
    frozen = replace(block, parameters=tuple(replace(p, trainable=False) for p in block.parameters))
    cpus = cluster(of=cpu(*points("copy", 1e-9)))
    cost = price_block(frozen, recompute=Recompute.NONE, devices=(0,), cluster=cpus)
    assert (cost.parameter_count, cost.trained_count) == (4 * 1024 * 1024, 0)

    def seconds(*, sharded: bool) -> tuple[float, float]:
        return copy_seconds(cost, replicas(cpus, dp=2, zero_stage=2 if sharded else 0))

    assert seconds(sharded=True) == pytest.approx((14e-9 * cost.parameter_count, 0.0))
    assert seconds(sharded=False) == (0.0, 0.0)
    # FSDP2 gathers them twice, and sums no gradients of theirs.
    fast = cluster(2, of=device())
    idle = Interval(value=0.0, low=0.0, high=0.0)  # no work hides a message
    still = replace(cost, forward=idle, backward=idle)
    trained = tuple(replace(parameter, trainable=True) for parameter in cost.parameters)
    both = replace(still, parameters=trained)

    def gathered(of: BlockCost) -> float:
        return gather_seconds(of, replicas(fast, dp=2, zero_stage=3))

    def collective(operation: str, bytes_each: float) -> float:
        size = bytes_each * cost.parameter_count
        return price_collective(operation, size, (0, 1), fast).time_s

    assert gathered(still) == pytest.approx(2 * collective("all_gather", 2.0))
    assert gathered(both) - gathered(still) == pytest.approx(collective("reduce_scatter", 4.0))


def test_frozen_parameters_are_neither_exchanged_nor_updated():
    cpus = cluster(2, of=cpu(*points("optimizer", 1e-10)))

    def tail(trained: tuple[int, ...], frozen: int, zero_stage: int = 0) -> tuple[float, float]:
        group = replicas(cpus, dp=2, zero_stage=zero_stage, pipelined=True)
        found = price_tail(Held(trained=trained, frozen=frozen), group)
        return found.exchange.value, found.optimizer.value

    assert tail((1000,), 10**8) == tail((1000,), 0)
    assert tail((), 10**8)[0] == 0.0
    # ZeRO-1 and 2 gather them for the next step.
    for zero_stage in (1, 2):
        assert tail((1000,), 10**8, zero_stage)[0] > tail((1000,), 0, zero_stage)[0]


def test_single_numbers_are_summed_in_fp32_each_with_a_flag():
    # 4 bytes of the number and 4 of whether the replica has a gradient of it.
    on, count = cluster(2), 10**6
    group = replicas(on, dp=2, zero_stage=1)
    alone, numbers = (
        price_tail(Held(trained=(1000,), frozen=0, single=single), group).exchange.value
        for single in (0, count)
    )
    expected = price_collective("all_reduce", 8 * count, (0, 1), on).time_s
    assert numbers - alone == pytest.approx(expected)


@pytest.mark.parametrize(("zero_stage", "shards"), [(0, 1), (1, 2)])
@pytest.mark.parametrize("first", [0, 2])
def test_gradients_of_whole_parameters_are_summed_by_the_ranks_of_tp(zero_stage, shards, first):
    """Two ranks from the replica's first device on, within a node of three or across two; 4 bytes
    of a replica's share each."""
    on = cluster(2, 3)
    group = replicas(on, tp=2, dp=2, zero_stage=zero_stage)
    group = replace(group, devices=(first, first + 2))
    alone, shared = (
        price_tail(Held(trained=(1000,), frozen=0, summed=summed), group).exchange.value
        for summed in (0, 10**6)
    )
    expected = price_collective("all_reduce", 4e6 / shards, (first, first + 1), on).time_s
    assert shared - alone == pytest.approx(expected)


def test_blocks_without_parameters_copy_nothing():
    cpus = cluster(of=cpu(*points("copy", 1e-9, call_s=1e-5)))
    bare = replace(layer(), parameters=(), kind="bare")
    cost = price_block(bare, recompute=Recompute.NONE, devices=(0,), cluster=cpus)
    for sharded in (False, True):
        group = replicas(cpus, dp=2, zero_stage=2 if sharded else 0)
        assert copy_seconds(cost, group) == (0.0, 0.0)


def test_copies_to_compute_with_are_made_anew_behind_the_optimizer():
    cpus = cluster(of=cpu(*points("copy", 1e-9), *points("optimizer", 1e-10)))

    def seconds(precision: str, zero_stage: int) -> float:
        group = replicas(cpus, dp=2, zero_stage=zero_stage, precision=precision, pipelined=True)
        held = Held(trained=(50_000, 30_000), frozen=1_000_000)
        return price_tail(held, group).optimizer.value

    # 4 bytes are read and 2 written of each parameter, on every replica; shards need no copy here.
    assert seconds("bf16", 0) - seconds("fp32", 0) == pytest.approx(80_000 * 6e-9)
    assert seconds("bf16", 1) == seconds("fp32", 1)
