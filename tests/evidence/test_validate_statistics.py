"""Errors, choices and targets against hand-made rows and against an independent scorer."""

from __future__ import annotations

import csv
import importlib.util
import math
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence.choice import fit_verdicts, pair_order, regret
from evidence.compared_run import ComparedRun, compare_runs
from evidence.groups import device_of, family_of, size_of, source_of
from evidence.statistics import (
    accuracy,
    memory_summary,
    rank_correlation,
    spearman,
    step_time_summary,
    worst_rows,
)
from evidence.targets import TARGETS, outcome
from profiles.errors import InputError
from shardwright.commands.tables.predict_runs import PREDICTED_COLUMNS, PredictedRun
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured, read_measured, read_runs
from tests.shardwright.predicted_file import read_predicted

TRUTH = Path(__file__).parents[3] / "shared" / "truth"


def row(
    measured: float | None,
    predicted: float | None,
    *,
    name: str = "ultra-1",
    interval: tuple[float, float] | None = None,
    model: str = "m",
    devices: int = 8,
    memory: tuple[float | None, float | None] = (None, None),
) -> ComparedRun:
    low, high = interval if interval is not None else (None, None)
    run = PublishedRun(
        row=1, id=name, model=model, num_devices=devices, seq_len=1024, global_batch=64
    )
    return ComparedRun(
        run=run,
        measured=Measured(id=name, step_time_s=measured, peak_memory_gib=memory[0]),
        predicted=PredictedRun(
            id=name,
            step_time_s=predicted,
            step_time_low_s=low,
            step_time_high_s=high,
            peak_memory_gib=memory[1],
            status="ok" if predicted is not None else "unsupported: no layout",
        ),
    )


def test_a_summary_by_hand() -> None:
    """+10 %, -20 %, +60 %: mean 30 %, median 20 %, bias +50/3 %; one of three intervals holds."""
    rows = [
        row(1.0, 1.1, interval=(0.9, 1.2)),
        row(2.0, 1.6, interval=(1.5, 1.7)),
        row(1.0, 1.6),
        row(None, 1.0),
        row(1.0, None),
    ]
    step = step_time_summary(rows)
    assert step.count == 3
    assert step.mean_absolute == pytest.approx(0.30)
    assert step.median_absolute == pytest.approx(0.20)
    assert step.bias == pytest.approx(0.5 / 3)
    assert step.interval_coverage == pytest.approx(1 / 3)
    whole = accuracy(rows)
    assert (whole.rows, whole.measured, whole.predicted_share) == (5, 4, 0.8)
    assert math.isnan(memory_summary(rows).mean_absolute)
    assert [r.predicted.step_time_s for r in worst_rows(rows, 2)] == [1.6, 1.6]


def test_spearman_by_hand() -> None:
    """Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15) = 0.8; ties share their mean rank."""
    assert spearman([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(0.8)
    assert spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=12, unique=True))
def test_rank_correlation_of_a_perfect_and_of_a_reversed_order(times: list[float]) -> None:
    right = [row(t, 2 * t) for t in times]
    wrong = [row(t, 1 / t) for t in times]
    assert rank_correlation(right) == pytest.approx(1.0)
    assert rank_correlation(wrong) == pytest.approx(-1.0)
    assert math.isnan(rank_correlation(right[:2]))


def test_regret_by_hand() -> None:
    """First ranked runs 1.1 s, the best 1.0 s: 10 %; a group of four layouts does not count."""
    group = [row(m, p) for m, p in ((1.0, 3.0), (1.1, 1.0), (2.0, 2.0), (3.0, 4.0), (1.5, 5.0))]
    small = [row(m, 1 / m, devices=16) for m in (1.0, 2.0, 3.0, 4.0)]
    cost = regret([*group, *small])
    assert (cost.groups, cost.mean, cost.worst) == (1, pytest.approx(0.1), pytest.approx(0.1))
    assert math.isnan(regret(small).mean)
    # Of equal predictions the earlier row counts, as with an index of the minimum.
    assert regret([row(m, 1.0) for m in (1.2, 1.0, 1.1, 1.3, 1.4)]).mean == pytest.approx(0.2)


def test_order_of_pairs_by_hand() -> None:
    """1.00 and 1.02 are too close to count; of the other two pairs one is right."""
    pairs = pair_order([row(1.0, 2.0), row(1.02, 1.0), row(2.0, 1.5)])
    assert (pairs.pairs, pairs.right, pairs.share) == (2, 1, 0.5)
    assert pair_order([row(1.0, 1.0), row(2.0, 1.0)]).right == 0


def test_balanced_accuracy_by_hand() -> None:
    ran = [
        ComparedRun(
            run=PublishedRun(row=1, id=f"ultra-{i}"),
            measured=Measured(id=f"ultra-{i}"),
            predicted=PredictedRun(id=f"ultra-{i}", fits=fits),
        )
        for i, fits in enumerate((True, True, True, False, None))
    ]
    failed = [PredictedRun(id=f"failed-{i}", fits=fits) for i, fits in enumerate((False, True))]
    verdicts = fit_verdicts(ran, failed)
    assert verdicts.balanced_accuracy == pytest.approx((0.75 + 0.5) / 2)
    assert math.isnan(fit_verdicts(ran, []).balanced_accuracy)


