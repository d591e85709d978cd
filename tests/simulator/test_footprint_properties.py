"""The memory of described runs, whatever the layout: what can only help, and what adds up."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import framework_names, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from tests.simulator.described_runs import changed
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
