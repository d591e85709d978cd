"""Shards in host memory (FSDP2's CPUOffloadPolicy): which plans, bytes and seconds by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.document import decode, encode
from profiles.errors import InputError
from profiles.hardware.catalogue.host import host_of
from simulator.memory.footprint import footprint
from simulator.memory.held import (
    Elements,
    Held,
    executor_static_bytes,
    host_bytes,
    padded_elements,
)
from simulator.memory.host_offload import (
    ADAM_REACH,
    gradient_sums_s,
    optimizer_host_s,
    shard_copies_s,
)
from simulator.traced.block_cost import price_block
from simulator.traced.predict import predict
from simulator.traced.stage_cost import gather_seconds
from simulator.traced.step_tail import Tie, price_tail, price_tie
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import price_runs
from simulator.training_run.work.rank_parameters import layer_parameters, updated_parameters
from simulator.values.plan import Plan, Recompute
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Part
from tests.simulator.described_runs import LLAMA_RUN, changed
from tests.simulator.hand_made import Traced, cluster, device, plan, replicas

HOST = host_of("h100-sxm-80gb")
LINK, MEMORY = HOST.link_bytes_per_s, ADAM_REACH * HOST.memory_bandwidth_bytes_per_s
OWN = changed(LLAMA_RUN, stack="torch", optimizer_offload=True)
NODE = cluster(1, 4, of=device(name="h100-sxm-80gb"))


@pytest.mark.parametrize(
    ("zero", "words"), [(0, "zero_stage=0 shards none; use zero_stage 1, 2 or 3")]
)
def test_nothing_is_offloaded_where_nothing_is_sharded(zero: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        replace(plan(dp=4, zero_stage=zero), optimizer_offload=True)


def test_a_file_without_the_key_offloads_nothing() -> None:
    with_offload = replace(plan(dp=4, zero_stage=3), optimizer_offload=True)
    written = encode(with_offload)
    assert decode(Plan, written, where="plan") == with_offload
    del written["optimizer_offload"]
    assert decode(Plan, written, where="plan") == plan(dp=4, zero_stage=3)
    assert plan_title(with_offload) == f"{plan_title(plan(dp=4, zero_stage=3))}, " + (
        "optimizer on the host"
    )


def test_a_cpu_is_the_host_itself() -> None:
    asked = replace(plan(dp=4, zero_stage=3, precision="fp32"), optimizer_offload=True)
    on = cluster(1, 4, of=replace(device(), type="cpu"))
    with pytest.raises(
        InputError, match=r"states are in host memory already.*without --optimizer-off"
    ):
        predict(asked, Traced(8), on)


@pytest.mark.parametrize(
    ("zero", "pp", "parameters", "gradients"),
    [(3, 1, 0.0, 0.0), (2, 1, 2.0, 0.0), (1, 1, 2.0, 4.0), (3, 2, 0.0, 4.0), (2, 2, 2.0, 4.0)],
)
def test_what_stays_on_the_device(zero: int, pp: int, parameters: float, gradients: float) -> None:
    """Of a million bf16 parameters on four replicas: gathered weights below ZeRO 3, whole sums of
    gradients where they are sent once per step. In both counts, of blocks and of layouts."""
    group = replace(replicas(NODE, dp=4, pp=pp, zero_stage=zero), offloaded=True)
    held = Elements(total=1e6, trained=1e6, gradients=1e6)
    static = executor_static_bytes(held, group)
    assert (static.parameters, static.gradients, static.optimizer) == (
        1e6 * parameters,
        1e6 * gradients,
        0.0,
    )
    run = changed(OWN, zero_stage=zero, dp=4, pp=pp, schedule="1f1b")
    kept, rank = footprint(changed(run, optimizer_offload=False)), footprint(run).ranks[0]
    assert rank.optimizer_bytes == 0.0
    # ZeRO 3 and 2 hold a fourth of 4-byte weights, gradients and moments without.
    whole = kept.ranks[0].optimizer_bytes / (8 if zero == 3 else 12) * 4
    assert rank.parameters_bytes == pytest.approx(whole * parameters)
    assert rank.gradients_bytes == pytest.approx(whole * gradients)


def test_the_host_holds_powers_of_two() -> None:
    """A shard of 3 MiB takes 4 in pinned memory, its gradient as much, its moments 6; a frozen one
    of 2 MiB 4 at most."""
    mib = 2**20
    held = Held(trained=(3 * mib,), frozen=2 * mib)
    group = replace(replicas(NODE, dp=4, zero_stage=3), offloaded=True)
    assert host_bytes(held, group) == (4 + 4 + 6 + 4) * mib
    assert host_bytes(held, replicas(NODE, dp=4, zero_stage=3)) == 0.0
    # Of a layout 24 bytes a parameter at most.
    rank = footprint(OWN).ranks[0]
    updated = updated_parameters(OWN, load_framework("torch"))
    assert rank.host_bytes == pytest.approx(24 * updated)
    assert footprint(changed(OWN, optimizer_offload=False)).ranks[0].host_bytes == 0.0


@pytest.mark.parametrize("stack", ["torch", "torch-fsdp"])
def test_shards_are_copied_with_every_gather(stack: str) -> None:
    """ZeRO 3, two micro-batches of two gathers and a sum, 4 bytes of a shard each; the second
    gradient is added on the host."""
    run, framework = changed(OWN, stack=stack), load_framework(stack)
    assert run.num_microbatches == 2
    shard = layer_parameters(run) / 8
    assert shard_copies_s(run, framework) == pytest.approx(3 * 4 * shard / LINK)
    assert optimizer_host_s(run, framework, 1e9) == pytest.approx(28e9 / MEMORY)
    assert gradient_sums_s(run, framework, 1e9) == pytest.approx(12e9 / MEMORY)
    stays = changed(run, optimizer_offload=False)
    x = features([stays, run])
    assert x.gather_host_s.tolist() == [0.0, shard_copies_s(run, framework)]
    parts = price_runs([stays, run]).parts
    assert parts[Part.GATHER][1] > parts[Part.GATHER][0]
    assert (parts[Part.HOST][0], parts[Part.OPTIMIZER][1]) == (0.0, 0.0)
    updated = updated_parameters(run, framework)
    level = parts[Part.HOST][1] / (x.host_step_s[1] + x.host_sum_s[1])
    assert level * 40 * updated / MEMORY == pytest.approx(parts[Part.HOST][1])
    # Of four micro-batches each but the first is added.
    four = price_runs([changed(run, global_batch=32)]).parts
    assert four[Part.HOST][0] == pytest.approx(parts[Part.HOST][1] * (28 + 3 * 12) / 40)


@pytest.mark.parametrize(("zero", "pp"), [(1, 1), (2, 2)])
def test_shards_are_copied_once_per_step_where_weights_stay_gathered(zero: int, pp: int) -> None:
    run = changed(OWN, zero_stage=zero, pp=pp, dp=4, schedule="1f1b")
    framework = load_framework("torch")
    assert shard_copies_s(run, framework) == 0.0
    expected = 28e9 / MEMORY + 2 * 4e9 / LINK
    assert optimizer_host_s(run, framework, 1e9) == pytest.approx(expected)
    assert gradient_sums_s(run, framework, 1e9) == 0.0


def test_other_frameworks_keep_their_price() -> None:
    """Megatron's optimizer in host memory leaves weights where they are."""
    run = changed(OWN, stack="megatron-core", zero_stage=1)
    assert shard_copies_s(run, load_framework("megatron-core")) == 0.0


