"""`predict --runs`: one row per row whatever they hold."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from profiles.errors import DocumentError, UnknownNameError
from shardwright.commands.tables.predict_runs import (
    PREDICTED_COLUMNS,
    predict_table,
    predicted_runs,
    row_of,
)
from shardwright.runs.predict_runs import predict_runs
from shardwright.runs.run import FIGURES, RUN_COLUMNS, PublishedRun
from shardwright.runs.run_table import read_runs
from tests.shardwright.predicted_file import read_predicted
from tests.shardwright.test_cli import shardwright

ROOT = Path(__file__).parents[2]

RUN = PublishedRun(
    row=1,
    id="gpt",
    model="GPT h2048 L24",
    num_layers=24,
    hidden_size=2048,
    num_heads=16,
    seq_len=1024,
    device="a100-sxm-80gb",
    num_devices=8,
    dp=2,
    tp=2,
    pp=2,
    micro_batch=4,
    global_batch=32,
    framework="Megatron-LM (per paper)",
)
COLUMNS = [
    name for name in RUN_COLUMNS if getattr(RUN, name) not in (None, "") or name == "precision"
]


def cells(run: PublishedRun, **changes: str) -> dict[str, str]:
    """The row of a table, with cells as text that need not be right."""
    return {name: str(getattr(run, name)) for name in COLUMNS} | changes


def write(
    folder: Path,
    rows: Iterable[dict[str, str]],
    columns: Sequence[str] = COLUMNS,
    name: str = "runs.csv",
) -> Path:
    path = folder / name
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def predicted(path: Path) -> list[dict[str, str]]:
    """The rows that the command writes."""
    output = path.with_name("out.csv")
    predict_table(path, output)
    return list(csv.DictReader(io.StringIO(output.read_text(encoding="utf-8"))))


def test_rows_keep_their_order(tmp_path: Path) -> None:
    ids = ["b", "a", "c2", "c10", "z", "0"]
    found = predicted(write(tmp_path, [cells(RUN, id=name) for name in ids]))
    assert [row["id"] for row in found] == ids
    assert list(found[0]) == list(PREDICTED_COLUMNS)
    # Equal runs under six names are six equal predictions.
    assert len({tuple(list(row.values())[1:]) for row in found}) == 1


def test_a_row_says_its_figures_and_what_was_assumed(tmp_path: Path) -> None:
    (row,) = predicted(write(tmp_path, [cells(RUN)]))
    low, value, high = (float(row[f"step_time{x}_s"]) for x in ("_low", "", "_high"))
    assert 0.0 < low <= value <= high
    # 32 sequences of 1024 tokens, 6 x 1.3e9 flop each, on 8 A100: 0.1 s at the peak.
    assert 0.15 < value < 1.0
    low, value, high = (float(row[f"peak_memory{x}_gib"]) for x in ("_low", "", "_high"))
    assert 5.0 < low <= value <= high < 80.0
    assert (row["fits"], row["status"]) == ("1", "ok")
    for words in ("fp16", "vocabulary 50257", "ZeRO stage 0", "schedule 1f1b"):
        assert words in row["defaults"]
    # And what was written reads as a file of predictions.
    (read,) = read_predicted(tmp_path / "out.csv")
    assert (read.id, read.fits) == ("gpt", True)
    # Six digits are kept of what was predicted.
    (exact,) = predict_runs([RUN])
    assert exact.step_time_s is not None
    assert read.step_time_s == pytest.approx(exact.step_time_s.value, rel=1e-5)


def test_measured_columns_are_never_read(tmp_path: Path) -> None:
    """Wrong figures, no figures and no columns at all: byte for byte the same predictions."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    columns = list(rows[0])
    measured = [name for name in columns if name not in RUN_COLUMNS]
    assert {"step_time_s", "peak_memory_gib", "notes"} <= set(measured)
    variants = (
        write(tmp_path, rows, columns, "as_published.csv"),
        write(tmp_path, [row | dict.fromkeys(measured, "9") for row in rows], columns, "nines.csv"),
        write(tmp_path, [row | dict.fromkeys(measured, "") for row in rows], columns, "empty.csv"),
        write(tmp_path, rows, [name for name in columns if name in RUN_COLUMNS], "without.csv"),
    )
    texts = []
    for path in variants:
        predict_table(path, tmp_path / "out.csv")
        texts.append((tmp_path / "out.csv").read_bytes())
    assert texts[0].count(b"\n") == len(rows) + 1
    assert len(set(texts)) == 1


