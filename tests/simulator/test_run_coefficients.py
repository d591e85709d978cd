"""Coefficients: whose they are, where values come from, and that each of them matters."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

import numpy as np
import pytest

from profiles.hardware.catalogue.catalog import device_names
from shardwright.runs.network_text import network_of
from simulator.training_run.framework.framework import framework_names
from simulator.training_run.step.coefficient_kinds import (
    _ARCHITECTURES,
    KINDS,
    Kind,
    family_of,
    owner_of,
    processor_of,
)
from simulator.training_run.step.coefficients import CoefficientFile, assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts
from tests.simulator.described_runs import GPT_RUN, LLAMA_RUN, MIXTRAL, changed, figures

KIND = {kind.name: kind for kind in KINDS}
# Together these touch every part of a step.
VARIED = (
    GPT_RUN,
    changed(GPT_RUN, id="zero-1", dp=2, zero_stage=1, recompute="full"),
    changed(GPT_RUN, id="wide", tp=16, pp=4),
    LLAMA_RUN,
    changed(LLAMA_RUN, id="two nodes", dp=16),
    changed(LLAMA_RUN, id="experts", model=MIXTRAL, ep=8, stack="megatron-core"),
    changed(LLAMA_RUN, id="fp8", precision="fp8", stack="nanotron", zero_stage=1, tp=2, dp=4),
    changed(LLAMA_RUN, id="context", cp=2, dp=4, stack="megatron-core", zero_stage=1),
    # The collectives of V100 were not measured: a formula with latency steps serves.
    replace(GPT_RUN, id="old", device="v100-sxm2-16gb"),
    # Hosts that wait for messages: calm, and stalled in groups over four nodes.
    changed(LLAMA_RUN, id="calm", stack="nanotron", tp=4, pp=2, dp=2, zero_stage=0),
    changed(GPT_RUN, id="blocked", stack="nanotron", tp=32, pp=4, dp=2),
    # Layers with a state, and casts.
    changed(
        LLAMA_RUN,
        id="hybrid",
        model=figures("Nemotron 3 Nano 30B-A3B"),
        ep=8,
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
    owners = {"", "device and bits", "stack", "attention kernel"}
    for kind in KINDS:
        assert kind.owner in owners, kind.name
        assert kind.start > 0.0
        assert kind.spread > 0.0, kind.name
        assert kind.between > 0.0, kind.name
        assert len(kind.meaning) > 20, kind.name
        assert kind.source, kind.name


@pytest.mark.parametrize(
    ("kind", "owner"),
    [
        ("matmul", "*"),
        ("power", "a100-sxm-80gb.16"),
        ("attention", "unfused-kernels"),
        ("level", "megatron-2021"),
        ("inner_step_us", "*"),
    ],
)
def test_owners(kind: str, owner: str) -> None:
    assert owner_of(KIND[kind], GPT_RUN) == owner


def test_bits_tell_owners_apart() -> None:
    power = KIND["power"]
    bits = [
        owner_of(power, replace(LLAMA_RUN, precision=word))
        for word in ("fp32", "bf16", "fp8", "nvfp4")
    ]
    assert bits == [f"h100-sxm-80gb.{n}" for n in (32, 16, 8, 4)]


def test_every_run_gets_its_owners_values() -> None:
    """Two runs of one device and different stacks share power and have levels of their own."""
    other = replace(LLAMA_RUN, stack="megatron-core")
    assigned = assign([LLAMA_RUN, other, GPT_RUN])
    values = np.arange(1.0, 1.0 + len(assigned.names))
    found = assigned.of(values)
    assert set(found) == set(KIND)
    assert found["power"][0] == found["power"][1] != found["power"][2]
    assert len(set(found["level"].tolist())) == 3
    for kind, index in assigned.index.items():
        for run, place in zip((LLAMA_RUN, other, GPT_RUN), index, strict=True):
            assert assigned.names[place] == f"{kind}.{owner_of(KIND[kind], run)}"
            assert KINDS[assigned.kinds[place]].name == kind
    assert assigned.starts()[assigned.names.index("power.h100-sxm-80gb.16")] == KIND["power"].start


def test_values_are_the_owners_then_the_familys_then_the_start() -> None:
    """H200 and H100 are Hopper; the framework of LLAMA_RUN has no value in this file."""
    file = file_of(
        **{
            "power.h100-sxm-80gb.16": 1.8,
            "power.hopper.16.*": 1.6,
            "passes.*": 2.0,
            "other.thing": 9.0,
        }
    )
    runs = [LLAMA_RUN, replace(LLAMA_RUN, device="h200-sxm"), GPT_RUN]
    assert family_of(KIND["power"], runs[1]) == "hopper.16"
    assigned = assign(runs)
    found = assigned.of(assigned.from_file(file))
    assert found["power"].tolist() == [1.8, 1.6, KIND["power"].start]
    assert set(found["passes"].tolist()) == {2.0}
    assert set(found["level"].tolist()) == {1.0}


def test_every_device_of_the_catalogue_has_an_architecture_or_none() -> None:
    akin = {
        name: family_of(KIND["power"], replace(GPT_RUN, device=name)) for name in device_names()
    }
    assert akin["gb200-nvl72"] == akin["b300-sxm"] == "blackwell.16"
    assert akin["gh200-96gb"] == akin["h20-sxm"] == "hopper.16"
    assert akin["tpu-v5e"] == "tpu.16"
    assert akin["rtx-4090"] == ""


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
    for run in (changed(GPT_RUN, tp=16, pp=4), changed(LLAMA_RUN, dp=64)):
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
    assert owner_of(KIND["power"], replace(GPT_RUN, device=device)) == f"{processor}.16"


def is_physical(kind: Kind, owner: str) -> bool:
    """A device, a framework, a kernel, or all runs; no model, run or table."""
    if kind.owner == "device and bits":
        name, _, bits = owner.rpartition(".")
        if owner.endswith(".*"):
            name, _, bits = owner.removesuffix(".*").rpartition(".")
            return name in {architecture for _, architecture in _ARCHITECTURES}
        return name.partition("@")[0] in device_names() and bits in ("4", "8", "16", "32")
    if kind.owner == "attention kernel":
        return owner in ("fused-kernels", "flash-2-kernels", "unfused-kernels")
    if kind.owner == "stack":
        return owner.replace(" (compiled)", "") in (*framework_names(), "frameworks.*")
    return owner == "*"


def test_the_shipped_coefficients_belong_to_something_physical() -> None:
    file = shipped_coefficients()
    for name, value in file.values.items():
        kind, _, owner = name.partition(".")
        assert is_physical(KIND[kind], owner), name
        assert math.isfinite(value), name
        # Nothing is pulled more than 2.5 prior widths from the start of its kind.
        assert abs(math.log(value / KIND[kind].start)) < 2.5 * KIND[kind].spread, name
    assert {f"{kind.name}.*" for kind in KINDS if not kind.owner} <= set(file.values)
    assert len(file.values) <= 120


def test_every_shipped_coefficient_states_how_many_sources_determine_it() -> None:
    file = shipped_coefficients()
    families = {name for name in file.values if name.count(".") > 1 and name.endswith(".*")}
    assert set(file.sources_of) == set(file.values) - families
    assert file.sources_of["power.h100-sxm-80gb.16"] > 5
    assert file.sources_of["passes.*"] > 20


def test_the_shipped_coefficients_say_how_they_were_made() -> None:
    file = shipped_coefficients()
    assert file.runs > 1000
    # Without the effects of their sources.
    assert 0.0 < file.residual < 0.12
    assert datetime.date.fromisoformat(file.date) <= datetime.datetime.now().date()
    for source in ("llmf", "simumax-b200", "korthikanti-tab5", "vtrain-multi", "zb"):
        assert source in file.source
    assert "hierarchical model" in file.method