def test_block_by_block_by_hand() -> None:
    """A million trained parameters on four replicas, four micro-batches."""
    held = Held(trained=(10**6,), frozen=0)
    group = replicas(NODE, dp=4, zero_stage=3)
    away = replace(group, offloaded=True)
    step = price_tail(Held(trained=(), frozen=0), away).optimizer.value
    update = price_tail(held, away).optimizer
    assert update.value - step == pytest.approx((28 + 3 * 12) * 250e3 / MEMORY)
    assert update.low < update.value < update.high
    once = replace(away, zero_stage=1)
    per_step = price_tail(held, once).optimizer.value - step
    assert per_step == pytest.approx(28 * 250e3 / MEMORY + 2 * 4 * 250e3 / LINK)
    tie = Tie(elements=10**6, devices=(0, 1))
    more = price_tie(tie, away).value - price_tie(tie, group).value
    assert more == pytest.approx(2 * 4 * 250e3 / LINK)


def test_a_block_waits_for_its_copies() -> None:
    """Two gathers and a sum; a profiled device hides none."""
    kind = Traced(8).at(1).kinds[1]
    block = price_block(kind, recompute=Recompute.NONE, devices=(0,), cluster=NODE)
    group = replicas(NODE, dp=4, zero_stage=3)
    waits, more = (gather_seconds(block, g) for g in (group, replace(group, offloaded=True)))
    shard = sum(padded_elements(p.spec, 4) for p in kind.parameters) / 4
    assert more - waits == pytest.approx(3 * 4 * shard / LINK)
