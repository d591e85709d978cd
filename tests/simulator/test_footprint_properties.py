"""The memory of described runs, whatever the layout: what can only help, and what adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.model.figures.transformer import Transformer
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import framework_names, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from tests.simulator.described_runs import LLAMA_8B, MIXTRAL, changed
from tests.simulator.small_gpt import RUN, SMALL_GPT, layer_bytes

_LAYOUTS = st.tuples(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from(["none", "selective", "mlp", "full"]),
    st.sampled_from(framework_names()),
)


def _run(layout: tuple[int, int, int, str, str], **changes: int) -> TrainingRun:
    tp, pp, mb, recompute, name = layout
    return changed(
        RUN,
        tp=tp,
        pp=pp,
        dp=changes.get("dp", 2),
        micro_batch=changes.get("micro_batch", mb),
        global_batch=512,
        recompute=recompute,
        schedule="1f1b" if pp > 1 else "none",
        stack=name,
        zero_stage=load_framework(name).rules.zero_stages[-1],
        sequence_parallel=tp > 1,
    )


@given(_LAYOUTS)
def test_more_data_parallel_ranks_and_smaller_micro_batches_need_no_more(
    layout: tuple[int, int, int, str, str],
) -> None:
    base = footprint(_run(layout)).allocated_bytes
    assert footprint(_run(layout, dp=4)).allocated_bytes <= base * (1 + 1e-9)
    assert footprint(_run(layout, micro_batch=2 * layout[2])).allocated_bytes >= base


_EVEN = [name for name in framework_names() if load_framework(name).memory[0].stage_split == "even"]


@pytest.mark.parametrize("name", _EVEN)
def test_logits_are_of_the_last_rank_alone(name: str) -> None:
    run = _run((2, 4, 4, "none", name))
    wide = replace(run, model=replace(SMALL_GPT, vocab_size=64 * SMALL_GPT.vocab_size))
    before, after = (
        [rank.transient_bytes for rank in footprint(each).ranks] for each in (run, wide)
    )
    assert after[:-1] == before[:-1]
    assert after[-1] > before[-1]


@pytest.mark.parametrize("name", framework_names())
def test_the_shown_peak_is_of_the_rank_that_prints_it(name: str) -> None:
    run = _run((2, 4, 4, "none", name))
    first = load_framework(name).memory_at(run.zero_stage).peak_rank == "first"
    for kind in ("allocated", "reserved", "device"):
        found = footprint(replace(run, memory_kind=kind))
        held = [r.peak_bytes if kind == "allocated" else r.held_bytes for r in found.ranks]
        shown = 0 if first and kind != "device" else held.index(max(held))
        assert found.shown_rank == shown
        assert held[0] > held[1]
        if kind == "device":
            assert found.shown_bytes > held[shown]
        else:
            assert found.shown_bytes == held[shown]


@pytest.mark.parametrize("tp", [1, 2])
def test_states_of_experts_are_spread_over_all_ranks_whatever_ep(tp: int) -> None:
    run = changed(_run((tp, 1, 1, "none", "megatron-core")), model=MIXTRAL, dp=8, zero_stage=1)
    found = [footprint(changed(run, ep=ep)).ranks[0].optimizer_bytes for ep in (1, 2, 4, 8)]
    assert found == pytest.approx([found[0]] * 4)


@pytest.mark.parametrize("model", [MIXTRAL, LLAMA_8B], ids=["experts", "dense"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_every_parameter_is_on_one_stage(model: Transformer, pp: int) -> None:
    run = changed(_run((1, pp, 1, "none", "megatron-core")), model=model)
    assert sum(rank.here.num_parameters for rank in footprint(run).details) == model.parameters


@given(_LAYOUTS)
def test_recompute_frees(layout: tuple[int, int, int, str, str]) -> None:
    kept = [
        layer_bytes(_run((*layout[:3], recompute, layout[4])))
        for recompute in ("full", "selective", "none")
    ]
    assert 0 < kept[0] <= kept[1] <= kept[2]


@given(_LAYOUTS, st.integers(4, 40))
def test_stages_hold_the_whole_model(layout: tuple[int, int, int, str, str], layers: int) -> None:
    run = _run(layout)
    run = replace(run, model=replace(SMALL_GPT, num_layers=layers))
    for stack in ("megatron-core", "nanotron"):  # cut into equal stages, and by cost
        shares = stage_split(replace(run, stack=stack))
        assert sum(share.num_layers for share in shares) == layers
        assert sum(share.has_head for share in shares) == 1
        assert shares[0].has_embedding
    total = math.fsum(rank.here.num_parameters for rank in footprint(run).details)
    # Matrices split by tp, norms and positions on every rank; a tied table is there twice.
    assert total * run.degrees.tp >= run.model.parameters * 0.999