def test_joining_refuses_strangers_and_twins() -> None:
    runs = [PublishedRun(row=1, id="a"), PublishedRun(row=2, id="b")]
    rows = compare_runs(runs, [Measured(id="b", step_time_s=1.0)], [PredictedRun(id="b")])
    assert [r.supported for r in rows] == [False, True]
    with pytest.raises(InputError, match="no run has it"):
        compare_runs(runs, [], [PredictedRun(id="c")])
    with pytest.raises(InputError, match="predicted twice"):
        compare_runs(runs, [], [PredictedRun(id="a"), PredictedRun(id="a")])


def test_a_target_is_missed_without_a_compared_row() -> None:
    (target,) = [t for t in TARGETS if t.name == "zb"]
    good = row(1.0, 1.04, name="zb_t4_x", memory=(50.0, 52.0))
    assert outcome(target, [good]).met
    assert not outcome(target, [row(1.0, 1.06, name="zb_t4_x", memory=(50.0, 52.0))]).met
    assert not outcome(target, [row(1.0, 1.0, name="zb_t4_x")]).met  # no memory was predicted
    assert not outcome(target, []).met


def test_names_of_groups() -> None:
    names = ("simumax-b200-03", "korthikanti-tab5-gpt3", "mlperf_v4.0_gpt3", "megatron_sc21_1")
    assert [source_of(name) for name in names] == [
        "simumax-b200",
        "korthikanti-tab5",
        "mlperf",
        "megatron-sc21",
    ]
    run = PublishedRun(row=1, id="a", device="TPU-trillium", family="moe")
    assert (device_of(run), family_of(run), size_of(run)) == ("tpu-v6e", "moe", "not stated")
    assert device_of(PublishedRun(row=1, id="a", device="abacus")) == "abacus"


def synthetic(ids: Sequence[str], truth: dict[str, Measured], seed: int) -> list[list[object]]:
    """Predictions at random around the truth; one row in twenty is not predicted."""
    rng = random.Random(seed)
    rows: list[list[object]] = []
    for name in ids:
        if rng.random() < 0.05:
            rows.append([name, *[""] * 7, "unsupported: made up", *[""] * 4])
            continue
        known = truth.get(name, Measured(id=name))
        step = (known.step_time_s or 1.0) * rng.lognormvariate(0, 0.1)
        peak = (known.peak_memory_gib or 10.0) * rng.lognormvariate(0, 0.05)
        fits = int(rng.random() < 0.7)
        rows.append(
            [
                name,
                step,
                step * 0.85,
                step * 1.15,
                peak,
                peak * 0.9,
                peak * 1.1,
                fits,
                "ok",
                *[""] * 4,
            ]
        )
    return rows


def write(path: Path, rows: list[list[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([PREDICTED_COLUMNS, *rows])
    return path


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the folder shared/truth is not beside the checkout")
@pytest.mark.skipif(
    importlib.util.find_spec("pandas") is None, reason="the independent scorer needs pandas"
)
def test_the_same_figures_as_the_independent_scorer(tmp_path: Path) -> None:
    runs, measured = read_runs(TRUTH / "runs.csv"), read_measured(TRUTH / "runs.csv")
    failed = read_runs(TRUTH / "failed.csv")
    made = write(
        tmp_path / "p.csv", synthetic([r.id for r in runs], {m.id: m for m in measured}, 3)
    )
    lost = write(tmp_path / "f.csv", synthetic([r.id for r in failed], {}, 4))
    said = subprocess.run(
        [sys.executable, TRUTH / "score.py", made, TRUTH / "runs.csv", "--failed-pred", lost],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    rows = compare_runs(runs, measured, read_predicted(made))
    of = {name: [r for r in rows if r.run.id.startswith(name)] for name in ("ultra", "zb_", "vtr")}
    for title, name in (
        ("simumax-b200", "simumax-b200"),
        ("zero bubble", "zb_"),
        ("bloom", "bloom"),
    ):
        mine = [r for r in rows if r.run.id.startswith(name)]
        step, peak = step_time_summary(mine), memory_summary(mine)
        shown = (
            f"{step.count:5d} {step.mean_absolute:7.1%} {step.median_absolute:7.1%} "
            f"{step.bias:+7.1%} {step.interval_coverage:7.1%} {peak.mean_absolute:7.1%}"
        )
        assert re.search(rf"^{title} +\d+ {re.escape(shown)}", said, re.MULTILINE), title
    (healthy,) = [t for t in TARGETS if t.name.startswith("ultra at")]
    chosen = step_time_summary(r for r in rows if healthy.holds(r))
    assert re.search(rf"^ultra mfu>=20% +\d+ +{chosen.count} ", said, re.MULTILINE)
    multi = regret(r for r in rows if r.run.id.startswith("vtrain-multi"))
    sweep = regret(of["ultra"])
    for name, cost in (("vtrain-multi", multi), ("ultra", sweep)):
        shown = f"groups {cost.groups:3d} mean {cost.mean:6.1%} max {cost.worst:6.1%}"
        assert re.search(rf"^regret {name} +{re.escape(shown)}", said, re.MULTILINE)
    order = pair_order(of["zb_"])
    assert f"schedule order {order.right}/{order.pairs}" in said
    verdicts = fit_verdicts(of["ultra"], read_predicted(lost))
    assert f"balanced {verdicts.balanced_accuracy:.1%}" in said
    whole = accuracy(rows)
    assert f"predicted {whole.predicted_share:.1%} of 2068 rows; interval coverage " in said
    assert f"interval coverage {whole.step_time.interval_coverage:.1%};" in said
