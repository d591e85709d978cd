"""`predict --runs --traced`: rows through transformers, the tracer and its figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.accuracy_markdown import accuracy_markdown
from evidence.baseline import predict_baseline
from evidence.compared_run import compare_runs
from evidence.config_from_figures import config_of_figures
from evidence.study import AccuracyStudy, Column
from evidence.traced_runs import traced_predictions
from evidence.traced_table import TRACED_WITHIN, traced_sources
from profiles.errors import ModelError
from profiles.model.figures.described_model import traced_figures
from profiles.model.figures.transformer import LatentAttention, StateSpace, Transformer
from profiles.model.loaders import ModelSpec
from shardwright.commands.tables.predict_runs import (
    OK,
    predict_table,
    predicted_runs,
)
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_measured, read_runs
from tests.shardwright.test_cli import shardwright
from tests.shardwright.test_predict_runs import RUN, cells, write

LLAMA = Transformer(
    num_layers=2,
    hidden_size=512,
    ffn_size=1408,
    num_heads=8,
    num_kv_heads=2,
    head_size=64,
    vocab_size=4000,
    gated=True,
    tied_embeddings=False,
)
GPT = replace(
    LLAMA,
    ffn_size=2048,
    num_kv_heads=8,
    gated=False,
    tied_embeddings=True,
    biases=True,
    learned_positions=256,
)
EXPERTS = replace(LLAMA, ffn_size=0, num_experts=8, top_k=2, expert_size=256)


@pytest.mark.parametrize(
    ("figures", "architecture"),
    [
        (LLAMA, "LlamaForCausalLM"),
        (replace(LLAMA, head_size=32, tied_embeddings=True), "LlamaForCausalLM"),
        (GPT, "GPT2LMHeadModel"),
        (replace(GPT, unfused_gelu=True), "GPT2LMHeadModel"),
        (replace(GPT, tied_embeddings=False), "GPT2LMHeadModel"),
        (replace(GPT, num_kv_heads=1), "GPTBigCodeForCausalLM"),
        (replace(GPT, learned_positions=0, unfused_gelu=True), "BloomForCausalLM"),
        (replace(GPT, learned_positions=0, num_kv_heads=2), "Starcoder2ForCausalLM"),
        (replace(GPT, learned_positions=0, biases=False, head_size=32), "ArceeForCausalLM"),
        (EXPERTS, "MixtralForCausalLM"),
        (
            replace(
                EXPERTS,
                ffn_size=1408,
                first_dense_layers=1,
                num_shared_experts=2,
                num_kv_heads=8,
                head_size=96,
                latent=LatentAttention(
                    query_rank=128, key_value_rank=64, nope_size=64, rope_size=32, value_size=64
                ),
            ),
            "DeepseekV3ForCausalLM",
        ),
    ],
)
def test_figures_come_back_from_the_module_built_of_them(
    figures: Transformer, architecture: str
) -> None:
    config = config_of_figures(figures, figures.num_layers)
    assert config["architectures"] == [architecture]
    spec = ModelSpec(name="built", source=architecture, config=config)
    found = replace(traced_figures(spec).figures, vector_parameters=0)
    assert found == figures


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"learned_positions": 256}, "learned positions and gated feed-forwards"),
        (
            {"state": StateSpace(heads=8, head_size=64, state_size=16), "state_layers": 1},
            "layers with a state",
        ),
        ({"num_experts": 4, "top_k": 1, "expert_size": 64, "num_shared_experts": 1}, "shared"),
    ],
)
def test_what_transformers_does_not_build(changes: dict[str, object], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        config_of_figures(replace(LLAMA, **changes), 2)  # type: ignore[arg-type] # by name


def test_rows_are_predicted_alike_through_the_tracer(tmp_path: Path) -> None:
    runs = [run for run in read_runs(FIGURES, lenient=True) if run.family in ("", "dense")][::12]
    described, traced = predicted_runs(runs), traced_predictions(runs)
    assert [row.id for row in traced] == [run.id for run in runs]
    both = [(a, b) for a, b in zip(described, traced, strict=True) if b.status == OK]
    assert len(both) >= 0.8 * len(runs)
    for a, b in both:
        assert a.step_time_s is not None
        assert b.step_time_s == pytest.approx(a.step_time_s, rel=0.02)
        if a.peak_memory_gib is not None:
            assert b.peak_memory_gib == pytest.approx(a.peak_memory_gib, rel=0.02)
        assert "figures traced from" in b.defaults
    for a, b in zip(described, traced, strict=True):
        if a.status == OK and b.status != OK:
            assert "not traced: " in b.status


def test_the_page_shows_both_errors() -> None:
    runs = [run for run in read_runs(FIGURES, lenient=True) if run.family in ("", "dense")][::12]
    ids = {run.id for run in runs}
    measured = [row for row in read_measured(FIGURES) if row.id in ids]
    shown = compare_runs(runs, measured, predicted_runs(runs))
    study = AccuracyStudy(
        columns=(Column(name="shipped", rows=shown),),
        judged="shipped",
        baseline=compare_runs(runs, measured, predict_baseline(runs)),
        traced=compare_runs(runs, measured, traced_predictions(runs)),
        table="a few runs",
        command="shardwright validate --traced",
        date="2026-11-22",
    )
    found = traced_sources(study)
    assert found
    for source in found:
        if source.rows:
            assert source.traced[0] <= TRACED_WITHIN * source.described[0]
    assert "## Step time from traced modules" in accuracy_markdown(study)
    assert "traced modules" not in accuracy_markdown(replace(study, traced=()))


def test_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, [cells(RUN), cells(RUN, id="odd", model="Mamba2 2.7B x")])
    predict_table(path, tmp_path / "out.csv", traced=True)
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["id"] for row in rows] == ["gpt", "odd"]
    assert "2 of 24 layers of GPT2LMHeadModel" in rows[0]["defaults"]
    assert shardwright("predict", "plan.json", "--traced").returncode == 2
