"""Muon's products, messages and states, by hand and by what its papers state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.training_run.messages.rank_group import RankGroup, data_group, tensor_group
from simulator.training_run.messages.run_links import links_of, moved
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import features
from simulator.training_run.step.step_time import step_parts
from simulator.training_run.work.muon_work import (
    ITERATIONS,
    newton_schulz_s,
    rank_matrices,
)
from simulator.values.prediction import Part
from tests.simulator.described_runs import DEEPSEEK_V3, LLAMA_8B, LLAMA_RUN, MIXTRAL, changed

# A layer of Llama 3.1 8B: queries, keys and values; output; both gates; down.
LAYER = {
    (4096.0, 6144.0): 1.0,
    (4096.0, 4096.0): 1.0,
    (4096.0, 28672.0): 1.0,
    (4096.0, 14336.0): 1.0,
}
MUON = changed(
    LLAMA_RUN,
    optimizer="muon",
    tp=1,
    cp=1,
    pp=1,
    vpp=1,
    dp=8,
    zero_stage=0,
    sequence_parallel=False,
)


def seconds(run: TrainingRun, part: Part) -> float:
    assigned = assign([run])
    values = assigned.from_file(shipped_coefficients())
    parts = step_parts(features([run], all_fit=True), assigned.of(values))
    return float(parts[part][0])


def test_products_of_a_layer_by_hand() -> None:
    (matrices,) = rank_matrices(MUON)
    assert (matrices.count, matrices.splits, matrices.shards) == (4 * 32, 1, 1)
    assert matrices.elements == 32 * sum(m * n for m, n in LAYER)
    flop = sum(5 * (4 * m * m * n + 2 * m**3) for m, n in LAYER)
    peak = get_device(MUON.device).peak("bfloat16").value
    assert matrices.seconds == pytest.approx(
        32 * newton_schulz_s(MUON.device, tuple(LAYER.items()))
    )
    # At 50 to 100 % of the peak.
    assert 32 * flop / peak < matrices.seconds < 2 * 32 * flop / peak


def test_states_are_half_of_adamw() -> None:
    """4 bytes fewer for every weight of a matrix in a layer, none for tables and norms."""
    usual = replace(MUON, optimizer="adamw")
    saved = footprint(usual).fullest.optimizer_bytes - footprint(MUON).fullest.optimizer_bytes
    assert saved == pytest.approx(4 * 32 * sum(m * n for m, n in LAYER))
    sharded = [replace(run, zero_stage=1) for run in (usual, MUON)]
    few = [footprint(run).fullest.optimizer_bytes for run in sharded]
    assert few[0] - few[1] == pytest.approx(saved / 8)
    moved = features([usual]).optimizer_s[0] - features([MUON]).optimizer_s[0]
    bandwidth = get_device(MUON.device).memory_bandwidth_bytes_per_s.value
    assert moved == pytest.approx(2 * saved / bandwidth)


def test_sharded_states_share_the_work() -> None:
    """An eighth of the matrices, and the one that is cut (arXiv 2502.16982, section 2.3)."""
    (whole,), (part,) = rank_matrices(MUON), rank_matrices(replace(MUON, zero_stage=1))
    assert (whole.handled, whole.cut) == (1.0, 0.0)
    assert part.handled == pytest.approx(1 / 8 + 1 / 128)
    ratio = features([replace(MUON, zero_stage=1)]).orthogonal_s / features([MUON]).orthogonal_s
    assert float(ratio[0]) == pytest.approx(part.handled)


def test_split_matrices_are_gathered() -> None:
    split = changed(MUON, tp=8, dp=1)
    (matrices,) = rank_matrices(split)
    assert matrices.elements * 8 == matrices.whole_elements
    assert matrices.whole_elements == 32 * sum(m * n for m, n in LAYER)
    assert features([MUON]).muon_inner[0] == 0
    # Two ranks gather the whole matrices that they work on, in bf16; replicas those that are cut.
    for dp, zero_stage in ((1, 0), (4, 1)):
        halved = changed(MUON, tp=2, dp=dp, zero_stage=zero_stage)
        (half,) = rank_matrices(halved)
        assert half.handled == pytest.approx(1 / dp, rel=0.1)
        time, links = features([halved]).muon_inner[0], links_of(halved)
        whole = 2 * half.whole_elements * half.handled
        expected = moved("all_gather", whole, tensor_group(halved), links)
        expected += moved("all_gather", 2 * half.elements * half.cut, data_group(halved), links)
        assert time == pytest.approx(expected.inner_s + expected.inner_latency_s, rel=1e-3)
    # ZeRO 1 gathers what is cut, ZeRO 3 all of its shard.
    once = features([replace(MUON, zero_stage=1)]).muon_inner[0]
    every = features([replace(MUON, zero_stage=3)]).muon_inner[0]
    assert 0 < once < every
    # A rank sends its eighth in bf16 to those that work on it, and gets the update back.
    group = RankGroup(((8, 1),))
    there = moved("all_to_all", 2 * matrices.whole_elements / 8, group, links_of(MUON))
    assert every == pytest.approx(2 * there.total_s)


@pytest.mark.parametrize("ep", [1, 8])
def test_experts_are_matrices_of_their_own(ep: int) -> None:
    run = changed(MUON, model=MIXTRAL, ep=ep, zero_stage=1)
    shared, experts = rank_matrices(run)
    assert experts.count == 32 * 8 * 2 / ep
    assert experts.elements == 32 * 8 / ep * MIXTRAL.expert_parameters
    assert experts.shards == 8 / ep
    assert shared.count == 32 * (2 + 1)  # attention and the router
    total = shared.elements + experts.elements * ep
    assert total == pytest.approx(MIXTRAL.parameters, rel=0.01)


def test_latent_attention_has_its_own_matrices() -> None:
    model = replace(DEEPSEEK_V3, predicted_ahead=0)
    shared, experts = rank_matrices(replace(MUON, model=model))
    tables = 2 * DEEPSEEK_V3.hidden_size * DEEPSEEK_V3.vocab_size
    assert shared.elements + experts.elements + tables == pytest.approx(
        DEEPSEEK_V3.parameters, rel=1e-3
    )


def test_other_optimizers_have_none() -> None:
    usual = replace(MUON, optimizer="adamw")
    assert rank_matrices(usual) == ()
    assert features([usual]).orthogonal_s[0] == features([usual]).muon_inner[0] == 0
    more = seconds(MUON, Part.OPTIMIZER) - seconds(usual, Part.OPTIMIZER)
    (matrices,) = rank_matrices(MUON)
    assert 0.5 * matrices.seconds < more < 2 * matrices.seconds
    assert ITERATIONS == 5


def test_adapters_are_refused() -> None:
    with pytest.raises(InputError, match="but lora trains the adapters only; use adamw"):
        replace(MUON, lora=True)
    assert LLAMA_8B.num_layers == 32
