"""Equal inputs, equal numbers: a model by its configuration's figures and by its trace's."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from planner.layout.layout_question import LayoutQuestion, context_of
from planner.layout.prices import Axes, legal_layouts
from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.figures.described_model import describe_model, traced_figures
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import resolve_model
from simulator.memory.footprint import footprint
from simulator.training_run.step.step_time import price_runs

# Model, cluster, global batch, sequence length: of the size that it is trained at.
MODELS = {
    "llama-3.1-8b": ("4x8xh100-sxm", 256, 8192),
    "llama-3.1-70b": ("16x8xh100-sxm", 512, 8192),
    "llama-3.1-405b": ("128x8xh100-sxm", 1024, 8192),
    "mixtral-8x7b": ("8x8xh100-sxm", 256, 4096),
    "qwen3-235b-a22b": ("32x8xh100-sxm", 1024, 4096),
    "deepseek-v3": ("64x8xh800-sxm", 2048, 4096),
    "gpt3-175b": ("32x8xh100-sxm", 512, 2048),
}
FRAMEWORKS = ("megatron-core", "torch-fsdp", "torchtitan-compiled", "torchtitan", "torch")
LAYOUTS = 50


@functools.cache
def traced(model: str) -> Transformer:
    return traced_figures(resolve_model(model)).figures


def same_numbers(figures: Transformer, other: Transformer, model: str, stack: str, within: float):
    """Step and peak memory of random layouts, of both figures."""
    on, batch, seq = MODELS[model]
    question = LayoutQuestion(
        name=model,
        model=figures,
        cluster=get_cluster(on),
        stack=stack,
        global_batch=batch,
        seq_len=seq,
        precision="bf16",
        space=Axes(),
    )
    try:
        base, context = context_of(question)
    except UnknownNameError:
        pytest.skip(f"{stack} is no framework here")
    layouts = legal_layouts(question.space, context)
    chosen = np.random.default_rng(11).choice(len(layouts), min(LAYOUTS, len(layouts)), False)
    runs = [layouts.run(base, int(index)) for index in chosen]
    others = [replace(run, model=other) for run in runs]
    steps = price_runs(runs).parts.total_s / price_runs(others).parts.total_s
    assert np.abs(steps - 1.0).max() < within
    for run, same in zip(runs, others, strict=True):
        assert footprint(same).needed_bytes == pytest.approx(
            footprint(run).needed_bytes, rel=within
        )


def pairs() -> list[object]:
    """Every model on one framework and every framework with one model; the others are slow."""
    few = {(model, "megatron-core") for model in MODELS} - {("deepseek-v3", "megatron-core")}
    few |= {("llama-3.1-8b", stack) for stack in FRAMEWORKS}
    few |= {("deepseek-v3", "torch-fsdp"), ("mixtral-8x7b", "torch")}
    return [
        pytest.param(model, stack, marks=() if (model, stack) in few else pytest.mark.slow)
        for model in MODELS
        for stack in FRAMEWORKS
    ]


@pytest.mark.parametrize(("model", "stack"), pairs())
def test_traced_and_configured_models_have_the_same_numbers(model: str, stack: str) -> None:
    # transformers builds no layers that predict further tokens.
    figures = replace(describe_model(model).figures, predicted_ahead=0)
    same_numbers(figures, traced(model), model, stack, 0.02)


@pytest.mark.parametrize("stack", FRAMEWORKS)
def test_a_llama_in_plain_torch_has_those_of_llama(stack: str) -> None:
    plain = describe_model("examples.plain_llama:llama_8b")
    assert plain.sequence_length == 8192
    figures = describe_model("llama-3.1-8b").figures
    assert plain.figures == figures
    same_numbers(figures, plain.figures, "llama-3.1-8b", stack, 0.03)
