"""Published runs: what is read, what is never reachable, and what a bad cell says."""

from __future__ import annotations

import csv
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.csv_table import count_cell
from profiles.errors import DocumentError, UnknownNameError
from shardwright.runs.run import FIGURES, MEASURED_COLUMNS, RUN_COLUMNS, PublishedRun
from shardwright.runs.run_table import read_failed_layouts, read_measured, read_runs

TRUTH = Path(__file__).parents[3] / "shared" / "truth"
HEAD = "id,model,num_layers,hidden_size,gated_mlp,dp,pp,vpp,step_time_s,notes"
ROW = 'a-1,"GPT, 1B",16,2048,1.0,8,1,,3.26,"42 TFLOP/s, printed"'


def write(folder: Path, *lines: str, encoding: str = "utf-8", ends: str = "\n") -> Path:
    path = folder / "runs.csv"
    path.write_bytes((ends.join(lines) + ends).encode(encoding))
    return path


def test_a_row_is_read_by_column(tmp_path: Path) -> None:
    (run,) = read_runs(write(tmp_path, HEAD, ROW))
    assert run == PublishedRun(
        row=1,
        id="a-1",
        model="GPT, 1B",
        num_layers=16,
        hidden_size=2048,
        gated_mlp=True,
        dp=8,
        pp=1,
    )


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_encodings_and_line_ends(tmp_path: Path, encoding: str, ends: str) -> None:
    (run,) = read_runs(write(tmp_path, HEAD, ROW, encoding=encoding, ends=ends))
    assert (run.id, run.model, run.dp) == ("a-1", "GPT, 1B", 8)


def test_nothing_measured_is_reachable(tmp_path: Path) -> None:
    """The values are the same whatever the measured columns say, and whether they are there."""
    with_them = read_runs(write(tmp_path, HEAD, ROW))
    other = read_runs(write(tmp_path, HEAD, ROW.replace("3.26", "nonsense").replace("42", "99")))
    bare = read_runs(
        write(tmp_path, HEAD.removesuffix(",step_time_s,notes"), ROW.split(",3.26")[0])
    )
    assert with_them == other == bare
    assert not {field.name for field in fields(PublishedRun)} & set(MEASURED_COLUMNS)
    assert not any("TFLOP" in str(getattr(run, f.name)) for run in with_them for f in fields(run))


def test_the_chunks_of_one_layer_each(tmp_path: Path) -> None:
    """22 layers on 8 stages, embedding and head counted: (22 + 2) / 8 = 3 chunks."""
    row = "zb-1,GPT-1.5B,22,2304,,1,8,max (1 layer per chunk),,"
    (run,) = read_runs(write(tmp_path, HEAD, row))
    assert run.vpp == 3


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("eight", "'eight' is not a whole number of 1 or more"),
        ("-8", "'-8' is not a whole number of 1 or more"),
        ("nan", "'nan' is not a whole number of 1 or more"),
        ("inf", "'inf' is not"),
        ("2.5", "'2.5' is not a whole number of 1 or more"),
        ("0", "'0' is not a whole number of 1 or more"),
    ],
)
def test_a_bad_number_names_its_place(tmp_path: Path, cell: str, said: str) -> None:
    path = write(tmp_path, HEAD, ROW, f"a-2,GPT,16,2048,,{cell},1,,,")
    with pytest.raises(DocumentError) as caught:
        read_runs(path)
    assert f"{path}:3:dp: {said}" in str(caught.value)


def test_lenient_keeps_the_row_and_the_message(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, ROW, "a-2,GPT,16,2048,,eight,1,,,")
    _, run = read_runs(path, lenient=True)
    assert (run.dp, run.pp) == (None, 1)
    assert run.faults[0].startswith(f"{path}:3:dp: 'eight' is not")


def test_lines_are_counted_through_quoted_breaks(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD, 'a-1,"two\nlines",16,2048,,8,1,,,', "", "a-2,x,16,2048,,bad,1,,,")
    with pytest.raises(DocumentError, match=r"runs\.csv:5:dp"):
        read_runs(path)


