"""Framework files: every one that ships, one of a user's own, and what happens to wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import DocumentError, InputError, UnknownNameError
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import (
    FRAMEWORK_FOLDER,
    framework_names,
    framework_of,
    load_framework,
    load_stack,
)
from simulator.training_run.framework.run_conditions import run_conditions
from tests.simulator.described_runs import GPT_RUN, changed


@pytest.mark.parametrize("name", framework_names())
def test_every_framework_that_ships(name: str) -> None:
    framework = load_framework(name)
    rules = framework.rules
    assert framework.name == rules.name == name
    for source, date in (
        (framework.source, framework.date),
        (rules.source, rules.date),
        *((memory.source, memory.date) for memory in framework.memory),
    ):
        assert len(source) > 20
        assert len(date) == 10
    # Every stage that may be chosen is described once, and what a name means is found by it.
    stages = [stage for memory in framework.memory for stage in memory.zero_stages]
    assert len(set(stages)) == len(stages)
    assert set(rules.zero_stages_at(1)) <= set(stages)
    assert all(framework_of(alias) == name for alias in framework.names)
    assert "dp" in rules.axes
    assert ("vpp" in rules.axes) <= ("interleaved" in rules.schedules) or name == "torch-fsdp"
    # 2 or 4 bytes; an optimizer reads and writes master weights and two moments at least.
    assert {framework.sent_weight_bytes, framework.summed_gradient_bytes} <= {2, 4}
    assert framework.optimizer_traffic_bytes >= 24
    if framework.coefficients_of:
        assert not load_framework(framework.coefficients_of).coefficients_of


def test_bytes_per_parameter_of_mixed_precision_adam_are_the_published_ones():
    # ZeRO (arXiv 1910.02054, section 3.1): 2 + 2 + 12 bytes for fp16 with fp32 Adam. Here the
    # gradients are fp32, 2 more: 4 (master) + 2 (working copy) + 4 + 8.
    stack = load_stack()
    sizes = stack.bytes_of("bf16")
    states = stack.optimizer_bytes.of("adamw")
    total = sizes.parameter_bytes + sizes.working_copy_bytes + sizes.gradient_bytes + states
    assert total == 18
    whole = stack.bytes_of("fp32")
    assert whole.parameter_bytes + whole.gradient_bytes + states == 16
    assert sizes.compute_bytes == 2
    assert whole.compute_bytes == 4


def write(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text('schema = "shardwright/framework@1"\n' + text, encoding="utf-8")
    return str(path)


MINE = """
like = "megatron-core"
name = "mine"
date = "2026-11-22"
source = "a fork of Megatron-Core, for this test"
names = []
norm_passes = 20
[rules]
schedules = ["1f1b", "zbv"]
[memory]
state_bytes = 6
"""


def test_a_framework_of_ones_own_is_like_another_but_for_what_it_says(tmp_path: Path) -> None:
    core, mine = load_framework("megatron-core"), load_framework(write(tmp_path, MINE))
    assert (mine.layer.norm_passes, mine.rules.schedules) == (20, ("1f1b", "zbv"))
    assert mine.memory_at(1).state_bytes == 6
    assert mine.memory_at(1).layers == core.memory_at(1).layers
    assert mine.rules.axes == core.rules.axes
    assert mine.layer.kernels_forward == core.layer.kernels_forward


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"zbv"', '"zvb"', "Did you mean 'zbv'"),
        ("norm_passes", "norm_pases", "Did you mean 'norm_passes'"),
        ("state_bytes = 6", 'state_bytes = "6"', "state_bytes"),
        ("state_bytes = 6", "zero_stages = [0]", "ZeRO stage 1"),
        ("[memory]", "zero_stages_without_pipeline = [4]\n[memory]", "ZeRO stage 4"),
        ("megatron-core", "megatron-cor", "Did you mean 'megatron-core'"),
        ("@1", "@2", "is not a shardwright/framework@1 file"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = Path(write(tmp_path, MINE))
    path.write_text(path.read_text(encoding="utf-8").replace(old, new, 1), encoding="utf-8")
    with pytest.raises((InputError, DocumentError), match=says):
        load_framework(str(path))


ONE = changed(GPT_RUN, tp=1, pp=1, dp=1, global_batch=1, schedule="none")


@pytest.mark.parametrize(
    ("where", "ranks", "kept"),
    [("layer", range(4), True), ("head", [3], True), ("embedding", [0], True),
     ("step", range(4), False)],
)  # fmt: skip
def test_a_moment_is_on_the_ranks_of_its_place(
    tmp_path: Path, where: str, ranks: Sequence[int], kept: bool
) -> None:
    """One tensor larger than all others; while the optimizer runs no activation is kept."""
    tensor = '{ name = "large", width = "hidden", bytes = 1e6, split = "none" }'
    moment = f'{{ name = "mine", where = "{where}", tensors = [{tensor}] }}'
    path = write(tmp_path, MINE.replace("state_bytes = 6", f"moments = [{moment}]"))
    run = changed(ONE, pp=4, schedule="1f1b", global_batch=4, stack=path)
    found = footprint(run)
    assert [r for r, each in enumerate(found.details) if each.moment == "mine"] == list(ranks)
    for rank in ranks:
        assert found.ranks[rank].transient_bytes >= 1e6 * run.tokens * run.model.hidden_size
        assert (found.ranks[rank].activations_bytes > 0) == kept


def test_who_shares_the_vocabulary() -> None:
    """Our executor where tp divides it; frameworks that split it in any case, others never."""
    even = replace(GPT_RUN.model, vocab_size=50_000)
    for name in framework_names():
        framework = load_framework(name)
        uneven = replace(even, vocab_size=50_001)
        found = [framework.vocabulary_ranks(model, 4) for model in (even, uneven)]
        padded = 1 if framework.own_executor else 4
        assert found == ([4, padded] if framework.splits_vocabulary else [1, 1])


GATED, PLAIN = (replace(GPT_RUN.model, gated=True), replace(GPT_RUN.model, biases=False))


@pytest.mark.parametrize(
    ("changes", "gained", "lost"),
    [
        ({"cp": 2}, {"context-parallel", "data-parallel"}, set()),
        ({"tp": 2}, {"tensor-parallel", "split-vocabulary"}, {"whole-vocabulary"}),
        ({"sequence_parallel": True}, {"sequence-parallel"}, {"no-sequence-parallel"}),
        ({"dp": 2, "global_batch": 2}, {"data-parallel"}, set()),
        ({"micro_batch": 2, "global_batch": 2}, set(), set()),
        ({"global_batch": 2}, {"several-micro-batches"}, set()),
        ({"zero_stage": 1}, set(), {"unsharded-states"}),
        ({"zero_stage": 2}, set(), {"unsharded-states"}),
        ({"zero_stage": 3}, {"sharded-parameters"}, {"unsharded-states"}),
        *(({"precision": p}, {"fp8"}, {"no-fp8"}) for p in ("fp8", "int8", "mxfp8", "nvfp4")),
        ({"recompute": "alternate"}, {"alternate"}, set()),
        ({"lora": True}, set(), {"trained-weights"}),
        ({"model": GATED}, {"gated"}, {"plain"}),
        ({"model": PLAIN}, {"no-layer-norm"}, {"layer-norm"}),
        ({"model": replace(GPT_RUN.model, unfused_gelu=True)}, {"unfused-gelu"}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_conditions_of_a_run(changes: dict[str, Any], gained: set[str], lost: set[str]) -> None:
    framework = load_framework("megatron-2021")
    before, after = (run_conditions(run, framework) for run in (ONE, changed(ONE, **changes)))
    assert (after - before, before - after) == (gained, lost)
    assert ("eager" in before) == bool(framework.compiled_name) != ("compiled" in before)


def test_files_that_are_like_each_other(tmp_path: Path) -> None:
    path = write(tmp_path, MINE.replace("megatron-core", str(tmp_path / "mine.toml")))
    with pytest.raises(DocumentError, match="circular"):
        load_framework(path)


@pytest.mark.parametrize(
    ("alias", "framework"),
    [
        ("megatron", "megatron-"),
        ("deepspeed", "megatron-deepspeed"),
        ("fsdp", "torch-fsdp"),
        ("nemo", "megatron-bridge"),
        ("nanotrom", "nanotron"),
    ],
)
def test_an_alias_says_what_it_stands_for(alias: str, framework: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{framework}"):
        load_framework(alias)


def test_passes_of_eager_code_are_not_those_of_a_compiled_graph() -> None:
    assert load_framework("megatron-core").expert_bias_passes == 14
    for name in ("neuronx", "neuronx-megatron", "gaudi"):
        framework = load_framework(name)
        assert framework.expert_kernels == framework.expert_bias_passes == 0


def test_files_lie_where_they_are_looked_for() -> None:
    assert {path.stem for path in FRAMEWORK_FOLDER.glob("*.toml")} == set(framework_names())
