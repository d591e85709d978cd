"""Single targets, by hand."""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from shardwright_frameworks.exports.cost_of_gaps import cost_of_gaps
from shardwright_frameworks.exports.export_plan import export_plan
from shardwright_frameworks.exports.stage_words import stage_words
from shardwright_frameworks.exports.targets.targets import TARGETS, target_name
from shardwright_frameworks.exports.values.planned_run import PlannedRun

from plugins.frameworks.tests.planned_runs import planned, small, uneven
from profiles.errors import InputError, UnknownNameError
from simulator.training_run.step.step_time import price_runs
from simulator.values.pipeline_layout import LayoutStage, pipeline_layout_text
from tests.shardwright.golden import check_golden


def files_of(plan: PlannedRun, target: str) -> dict[str, str]:
    return {file.path: file.text for file in export_plan(plan, target).files}


def flags(plan: PlannedRun) -> list[str]:
    return list(TARGETS["megatron"].export(plan).arguments)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=12).filter(any))
def test_the_layout_text_says_every_stage(layers: list[int]) -> None:
    last = len(layers) - 1
    stages = [
        LayoutStage(layers=count, has_embedding=n == 0, has_loss=n == last)
        for n, count in enumerate(layers)
    ]
    text = pipeline_layout_text(stages)
    # Megatron-Core's reading: groups first, then single letters.
    text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    text = re.sub(r"(.)\*(\d+)", lambda m: m[1] * int(m[2]), text)
    read = text.split("|")
    assert [part.count("t") for part in read] == layers
    assert [n for n, part in enumerate(read) if "E" in part] == [0]
    assert [n for n, part in enumerate(read) if "L" in part] == [last]


def test_megatron_flags() -> None:
    even = planned("llama-3.1-8b", "megatron-core", tp=2, pp=4, dp=2, vpp=2, schedule="interleaved")
    found = flags(even)
    assert "--num-virtual-stages-per-pipeline-rank 2" in found
    assert not any("layout" in line for line in found)
    odd = uneven(planned("llama-3.1-8b", "megatron-core", pp=4, recompute="full"), (7, 9, 9, 7))
    assert "--pipeline-model-parallel-layout 'Et*7|(t*9|)*2t*7L'" in flags(odd)
    assert "--recompute-method uniform" in flags(odd)
    experts = planned("mixtral-8x7b", "megatron-core", tp=4, dp=8, ep=8)
    assert "--expert-model-parallel-size 8" in flags(experts)
    assert "--expert-tensor-parallel-size 1" in flags(experts)
    whole = planned("mixtral-8x7b", "megatron-core", tp=4, dp=8)
    assert "--expert-tensor-parallel-size 4" in flags(whole)
    deep = flags(planned("deepseek-v3", "megatron-core", tp=8, pp=4, dp=8, ep=8))
    assert "--moe-layer-freq '([0]*3+[1]*58)'" in deep
    assert "--multi-latent-attention" in deep


def test_megatron_hides_all_to_alls_on_more_than_one_connection() -> None:
    """With tensor parallelism too, for which 1 is written otherwise."""
    for schedule, connections in (("interleaved", "1"), ("interleaved-overlap", "32")):
        plan = planned(
            "mixtral-8x7b", "megatron-core", tp=2, pp=2, dp=2, ep=2, vpp=2, schedule=schedule
        )
        export = TARGETS["megatron"].export(plan)
        assert export.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": connections}
        overlaps = "--overlap-moe-expert-parallel-comm" in export.arguments
        assert overlaps == (schedule == "interleaved-overlap")


def test_megatron_places_experts_in_every_second_layer():
    plan = planned("llama-4-maverick", "megatron-core", tp=8, pp=4, dp=8, ep=8)
    assert "--moe-layer-freq '([0,1]*24)'" in flags(plan)
    bridge = yaml.safe_load(files_of(plan, "megatron-bridge")["overrides.yaml"])
    assert bridge["model"]["moe_layer_freq"] == [0, 1] * 24