@pytest.mark.parametrize(
    ("lines", "error", "said"),
    [
        (("id,num_layers,hiden_size", "a,1,2"), UnknownNameError, "Did you mean 'hidden_size'"),
        (("model,num_layers", "a,1"), DocumentError, "the column 'id' is missing"),
        (("id,model", "a,b"), DocumentError, "the column 'num_layers' is missing"),
        (("id,num_layers,id", "a,1,b"), DocumentError, "'id' is named twice"),
        (("id,num_layers", "a,1", "a,2"), DocumentError, "is the id of line 2 already"),
        (("id,num_layers", ",1"), DocumentError, "the id is empty"),
        (("id,num_layers", "a,1,2"), DocumentError, ":2: 3 cells, but the header names 2"),
        (("id;num_layers", "a;1"), DocumentError, "separated by commas"),
        (("id,num_layers,gated_mlp", "a,1,2"), DocumentError, "'2' is not 1 or 0"),
        (("id,num_layers,family", "a,1,sparse"), DocumentError, "use dense, moe or lora"),
        (("id,num_layers", '"a,1'), DocumentError, "not CSV"),
    ],
)
def test_files_that_are_no_table_of_runs(
    tmp_path: Path, lines: tuple[str, ...], error: type[Exception], said: str
) -> None:
    with pytest.raises(error) as caught:
        read_runs(write(tmp_path, *lines))
    assert said in str(caught.value)


def test_missing_empty_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="no such file"):
        read_runs(tmp_path / "none.csv")
    empty = tmp_path / "empty.csv"
    empty.write_bytes(b"")
    with pytest.raises(DocumentError, match="the file is empty"):
        read_runs(empty)
    empty.write_bytes("id,num_layers\na,1\n".encode("utf-16"))
    with pytest.raises(DocumentError, match="UTF-8"):
        read_runs(empty)


@given(st.integers(min_value=1, max_value=10**9))
def test_whole_numbers_in_either_form(number: int) -> None:
    assert count_cell(str(number), "x") == count_cell(f"{number}.0", "x") == number


FAILED_HEAD = "model,nodes,micro_batch,grad_accum,dp,pp,tp,zero_stage"


def test_failed_layouts_become_runs(tmp_path: Path) -> None:
    """80B on 2 nodes of 8: dp 1 x tp 8 x pp 2 = 16; 1 x 4 x 64 = 256 sequences."""
    path = write(tmp_path, FAILED_HEAD, "1B,1,64,1,4,2,1,1", "80B,2,4,64,1,2,8,0")
    first, second = read_runs(path)
    assert (first.id, first.num_layers, first.zero_stage, first.schedule) == (
        "failed-1",
        16,
        1,
        "1f1b",
    )
    assert (second.id, second.num_kv_heads, second.num_devices) == ("failed-2", 64, 16)
    assert (second.global_batch, second.seq_len, second.device) == (256, 4096, "h100-sxm-80gb")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("2B,1,64,1,4,2,1,1", "unknown model '2B'"),
        ("1B,1,64,1,4,4,1,1", "dp=4 x tp=1 x pp=4 is not nodes=1 x 8 devices = 8"),
        ("1B,1,,1,4,2,1,1", ":2:micro_batch: the cell is empty"),
    ],
)
def test_failed_layouts_that_cannot_be(tmp_path: Path, row: str, said: str) -> None:
    with pytest.raises((DocumentError, UnknownNameError)) as caught:
        read_failed_layouts(write(tmp_path, FAILED_HEAD, row))
    assert said in str(caught.value)


def test_measured_columns_are_read_apart(tmp_path: Path) -> None:
    (row,) = read_measured(write(tmp_path, HEAD, ROW))
    assert (row.id, row.step_time_s, row.peak_memory_gib) == ("a-1", 3.26, None)
    with pytest.raises(DocumentError, match=r":2:step_time_s: 'fast' is not a number"):
        read_measured(write(tmp_path, HEAD, ROW.replace("3.26", "fast")))


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the folder shared/truth is not beside the checkout")
def test_the_open_tables_are_read_whole() -> None:
    runs, failed = read_runs(TRUTH / "runs.csv"), read_runs(TRUTH / "failed.csv")
    assert (len(runs), len(failed)) == (2068, 753)
    assert sum(m.step_time_s is not None for m in read_measured(TRUTH / "runs.csv")) == 2023
    known = {(r.model, r.num_layers, r.hidden_size, r.head_dim, r.tied_embeddings) for r in runs}
    assert {
        (r.model, r.num_layers, r.hidden_size, r.head_dim, r.tied_embeddings) for r in failed
    } < (known)


@pytest.mark.skipif(not TRUTH.is_dir(), reason="the folder shared/truth is not beside the checkout")
def test_deleting_the_measured_columns_changes_nothing(tmp_path: Path) -> None:
    with (TRUTH / "runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "bare.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, RUN_COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    assert read_runs(path) == read_runs(TRUTH / "runs.csv")


def test_our_own_table_cites_every_figure() -> None:
    runs, measured = read_runs(FIGURES), read_measured(FIGURES)
    assert len(runs) >= 90
    assert all(row.step_time_s or row.peak_memory_gib for row in measured)
    assert all(run.faults == () and run.device for run in runs)
    with FIGURES.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            assert row["source_url"].startswith("https://"), row["id"]
            assert len(row["source_date"]) == 10, row["id"]
