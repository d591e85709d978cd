"""Coefficients: whose they are, where values come from, and that each of them matters."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import numpy as np
import pytest

from profiles.hardware.catalogue.catalog import device_names, get_link, link_names
from simulator.training_run.framework.framework import framework_names
from simulator.training_run.reading.network_text import network_of
from simulator.training_run.step.coefficient_kinds import KINDS, Kind
from simulator.training_run.step.coefficient_owner import (
    _ARCHITECTURES,
    _GENERATIONS,
    family_of,
    owner_of,
    processor_of,
)
from simulator.training_run.step.coefficients import CoefficientFile, assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL, figures

KIND = {kind.name: kind for kind in KINDS}
# Together these touch every part of a step.
VARIED = (
    GPT_RUN,
    replace(GPT_RUN, id="zero-1", dp=2, num_devices=128, zero_stage=1, recompute="full"),
    replace(GPT_RUN, id="wide", tp=16, pp=4),
    LLAMA_RUN,
    replace(LLAMA_RUN, id="two nodes", num_devices=16, dp=16),
    replace(LLAMA_RUN, id="experts", model=MIXTRAL, expert_parallel=8, stack="megatron-core"),
    replace(LLAMA_RUN, id="fp8", precision="fp8", stack="nanotron", zero_stage=1, tp=2, dp=4),
    replace(LLAMA_RUN, id="context", cp=2, dp=4, stack="megatron-core", zero_stage=1),
    # The collectives of V100 were not measured: a formula with latency steps serves.
    replace(GPT_RUN, id="old", device="v100-sxm2-16gb"),
    # Hosts that wait for messages: calm, and stalled in groups over four nodes.
    replace(LLAMA_RUN, id="calm", stack="nanotron", tp=4, pp=2, dp=2, num_devices=16, zero_stage=0),
    replace(GPT_RUN, id="blocked", stack="nanotron", tp=32, pp=4, dp=2, num_devices=256),
    # Layers with a state, and casts.
    replace(
        LLAMA_RUN,
        id="hybrid",
        model=figures("Nemotron 3 Nano 30B-A3B"),
        expert_parallel=8,
        stack="megatron-core",
        precision="fp8",
        zero_stage=1,
    ),
)


def file_of(**values: float) -> CoefficientFile:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return CoefficientFile(source="s", method="m", date="d", runs=1, residual=0.1, values=named)


def test_kinds_say_what_they_mean_and_where_they_start() -> None:
    assert len(KIND) == len(KINDS)
    owners = {"", "device", "device and bits", "stack", "stack and sharding", "network"}
    for kind in KINDS:
        assert kind.owner in owners, kind.name
        assert kind.start > 0.0
        assert kind.spread > 0.0, kind.name
        assert len(kind.meaning) > 20, kind.name
        assert kind.source, kind.name


@pytest.mark.parametrize(
    ("kind", "owner"),
    [
        ("matmul", "a100-sxm-80gb"),
        ("power", "a100-sxm-80gb.16"),
        ("attention", "megatron-2021"),
        ("reduce_rank_us", "megatron-2021.whole"),
        ("outer", "infiniband"),
        ("inner_step_us", "*"),
    ],
)
def test_owners(kind: str, owner: str) -> None:
    assert owner_of(KIND[kind], GPT_RUN) == owner


def test_bits_and_sharding_tell_owners_apart() -> None:
    power, latency = KIND["power"], KIND["reduce_rank_us"]
    bits = [
        owner_of(power, replace(LLAMA_RUN, precision=word))
        for word in ("fp32", "bf16", "fp8", "nvfp4")
    ]
    assert bits == [f"h100-sxm-80gb.{n}" for n in (32, 16, 8, 4)]
    assert owner_of(latency, LLAMA_RUN) == "torch-fsdp.sharded"


def test_every_run_gets_its_owners_values() -> None:
    """Two runs of one device and different stacks share matmul and not attention."""
    other = replace(LLAMA_RUN, stack="megatron-core")
    assigned = assign([LLAMA_RUN, other, GPT_RUN])
    values = np.arange(1.0, 1.0 + len(assigned.names))
    found = assigned.of(values)
    assert set(found) == set(KIND)
    assert found["matmul"][0] == found["matmul"][1] != found["matmul"][2]
    assert len(set(found["attention"].tolist())) == 3
    for kind, index in assigned.index.items():
        for run, place in zip((LLAMA_RUN, other, GPT_RUN), index, strict=True):
            assert assigned.names[place] == f"{kind}.{owner_of(KIND[kind], run)}"
            assert KINDS[assigned.kinds[place]].name == kind
    assert assigned.starts()[assigned.names.index("power.h100-sxm-80gb.16")] == KIND["power"].start


def test_a_file_is_asked_for_the_owner_then_the_kind_then_the_start() -> None:
    assigned = assign([GPT_RUN, LLAMA_RUN])
    file = file_of(
        **{"matmul.a100-sxm-80gb": 0.8, "matmul.*": 0.7, "passes.*": 2.0, "other.thing": 9.0}
    )
    values = dict(zip(assigned.names, assigned.from_file(file).tolist(), strict=True))
    assert values["matmul.a100-sxm-80gb"] == 0.8
    assert values["matmul.h100-sxm-80gb"] == 0.7
    assert values["passes.torch-fsdp"] == 2.0
    assert values["attention.torch-fsdp"] == KIND["attention"].start


def test_a_device_without_rows_takes_its_architectures_value() -> None:
    """H200 and H100 are Hopper; a framework's family is its generation."""
    run = replace(LLAMA_RUN, device="h200-sxm")
    assert family_of(KIND["matmul"], run) == "hopper"
    assert family_of(KIND["power"], run) == "hopper.16"
    assert family_of(KIND["passes"], run) == "torch"
    file = file_of(**{"matmul.*": 0.7, "matmul.hopper.*": 0.9, "matmul.h100-sxm-80gb": 0.8})
    assigned = assign([run, LLAMA_RUN, GPT_RUN])
    found = assigned.of(assigned.from_file(file))["matmul"]
    assert found.tolist() == [0.9, 0.8, 0.7]