def test_bridge_places_experts_after_dense_layers_and_leaves_the_rest_dense():
    plan = planned("llama-4-maverick", "megatron-core", tp=8, dp=8, ep=8)
    model = replace(plan.run.model, first_dense_layers=3)
    plan = replace(plan, run=replace(plan.run, model=model))
    assert "--moe-layer-freq '([0]*3+[0,1]*22+[0]*1)'" in flags(plan)
    bridge = yaml.safe_load(files_of(plan, "megatron-bridge")["overrides.yaml"])
    assert bridge["model"]["moe_layer_freq"] == [0] * 3 + [0, 1] * 22 + [0]


@pytest.mark.parametrize(
    ("precision", "wanted"),
    [
        ("bf16", ["--bf16"]),
        ("fp16", ["--fp16"]),
        ("fp32", []),
        ("fp8", ["--bf16", "--fp8-format hybrid", "--fp8-recipe delayed"]),
        ("mxfp8", ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"]),
        ("nvfp4", ["--bf16", "--fp4-format e2m1", "--fp4-recipe nvfp4"]),
    ],
)
def test_megatron_precision(precision: str, wanted: list[str]) -> None:
    device = "b200-sxm" if precision in ("mxfp8", "nvfp4") else "h100-sxm-80gb"
    plan = planned("llama-3.1-8b", "megatron-core", dp=8, precision=precision, device=device)
    found = [line for line in flags(plan) if re.match(r"--(bf16|fp16|fp8|fp4)", line)]
    assert found == wanted


def test_a_gap_costs_what_the_prediction_says() -> None:
    plan = planned("llama-3.1-8b", "torch", tp=2, pp=4, dp=2, vpp=2, schedule="zbv")
    gaps = TARGETS["megatron"].export(plan).unexpressed
    (gap,) = gaps
    assert (gap.option, gap.planned, gap.written) == ("schedule", "zbv", "interleaved")
    other = replace(plan.run, schedule="interleaved")
    before, after = price_runs([plan.run, other]).parts.total_s.tolist()
    costs = cost_of_gaps(plan, gaps)
    assert costs.slower == pytest.approx(after / before - 1, rel=1e-9)
    check = json.loads(files_of(plan, "megatron")["plan-check.json"])
    step = plan.prediction.step_time_s.value * after / before
    assert check["step_time_s"]["value"] == pytest.approx(step, rel=1e-9)
    assert check["changed_by_what_is_not_expressed"]


def test_axes_that_a_target_lacks_become_replicas() -> None:
    plan = planned("llama-3.1-8b", "megatron-core", tp=2, pp=2, dp=4, micro_batch=4)
    exported = TARGETS["hf-trainer"].export(plan)
    # 64 sequences on 16 replicas: 4 each, so micro-batches of 4 stay.
    assert [gap.option for gap in exported.unexpressed[:2]] == ["tp", "pp"]
    assert exported.unexpressed[1].change == {
        "pp": 1, "dp": 16, "micro_batch": 4, "vpp": 1, "schedule": "1f1b",
    }  # fmt: skip
    arguments = json.loads(files_of(plan, "hf-trainer")["training_args.json"])
    assert arguments["per_device_train_batch_size"] == 4
    assert arguments["gradient_accumulation_steps"] == 1
    many = planned("llama-3.1-8b", "megatron-core", tp=8, pp=2, dp=8)
    with pytest.raises(InputError, match="cannot be shared by the 128 replicas"):
        TARGETS["hf-trainer"].export(many)


def test_hybrid_sharding_is_written_or_is_a_gap() -> None:
    """dp 8 in 2 groups of 4: of torchtitan both degrees, of Megatron-LM the number of optimizers;
    other targets, and Megatron-FSDP, shard over all eight."""
    name = "llama-3.1-8b"
    plan = planned(name, "torchtitan", dp=8, dp_replicate=2, zero_stage=3)
    table = tomllib.loads(files_of(plan, "torchtitan")["train.toml"])["parallelism"]
    assert table["data_parallel_replicate_degree"] == 2
    assert table["data_parallel_shard_degree"] == 4
    optimizers = planned(name, "megatron-core", dp=8, dp_replicate=2, zero_stage=1)
    assert "--num-distributed-optimizer-instances 2" in " ".join(flags(optimizers))
    for other, target in ((plan, "accelerate"), (plan, "megatron"), (optimizers, "nanotron")):
        gaps = {gap.option: gap for gap in TARGETS[target].export(other).unexpressed}
        assert gaps["dp_replicate"].planned == "dp_replicate 2"
        assert gaps["dp_replicate"].change == {"dp_replicate": 1}


def test_torchtitan_stages_and_schedule() -> None:
    plan = planned("llama-3.1-8b", "torch", pp=4, dp=2, vpp=2, schedule="v-half", global_batch=32)
    found = files_of(plan, "torchtitan")
    table = tomllib.loads(found["train.toml"])
    parts = table["parallelism"]["module_fqns_per_model_part"]
    assert parts[0] == ["tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3"]
    assert parts[-1][-2:] == ["norm", "output"]
    assert list(itertools.chain(*parts)).count("layers.31") == 1
    assert table["training"]["local_batch_size"] == 16  # all micro-batches of a replica's step
    assert table["parallelism"]["pipeline_parallel_schedule_csv"] == "schedule.csv"
    rows = found["schedule.csv"].splitlines()
    assert len(rows) == 4
    # A V: the first rank holds the first and the last stage.
    assert {cell[0] for cell in rows[0].split(",")} == {"0", "7"}
    with pytest.raises(InputError, match="is no Llama"):
        TARGETS["torchtitan"].export(planned("gpt3-175b", "torchtitan", tp=8, dp=8, zero_stage=3))


def test_own_plan_with_mixed_recomputation_says_so() -> None:
    plan = planned("llama-3.1-8b", "torch", pp=2, dp=8, recompute="full", global_batch=64)
    first, last = plan.stages
    half = replace(last, recompute=("full",) * 4 + ("none",) * 12)
    mixed = replace(plan, stages=(first, half))
    gaps = TARGETS["megatron"].export(mixed).unexpressed
    assert [(gap.option, gap.planned) for gap in gaps] == [
        ("recompute per layer", "layers run again per stage: 16, 4")
    ]
    # 16 layers of every stage is what covers both.
    assert "--recompute-num-layers 16" in flags(mixed)
    assert cost_of_gaps(mixed, gaps).gaps[0].slower is None


def test_maxtext_fills_nodes_from_the_inside() -> None:
    # 8 devices a node: tp 4 inside, 2 of 32 fsdp shards with it, 16 across.
    plan = planned("llama-3.1-8b", "maxtext", tp=4, dp=32, zero_stage=3, recompute="full")
    data = yaml.safe_load(files_of(plan, "maxtext")["maxtext.yml"])
    assert (data["ici_tensor_parallelism"], data["dcn_tensor_parallelism"]) == (4, 1)
    assert (data["ici_fsdp_parallelism"], data["dcn_fsdp_parallelism"]) == (2, 16)
    assert data["per_device_batch_size"] == 1 / 4  # a sequence per replica of four devices
    assert data["gradient_accumulation_steps"] == 2


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'megatron'"):
        export_plan(small(dp=2), "megatorn")
    with pytest.raises(UnknownNameError, match="Did you mean 'slurm'"):
        export_plan(small(dp=2), "accelerate", launcher="slrum")


GOLDEN = {
    "export_megatron.sh": ("megatron", "run.sh"),
    "export_torchtitan.toml": ("torchtitan", "train.toml"),
    "export_readme.md": ("torchtitan", "README.md"),
    "export_nanotron.yaml": ("nanotron", "config.yaml"),
}


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden(name: str) -> None:
    target, path = GOLDEN[name]
    plan = small(
        tp=2, pp=2, dp=2, node_devices=4, zero_stage=1, recompute="full",
        schedule="interleaved" if target != "nanotron" else "1f1b",
        vpp=2 if target != "nanotron" else 1,
    )  # fmt: skip
    check_golden(name, files_of(replace(plan, device_type="gpu"), target)[path])


def test_words_of_stages_that_are_no_value_are_left_out() -> None:
    text = "c(module_fqns_per_model_part={[]: 1}, pipeline_parallel_schedule='1F1B')\n"
    assert stage_words("torchtitan", text) == {"pipeline_parallel_schedule": "1F1B"}


def test_the_framework_of_a_plan_names_its_target() -> None:
    """A plan says `megatron-core`; its options are those of Megatron-LM."""
    assert target_name("megatron-core") == "megatron"
    assert {target_name(name) for name in TARGETS} == set(TARGETS)
    with pytest.raises(UnknownNameError, match="Did you mean 'megatron'"):
        target_name("megatrn")
