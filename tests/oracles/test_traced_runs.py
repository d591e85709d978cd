"""Plans of traced models against published runs of eager PyTorch with FSDP (llm-foundry).

The search of blocks, from the trace to the step: a model like MPT is traced, the published layout
is pinned, and the predicted step is set against the measured one. The coefficients are those of all
published runs (profiles/data/calibration/runs.toml): of the 43 runs up to 8k tokens a step is 4.3 %
off in the median, mostly too fast, of all 55 5.5 %. The layouts must fit, as they ran.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwright
from planner.axes import Axes
from planner.blocks.block_search import search
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.framework.framework import load_stack
from simulator.values.plan import Recompute
from simulator.values.workload import Workload
from tests.oracles.opt_like import traced_like

RUNS = Path(__file__).parents[2].parent / "shared" / "truth" / "runs.csv"
# Small and large, with and without recomputation, one node and many, both devices.
IDS = ("llmf-003", "llmf-012", "llmf-087", "llmf-112")
MORE = ("llmf-022", "llmf-039")


@pytest.mark.skipif(not RUNS.is_file(), reason="no ../shared/truth/runs.csv beside the repository")
@pytest.mark.parametrize("ids", [IDS, pytest.param(IDS + MORE, marks=pytest.mark.slow)])
def test_plans_of_traced_models_take_what_was_measured(
    ids: tuple[str, ...], tmp_path: Path
) -> None:
    measured = {row.id: row.step_time_s for row in read_measured(RUNS)}
    errors = []
    for run in read_runs(RUNS, lenient=True):
        if run.id not in ids:
            continue
        model = traced_like(run, tmp_path)
        length, batch = run.seq_len or 0, run.global_batch or 0
        devices = run.num_devices or 0
        answer = search(
            model,
            shardwright.cluster(f"{devices // 8}x8x{run.device}"),
            Workload(global_batch=batch, sequence_length=length, precision="bf16"),
            space=Axes(
                tp=(1,),
                pp=(1,),
                dp=(devices,),
                zero=(run.zero_stage or 0,),
                micro_batch=(run.micro_batch or 0,),
                recompute=(Recompute(run.recompute),),
            ),
            stack=load_stack(),
        )
        assert answer.plan is not None, run.id
        errors.append(answer.step_time_s / float(measured[run.id] or 0.0) - 1)
    assert len(errors) == len(ids)
    assert max(map(abs, errors)) < 0.12, errors
    assert sum(map(abs, errors)) / len(errors) < 0.06, errors
