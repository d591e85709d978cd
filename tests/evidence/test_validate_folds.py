"""Folds: what stays together, what is left out, and that nothing depends on order."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.crossvalidate import (
    device_folds,
    framework_folds,
    members,
    model_folds,
    model_key,
    plain_folds,
    source_folds,
)
from evidence.groups import source_of
from profiles.errors import InputError
from shardwright.runs.complete import complete_run
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import read_runs

TRUTH = Path(__file__).parents[3] / "shared" / "truth"


def runs(count: int = 120) -> list[PublishedRun]:
    """Two sources of six models on two sizes each."""
    return [
        PublishedRun(
            row=i + 1,
            id=f"{'ultra' if i % 2 else 'llmf'}-{i}",
            model=f"m{i // 2 % 6}",
            num_layers=10 + i // 2 % 6,
            hidden_size=64,
            num_devices=8 if i % 3 else 16,
        )
        for i in range(count)
    ]


def test_folds_do_not_depend_on_order() -> None:
    rows = runs()
    mixed = rows.copy()
    random.Random(1).shuffle(mixed)
    for folds in (plain_folds, model_folds, source_folds):
        assert folds(rows) == folds(mixed)


def test_plain_folds_are_even_within_each_source() -> None:
    rows = runs()
    folds = plain_folds(rows)
    sizes = Counter((source_of(run.id), folds[run.id]) for run in rows)
    assert len(sizes) == 10
    assert set(sizes.values()) == {12}


def test_a_model_is_left_out_across_sources() -> None:
    rows = runs()
    folds = model_folds(rows)
    assert len(set(folds.values())) == 6
    assert all(folds[run.id] == model_key(run) for run in rows)
    batched = model_folds(rows, batches=3)
    assert len(set(batched.values())) == 3
    for run in rows:
        twins = [other for other in rows if model_key(other) == model_key(run)]
        assert {batched[twin.id] for twin in twins} == {batched[run.id]}


def test_a_framework_and_a_device_are_left_out_across_sources() -> None:
    """torchtitan has the coefficients of torchtitan-compiled, an H800 the processor of an H100."""
    rows = [
        replace(
            run,
            num_heads=8,
            ffn_size=256,
            vocab_size=1000,
            seq_len=1024,
            global_batch=8 * run.row,
            framework="torchtitan" if i % 3 else "nanotron",
            device="H800" if i % 4 else "A100",
        )
        for i, run in enumerate(runs(12))
    ]
    completed = [complete_run(run) for run in rows]
    frameworks, devices = framework_folds(completed), device_folds(completed)
    assert list(frameworks) == list(devices) == [run.id for run in rows]
    for i, run in enumerate(rows):
        assert frameworks[run.id] == ("torchtitan-compiled" if i % 3 else "nanotron")
        assert devices[run.id] == ("h100-sxm-80gb" if i % 4 else "a100-sxm-80gb")


def test_models_are_known_by_figures_else_by_name() -> None:
    one = PublishedRun(row=1, id="a", model="GPT-3", num_layers=96, hidden_size=12288)
    same = PublishedRun(row=2, id="b", model="gpt3 175B", num_layers=96, hidden_size=12288)
    moe = PublishedRun(row=3, id="c", num_layers=96, hidden_size=12288, num_experts=8)
    assert model_key(one) == model_key(same) != model_key(moe)
    assert model_key(PublishedRun(row=4, id="d", model="Gemma")) == "gemma"


def test_folds_cover_every_run_once() -> None:
    ids = [run.id for run in runs()]
    parts = members(source_folds(runs()), ids)
    assert list(parts) == ["llmf", "ultra"]
    assert sorted(place for places in parts.values() for place in places) == list(range(len(ids)))
    assert all(ids[place].startswith("llmf") for place in parts["llmf"])
    assert members({"llmf-0": "one", "gone": "two"}, ids) == {"one": [ids.index("llmf-0")]}


def test_one_fold_is_refused() -> None:
    with pytest.raises(InputError, match="1 folds leave nothing to fit on"):
        plain_folds(runs(), count=1)


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the folder shared/truth is not beside the checkout")
def test_folds_of_the_open_rows_are_stable() -> None:
    """A change here moves every cross-validated figure of the accuracy page."""
    rows = read_runs(TRUTH / "runs.csv")
    found = {
        folds.__name__: hashlib.sha256(repr(sorted(folds(rows).items())).encode()).hexdigest()[:12]
        for folds in (plain_folds, model_folds)
    }
    assert found == {
        "plain_folds": "1052f0b95200",
        "model_folds": "1bd5c62ff12c",
    }
