"""Peak memory under a split backward, predicted and as the allocator saw it, on two processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwright
from executor.launch import run_plan
from planner.axes import Axes
from profiles.document import write_document
from shardwright import api
from simulator.traced.predict import predict
from simulator.values.plan import PLAN_SCHEMA, Recompute
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload

# Few weights and many tokens: activations are most of the memory.
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
# Of the block that runs an I, what it sets aside is counted from its end on: measured on 2026-11-21
# were -1.4 and -2.3 % (zb-h2), -1.3 and -3.1 (zb-h1), -2.8 and -5.4 (zb-h1, all recomputed), -3.2
# and +2.2 (zbv).
NEAR = 0.06


@pytest.mark.parametrize(
    ("schedule", "kind"),
    [
        pytest.param("zb-h2", Recompute.NONE, marks=pytest.mark.slow),
        pytest.param("zb-h1", Recompute.NONE, marks=pytest.mark.slow),
        pytest.param("zb-h1", Recompute.FULL, marks=pytest.mark.slow),
        pytest.param("zbv", Recompute.NONE, marks=pytest.mark.slow),
        pytest.param("zbv", Recompute.ATTENTION, marks=pytest.mark.slow),
        pytest.param("v-half", Recompute.NONE, marks=pytest.mark.slow),
        pytest.param("dualpipev", Recompute.NONE, marks=pytest.mark.slow),
    ],
)
def test_a_rank_s_peak_is_as_predicted(schedule: str, kind: Recompute, tmp_path: Path) -> None:
    model = tmp_path / "llama.json"
    model.write_text(json.dumps(LLAMA))
    traced = shardwright.trace(
        str(model), sequence_length=128, precision="fp32", tp_degrees=(1,), target="cpu"
    )
    cluster = shardwright.cluster("1x2xa100-sxm-40gb")
    answer = api.plan(
        traced,
        cluster,
        Workload(global_batch=48, sequence_length=128, precision="fp32"),
        space=Axes(pp=(2,), tp=(1,), micro_batch=(8,), schedule=(schedule,), recompute=(kind,)),
    )
    assert answer.plan is not None
    path = tmp_path / "plan.json"
    prediction = predict(answer.plan, traced, cluster)
    file = PlanFile(status="feasible", search_time_s=0.0, cells_considered=1, plan=answer.plan)
    write_document(path, file, schema=PLAN_SCHEMA)
    run = run_plan(path, steps=1, output=tmp_path / "run.json", model=str(model), any_machine=True)
    for told, seen in zip(prediction.ranks, run.ranks, strict=True):
        assert told.peak_bytes == pytest.approx(seen.peak_memory_bytes, rel=NEAR)