def test_every_device_of_the_catalogue_has_an_architecture_or_none() -> None:
    akin = {
        name: family_of(KIND["matmul"], replace(GPT_RUN, device=name)) for name in device_names()
    }
    assert akin["gb200-nvl72"] == akin["b300-sxm"] == "blackwell"
    assert akin["gh200-96gb"] == akin["h20-sxm"] == "hopper"
    assert akin["tpu-v5e"] == "tpu"
    assert akin["rtx-4090"] == ""


@pytest.mark.parametrize(
    ("device", "words", "kind", "family"),
    [
        # No kind, or no words at all: what the device's nodes usually have.
        ("a100-sxm-80gb", "800 Gbps/node (config)", "infiniband", ""),
        ("h100-sxm-80gb", "", "infiniband", ""),
        ("gb300-nvl72", "4x ConnectX-8 IB XDR 800 Gb/s", "infiniband", ""),
        ("a100-sxm-80gb", "RoCE RDMA", "roce", "over-ethernet"),
        ("a100-sxm-40gb", "EFA 4x100 Gb/s per node", "efa", "over-ethernet"),
        ("a100-sxm-80gb", "eth-100", "ethernet", "over-ethernet"),
        ("a100-sxm-80gb", "Omni-Path 4x100Gb/s per node (Jean Zay)", "omni-path", ""),
    ],
)
def test_networks_by_their_protocol(device: str, words: str, kind: str, family: str) -> None:
    run = replace(GPT_RUN, device=device, network=network_of(words, device, 8))
    assert owner_of(KIND["outer"], run) == kind
    assert family_of(KIND["outer"], run) == family


def test_a_network_without_rows_takes_its_familys_value() -> None:
    roce = replace(GPT_RUN, network=network_of("roce-200", "a100-sxm-80gb", 8))
    file = file_of(**{"outer.*": 1.5, "outer.over-ethernet.*": 1.9, "outer.infiniband": 1.2})
    assigned = assign([roce, GPT_RUN])
    assert assigned.of(assigned.from_file(file))["outer"].tolist() == [1.9, 1.2]


def test_no_message_is_faster_than_the_wire_and_no_share_above_one() -> None:
    for name, value in shipped_coefficients().values.items():
        kind = KIND[name.split(".")[0]]
        assert kind.least <= value <= kind.most, name
    assert KIND["inner"].least == KIND["outer"].least == 1.0


@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        ("ib-hdr", "roce-200"), ("roce-200", "eth-200"), ("roce-200", "eth-100"),
        ("eth-200", "eth-100"), ("eth-400", "eth-200"), ("roce-400", "roce-200"),
        ("ib-ndr", "ib-hdr"), ("ib-hdr", "ib-edr"), ("ib-ndr", "eth-400"),
    ],
)  # fmt: skip
def test_a_better_network_is_never_slower(fast: str, slow: str) -> None:
    """A rate, or at one rate InfiniBand before RoCE before Ethernet."""
    for run in (replace(GPT_RUN, tp=16, pp=4), replace(LLAMA_RUN, num_devices=64, dp=64)):
        runs = [
            replace(run, network=network_of(name, run.device, run.node_devices))
            for name in (fast, slow)
        ]
        assigned = assign(runs)
        values = assigned.of(assigned.from_file(shipped_coefficients()))
        first, second = step_parts(features(runs), values).total_s.tolist()
        assert first < second


