"""Megatron's layout of pipeline stages: read, refused with the nearest one, priced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.training_run.step.features import features
from simulator.training_run.work.stage_layers import stage_layers
from simulator.training_run.work.stage_share import stage_split
from simulator.values.pipeline_layout import (
    LayoutStage,
    layout_ranks,
    layout_stages,
    pipeline_layout_text,
    stages_of_layout,
)
from tests.simulator.described_runs import DEEPSEEK_V3, LLAMA_RUN, changed

WHERE = "--pipeline-layout"


@pytest.mark.parametrize(
    ("layout", "stages"),
    [("E|t|L", 3), ("Et*3|(tt|)*29,m|L", 32), ("Et|(tt|)*30mL", 32), ("nonsense!", None)],
)
def test_repetitions_are_written_out(layout: str, stages: int | None) -> None:
    found = layout_stages(layout)
    assert (found and len(found)) == stages


def test_nvidias_layout_of_deepseek_v3() -> None:
    # Megatron-MoE-ModelZoo, 256 H100: 3 layers, 29 x 2 layers, a prediction, the loss.
    stages = stages_of_layout("Et*3|(tt|)*29,m|L", 61, 1, WHERE)
    assert [stage.layers for stage in stages] == [3, *[2] * 29, 0, 0]
    assert [stage.predicting for stage in stages] == [*[0] * 30, 1, 0]
    # Stage 30 of 32 is the last of its rank on 2 ranks or more.
    assert layout_ranks("Et*3|(tt|)*29,m|L") == (2, 4, 8, 16, 32)


@pytest.mark.parametrize("pp", [4, 16])
def test_stages_of_a_rank_together_hold_what_they_hold_apart(pp: int) -> None:
    run = changed(LLAMA_RUN, model=DEEPSEEK_V3, pp=pp, pipeline_layout="Et*3|(tt|)*29,m|L")
    apart = stage_split(changed(run, pp=32))
    for rank, share in enumerate(stage_split(run)):
        for name in ("dense_layers", "expert_layers", "predicting_layers", "has_embedding"):
            assert getattr(share, name) == sum(getattr(part, name) for part in apart[rank::pp])
        assert share.has_head == (rank == pp - 1)


@pytest.mark.parametrize(
    ("layout", "layers", "ahead", "rule", "nearest"),
    [
        ("Et*2|t*3L", 6, 0, r"5 layers \(t\), the model 6", "Et*3|t*3L"),
        ("Et*4|t*3|L", 6, 0, r"7 layers \(t\), the model 6", "Et*3|t*3|L"),
        ("t*3|t*3L", 6, 0, r"has the embedding \(E\)", "Et*3|t*3L"),
        ("Et*3L|t*3", 6, 0, r"has the loss \(L\)", "Et*3|t*3L"),
        ("Et*3|t*3L", 6, 1, r"0 layers that predict a further token \(m\)", "Et*3|t*3mL"),
        ("Et*2|t*2m|L", 6, 1, r"4 layers \(t\), the model 6", "Et*3|t*3m|L"),
        ("Et*3m|t*3L", 6, 1, r"in one stage, after all layers", "Et*3|t*3mL"),
        ("tttE|t*3L", 6, 0, r"the order in a stage is E, t, m, L", "Et*3|t*3L"),
    ],
)  # fmt: skip
def test_an_impossible_layout_names_its_rule_and_the_nearest(
    layout: str, layers: int, ahead: int, rule: str, nearest: str
) -> None:
    with pytest.raises(InputError, match=rule) as refused:
        stages_of_layout(layout, layers, ahead, WHERE)
    assert str(refused.value).endswith(f"Use {nearest!r}.")
    assert pipeline_layout_text(stages_of_layout(nearest, layers, ahead, WHERE)) == nearest


def test_what_is_no_layout_is_refused() -> None:
    with pytest.raises(InputError, match="is not a layout of stages"):
        stages_of_layout("Et*3|(t", 6, 0, WHERE)
    with pytest.raises(InputError, match="'M' is not E"):
        stages_of_layout("EtM|tL", 2, 0, WHERE)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(0, 2), st.integers(1, 40))
def test_the_nearest_layout_is_possible_and_as_long(
    layers: list[int], ahead: int, wanted: int
) -> None:
    text = pipeline_layout_text([LayoutStage(layers=count) for count in layers])
    try:
        stages_of_layout(text, wanted, ahead, WHERE)
    except InputError as refused:
        nearest = str(refused).rpartition("Use '")[2].removesuffix("'.")
        assert len(stages_of_layout(nearest, wanted, ahead, WHERE)) == len(layers)


def test_stages_lie_on_ranks_in_turn() -> None:
    degrees = replace(LLAMA_RUN.degrees, pp=2, vpp=2)
    run = replace(LLAMA_RUN, degrees=degrees, schedule="interleaved", stack="megatron-core")
    run = replace(run, pipeline_layout="Et*7|t*9|t*9|t*7L")
    assert run.model.num_layers == 32
    assert [(each.rank, each.num_layers) for each in stage_split(run)] == [
        (0, 7), (1, 9), (0, 9), (1, 7),
    ]  # fmt: skip
    # Both ranks hold 16 layers; the layout of the framework's own split has the same step.
    assert stage_layers(run) == (16.0, 16.0)
    own, given_one = features([replace(run, pipeline_layout=""), run]).layers.tolist()
    assert own == given_one
    one_chunk = replace(run, degrees=replace(degrees, vpp=1), schedule="1f1b")
    assert [each.num_layers for each in stage_split(one_chunk)] == [16, 16]
    with pytest.raises(InputError, match="has 4 stages, pp 3 x vpp 1 needs 3"):
        stage_split(replace(one_chunk, degrees=replace(degrees, pp=3, vpp=1)))


def test_a_fuller_stage_makes_the_step_longer() -> None:
    degrees = replace(LLAMA_RUN.degrees, pp=2, vpp=1)
    run = replace(LLAMA_RUN, degrees=degrees, schedule="1f1b", stack="megatron-core")
    uneven = replace(run, pipeline_layout="Et*20|t*12L")
    assert stage_layers(run) == (16.0, 16.0)
    assert stage_layers(uneven) == (20.0, 12.0)