def test_a_row_is_predicted_alike_in_any_company() -> None:
    """Prices of equal shapes are shared between rows; what a row gets may not depend on others."""
    runs = read_runs(FIGURES)[:24]
    together = predicted_runs(runs)
    for run, row in zip(runs[::6], together[::6], strict=True):
        (alone,) = predicted_runs([run])
        assert row_of(alone) == row_of(row)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"dp": "two"}, "'two' is not a whole number of 1 or more"),
        ({"seq_len": "-1"}, "'-1' is not a whole number of 1 or more"),
        ({"device": "h1000"}, "unknown device 'h1000'"),
        ({"tp": "3"}, "tp=3 x pp=2 x cp=1 does not divide 8 devices"),
        ({"precision": "int3"}, "the precision 'int3' is not known"),
        ({"global_batch": ""}, "no global batch is given"),
        # No device can hold a quarter of a head, nor a group of queries and a half.
        (
            {"tp": "8", "pp": "1", "dp": "1", "num_heads": "2"},
            "tp=8 does not divide 2 attention heads",
        ),
    ],
)
def test_a_bad_row_costs_only_itself(tmp_path: Path, changes: dict[str, str], why: str) -> None:
    rows = [cells(RUN, id="before"), cells(RUN, id="bad", **changes), cells(RUN, id="after")]
    before, bad, after = predicted(write(tmp_path, rows))
    assert bad["status"].startswith("unsupported: ")
    assert why in bad["status"]
    assert {bad[name] for name in PREDICTED_COLUMNS[1:8]} == {""}
    (alone,) = predicted(write(tmp_path, rows[:1]))
    assert before["step_time_s"] == after["step_time_s"] == alone["step_time_s"] != ""


def test_heads_that_no_layout_can_deal_out() -> None:
    """7 heads for 2 ranks, and 8 queries' heads for 3 of keys and values, in a fused kernel too."""
    fused = replace(RUN, framework="Megatron-LM v0.12.0")
    odd = replace(fused, id="odd", num_heads=7, head_dim=128)
    groups = replace(fused, id="groups", num_heads=8, num_kv_heads=3)
    found = predict_runs([fused, odd, groups, replace(fused, id="last")])
    assert [row.why_not for row in found] == [
        "",
        "run 'odd' cannot be predicted: tp=2 does not divide 7 attention heads",
        "run 'groups' cannot be predicted: 3 key-value heads do not divide 8 query heads",
        "",
    ]
    assert found[0].step_time_s is not None
    assert found[0].step_time_s == found[3].step_time_s


counts = st.sampled_from((None, 1, 2, 3, 4, 7, 8, 16, 64))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
# One layer on two ranks of a V: the rank without the head has none, and nothing to idle between.
@example(
    dp=None,
    tp=None,
    pp=2,
    vpp=None,
    ep=None,
    batches=(None, 1),
    heads=(None, None),
    layers=1,
    experts=None,
    device="a100",
    words=("", "zbv", ""),
)
@given(
    dp=counts,
    tp=counts,
    pp=counts,
    vpp=counts,
    ep=counts,
    batches=st.tuples(counts, st.sampled_from((1, 6, 63, 512))),
    heads=st.tuples(counts, counts),
    layers=counts,
    experts=st.sampled_from((None, 1, 7, 8)),
    device=st.sampled_from(("a100", "h100", "gb200", "tpu-v5p", "mi300x", "trainium2")),
    words=st.tuples(
        st.sampled_from(("", "Megatron-LM", "nanotron", "MaxText", "composer", "NeMo 25.01")),
        st.sampled_from(("", "1f1b", "interleaved", "zb", "zb-2p", "zbv", "v-min", "dualpipe")),
        st.sampled_from(("", "full", "selective")),
    ),
)
def test_no_row_breaks_the_table(
    dp: int | None,
    tp: int | None,
    pp: int | None,
    vpp: int | None,
    ep: int | None,
    batches: tuple[int | None, int],
    heads: tuple[int | None, int | None],
    layers: int | None,
    experts: int | None,
    device: str,
    words: tuple[str, str, str],
) -> None:
    """Whatever a row says, it gets a finite prediction without negative parts, or a reason."""
    odd = replace(
        RUN,
        id="odd",
        dp=dp,
        tp=tp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        micro_batch=batches[0],
        global_batch=batches[1],
        num_heads=heads[0],
        num_kv_heads=heads[1],
        num_layers=layers,
        num_experts=experts,
        top_k=1 if experts else None,
        moe_ffn_size=1024 if experts else None,
        first_dense_layers=1 if experts else None,
        device=device,
        num_devices=(dp or 1) * (tp or 1) * (pp or 1),
        framework=words[0],
        schedule=words[1],
        recompute=words[2],
    )
    found, usual = predict_runs([odd, RUN])
    assert usual.step_time_s is not None
    if found.prediction is None:
        assert found.why_not.startswith("run 'odd' cannot be predicted: ")
        return
    interval = found.prediction.step_time_s
    assert 0.0 < interval.low <= interval.value <= interval.high < math.inf
    assert min(found.prediction.seconds.values()) >= 0.0
    if found.shown_memory_bytes is not None:
        assert 0.0 < found.shown_memory_bytes.value < math.inf