def test_every_coefficient_changes_some_step() -> None:
    """A coefficient that no run feels could not be fitted and would mean nothing."""
    x, assigned = features(VARIED), assign(VARIED)
    # Host time counts where it is the larger: slow enough here to be felt.
    starts = {name: values.copy() for name, values in assigned.of(assigned.starts()).items()}
    starts["launch_us"] *= 20
    before = step_parts(x, starts).total_s
    for kind in KINDS:
        after = step_parts(x, starts | {kind.name: 1.5 * starts[kind.name]}).total_s
        assert np.all(after >= before * (1 - 1e-12)), kind.name
        assert np.any(after > before * (1 + 1e-9)), kind.name


def test_a_stack_s_coefficient_is_the_stack_s() -> None:
    assert owner_of(KIND["optimizer"], GPT_RUN) == "megatron-2021"
    assert owner_of(KIND["optimizer"], LLAMA_RUN) == "torch-fsdp"


@pytest.mark.parametrize(
    ("device", "processor"),
    [
        ("a100-sxm-40gb", "a100-sxm-80gb"),
        ("h800-sxm-80gb", "h100-sxm-80gb"),
        # 250 W instead of 400 W; kernels of its own; another architecture.
        ("a100-pcie-40gb", "a100-pcie-40gb"),
        ("h200-sxm", "h200-sxm"),
        ("v100-sxm2-16gb", "v100-sxm2-16gb"),
    ],
)
def test_one_processor_has_one_coefficient(device: str, processor: str) -> None:
    assert processor_of(device) == processor
    assert owner_of(KIND["matmul"], replace(GPT_RUN, device=device)) == processor
    assert owner_of(KIND["power"], replace(GPT_RUN, device=device)) == f"{processor}.16"


def is_physical(kind: Kind, owner: str) -> bool:
    """A device, a stack or a network; no model, run or table."""
    if owner == "*":
        return True
    if kind.owner == "device":
        return owner.partition("@")[0] in device_names()
    if kind.owner == "device and bits":
        name, _, bits = owner.rpartition(".")
        return name.partition("@")[0] in device_names() and bits in ("4", "8", "16", "32")
    owner = owner.replace(" (compiled)", "")
    if kind.owner == "stack":
        return owner in framework_names()
    if kind.owner == "stack and sharding":
        name, _, sharding = owner.rpartition(".")
        return name in framework_names() and sharding in ("sharded", "whole")
    if kind.owner == "network":
        return owner in {get_link(name).kind for name in link_names()}
    return False


def families_of(kind: Kind) -> set[str]:
    if kind.owner == "network":
        return {"over-ethernet"}
    if kind.name == "attention":
        return {f"{kernel}-kernels" for kernel in ("fused", "flash-2", "unfused")}
    if kind.owner.startswith("stack"):
        return {generation for _, generation in _GENERATIONS} | {"compiled"}
    return {architecture for _, architecture in _ARCHITECTURES}


def test_the_shipped_coefficients_belong_to_something_physical() -> None:
    file = shipped_coefficients()
    for name, value in file.values.items():
        kind, _, owner = name.partition(".")
        if owner.endswith(".*"):
            assert owner.split(".")[0] in families_of(KIND[kind]), name
        else:
            assert is_physical(KIND[kind], owner), name
        assert math.isfinite(value), name
        # Nothing is pulled more than e^4 away from where its kind starts.
        assert 1 / 60 < value / KIND[kind].start < 60, name
    assert {f"{kind.name}.*" for kind in KINDS} <= set(file.values)


def test_the_shipped_coefficients_say_how_they_were_made() -> None:
    file = shipped_coefficients()
    assert file.runs > 1000
    # With the rows that are far off: jobs that stall though most of their like do not.
    assert 0.0 < file.residual < 0.12
    assert datetime.date.fromisoformat(file.date) <= datetime.datetime.now().date()
    for source in ("llmf", "simumax-b200", "korthikanti-tab5", "vtrain-multi", "zb"):
        assert source in file.source
    assert "least squares" in file.method