def test_without_a_memory_file_the_time_is_still_predicted() -> None:
    """nanotron's file covers ZeRO 0 and 1, which is all that it has."""
    (found,) = predict_runs([replace(RUN, framework="nanotron", zero_stage=3, pp=1, dp=4)])
    assert found.why_not == ""
    assert found.prediction is not None
    assert found.shown_memory_bytes is None
    assert found.prediction.fits is None


def test_nothing_in_nothing_out(tmp_path: Path) -> None:
    assert predict_runs([]) == ()
    assert predicted(write(tmp_path, [])) == []


def test_parts_of_a_prediction_add_up_to_it() -> None:
    for found in predict_runs(read_runs(FIGURES)[::9]):
        assert found.prediction is not None, found.why_not
        parts = found.prediction.seconds
        assert sum(parts.values()) == pytest.approx(found.prediction.step_time_s.value)
        assert min(parts.values()) >= 0.0


def test_a_column_that_is_not_known_names_the_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, [cells(RUN)], [*COLUMNS[:-1], "framwork"])
    with pytest.raises(UnknownNameError, match="Did you mean 'framework'"):
        predict_table(path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    with pytest.raises(DocumentError, match="no such file"):
        predict_table(tmp_path / "none.csv", tmp_path / "out.csv")


def test_layouts_that_failed_are_a_table_too(tmp_path: Path) -> None:
    """The columns of the Ultra-Scale sweep's list: 80B with everything on one rank cannot fit,
    1B over eight devices does."""
    path = tmp_path / "failed.csv"
    path.write_text(
        "model,nodes,micro_batch,grad_accum,dp,pp,tp,zero_stage\n"
        "80B,1,1,32,8,1,1,0\n"
        "1B,1,1,32,8,1,1,0\n"
        "8B,1,1,256,1,2,4,0\n",
        encoding="utf-8",
    )
    found = predicted(path)
    assert [row["id"] for row in found] == ["failed-1", "failed-2", "failed-3"]
    assert [row["fits"] for row in found][:2] == ["0", "1"]
    assert all(row["status"] == "ok" for row in found)
    sizes = [float(row["peak_memory_gib"]) for row in found]
    assert sizes[0] > 10 * sizes[1]


def test_the_command_and_its_exit_codes(tmp_path: Path) -> None:
    path = write(tmp_path, [cells(RUN), cells(RUN, id="bad", dp="two")])
    done = shardwright("predict", "--runs", str(path))
    # Rows without a prediction are a result, not a failure.
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["id"] for row in rows] == ["gpt", "bad"]
    assert "predicted 1 of 2 runs" in done.stderr
    wrong = shardwright("predict", "--runs", str(write(tmp_path, [], ["id", "num_layer"])))
    assert wrong.returncode == 2
    assert "unknown column 'num_layer'" in " ".join(wrong.stderr.split())
    assert "num_layers" in wrong.stderr
    assert wrong.stdout == ""
