"""The locked half: the split, the scores by hand, the ledger, and what the tool refuses."""

from __future__ import annotations

import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from evidence.compared_run import ComparedRun
from evidence.ledger import (
    COLUMNS,
    LEDGER_FILE,
    LedgerEntry,
    append_entry,
    read_ledger,
)
from evidence.prospective import (
    GROUPS,
    LATER_SOURCES,
    SCORE_TARGETS,
    ErrorScores,
    Half,
    half_of,
    is_locked,
    locked_sources,
    score,
    step_scores,
)
from evidence.releases import read_releases
from profiles.errors import DocumentError, InputError
from shardwright.commands.tables.predict_runs import PredictedRun
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured

LEARNING = ("mindspeed", "mllama", "vocabpp", "kwai", "xtuner", "shmap", "gpurec")
LOCKED = ("tinyllama", "moezoo", "swift", "alcf", "mds", "llmc", "awsome")


def row(
    name: str,
    ratio: float | None,
    *,
    interval: tuple[float, float] = (0.5, 2.0),
    peak: float | None = None,
    quality: str = "A",
    **figures: object,
) -> ComparedRun:
    """A run measured at 1 s, and at 10 GiB where a predicted peak is given."""
    run = replace(PublishedRun(row=1, id=name), **figures)  # type: ignore[arg-type] # fields by name
    low, high = (None, None) if ratio is None else interval
    return ComparedRun(
        run=run,
        measured=Measured(
            id=name,
            step_time_s=1.0,
            peak_memory_gib=None if peak is None else 10.0,
            quality=quality,
        ),
        predicted=PredictedRun(
            id=name,
            step_time_s=ratio,
            step_time_low_s=low,
            step_time_high_s=high,
            peak_memory_gib=peak,
            peak_memory_low_gib=None if peak is None else 9.5,
            peak_memory_high_gib=None if peak is None else 10.5,
            status="ok" if ratio is not None else "unsupported: no",
        ),
    )


def test_the_split_is_the_agreed_one() -> None:
    """Nobody may move a source: digests of names decide."""
    assert locked_sources() == LOCKED
    assert {source for source in LATER_SOURCES if half_of(source) is Half.LEARNING} == {*LEARNING}
    assert sorted((*LEARNING, *LOCKED)) == sorted(LATER_SOURCES)
    assert half_of("llmf") is Half.LEARNING
    assert (is_locked("llmc-001"), is_locked("llmf-001")) == (True, False)


def test_scores_weigh_sources_alike() -> None:
    """Source a: errors +10 %, +10 %, -50 %, +20 %, +10 %; b: -30 %; c: +4 %."""
    ratios = (1.1, 1.1, 0.5, 1.2, 1.1)
    inside = (0.9, 1.0, 0.4, 1.1, 0.9)  # lower bounds: the fourth row's interval misses 1 s
    rows = [
        row(f"a-{i}", ratio, interval=(low, 2.0 * low))
        for i, (ratio, low) in enumerate(zip(ratios, inside, strict=True))
    ]
    # 0.4 to 0.8 misses too.
    rows += [row("b-1", 0.7, interval=(0.5, 2.0)), row("c-1", 1.04), row("c-2", None)]
    found = step_scores(rows)
    assert (found.rows, found.sources) == (7, 3)
    assert found.median == pytest.approx(0.10)  # of 10 %, 30 %, 4 %
    assert found.mean == pytest.approx((0.2 + 0.3 + 0.04) / 3)
    assert found.bias == pytest.approx(0.04)  # of +10 %, -30 %, +4 %
    assert found.coverage == pytest.approx(5 / 7)
    assert found.width == pytest.approx(2.0)  # five of 2, two of 4
    assert [source for source, _ in found.source_coverage] == ["a"]
    assert found.worst_coverage == pytest.approx(0.6)
    whole = score(rows)
    assert (whole.rows, whole.unsupported, whole.step) == (8, 1, found)
    assert whole.memory.rows == 0
    assert math.isnan(whole.memory.median)


def test_memory_has_scores_of_its_own() -> None:
    found = score([row("a-1", 1.0, peak=11.0), row("b-1", 1.0, peak=12.0)]).memory
    assert (found.rows, found.sources) == (2, 2)
    assert found.median == pytest.approx(0.15)
    assert found.coverage == 1.0  # 10 GiB is between 9.5 and 10.5
    assert found.width == pytest.approx(10.5 / 9.5)


@pytest.mark.parametrize(
    ("figures", "groups"),
    [
        ({"family": "dense", "seq_len": 16384, "device": "A800"}, {"mainstream"}),
        ({"family": "dense", "seq_len": 4096, "device": "H100", "quality": "B+"}, {"mainstream"}),
        ({"family": "dense", "seq_len": 4096, "device": "H100", "quality": "C"}, set()),
        ({"family": "dense", "seq_len": 4096, "device": "GB200"}, set()),
        ({"family": "lora", "seq_len": 4096, "device": "H100"}, set()),
        ({"family": "dense", "seq_len": 32767, "device": "H100"}, set()),
        ({"family": "dense", "seq_len": 32768, "device": "H100"}, {"long"}),
        ({"family": "moe", "seq_len": 4096, "device": "H100"}, {"experts"}),
        ({"num_experts": 8, "seq_len": 4096, "device": "H100"}, {"experts"}),
        ({"vpp": 2}, {"unnamed"}),
        ({"cp": 2}, {"unnamed"}),
        ({"sequence_parallel": True}, {"unnamed"}),
        ({"ep": 8, "tp": 2}, {"unnamed"}),
        ({"ep": 8, "tp": 1, "vpp": 1, "cp": 1, "sequence_parallel": False}, set()),
        ({"cp": 2, "framework": "Megatron-LM"}, set()),
    ],
)
def test_groups(figures: dict[str, object], groups: set[str]) -> None:
    made = row("a-1", 1.2, **figures)  # type: ignore[arg-type] # fields by name
    assert {name for name, _, member in GROUPS if member(made)} == groups
    found = score([made])
    for name, _, _ in GROUPS:
        assert getattr(found, name).rows == (name in groups)


def test_targets_are_bounds_and_no_row_meets_none() -> None:
    good = ErrorScores(
        rows=9, sources=3, median=0.08, mean=0.1, bias=-0.04, coverage=0.8, width=1.9
    )
    good = replace(good, source_coverage=(("alcf", 0.9), ("moezoo", 0.6)))
    scores = replace(
        score([]), step=good, mainstream=good, experts=good, long=good, memory=good, rows=9
    )
    assert [t.name for t in SCORE_TARGETS if not t.met(scores)] == []
    for changes, missed in (
        ({"median": 0.121}, "median over sources"),
        ({"mean": 0.181}, "mean over sources"),
        ({"bias": 0.041}, "bias"),
        ({"coverage": 0.951}, "interval coverage"),
        ({"width": 2.61}, "interval width"),
        ({"source_coverage": (("moezoo", 0.59),)}, "lowest coverage of a source"),
    ):
        worse = replace(scores, step=replace(good, **changes))
        (name,) = (t.name for t in SCORE_TARGETS if not t.met(worse))
        assert name.startswith(missed)
    assert not any(target.met(score([])) for target in SCORE_TARGETS)
    texts = {target.name: (target.reached(scores), target.bounds) for target in SCORE_TARGETS}
    assert texts["bias"] == ("-4.0 %", "-4.0 % to 4.0 %")
    assert texts["mainstream: width"] == ("1.90", "<= 1.90")


def entry(date: str = "2026-11-25") -> LedgerEntry:
    rows = [row(f"alcf-{i}", 1.1, peak=11.0) for i in range(5)]
    return LedgerEntry(date=date, commit="abc", rows_sha256="0123", scores=score(rows))


def test_an_entry_comes_back_from_the_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.csv"
    assert read_ledger(ledger) == ()
    append_entry(ledger, entry())
    (found,) = read_ledger(ledger)
    assert (found.date, found.commit, found.rows_sha256) == ("2026-11-25", "abc", "0123")
    assert (found.scores.rows, found.scores.unsupported, found.scores.step.rows) == (5, 0, 5)
    assert found.scores.step.median == pytest.approx(0.1)
    assert found.scores.step.source_coverage == (("alcf", 1.0),)
    assert found.scores.memory.median == pytest.approx(0.1)
    assert math.isnan(found.scores.long.median)


def test_old_lines_survive_byte_for_byte(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.csv"
    append_entry(ledger, entry())
    # A line of another hand: numbers in another form must stay as they are.
    text = ledger.read_bytes().replace(b",5,0,", b",5.0000,0,").replace(b"0.1", b"0.10")
    ledger.write_bytes(text)
    append_entry(ledger, entry("2026-11-26"))
    assert ledger.read_bytes().startswith(text)
    assert ledger.read_bytes()[len(text) :].startswith(b"2026-11-26,abc,")
    assert ledger.read_bytes().count(b"\n") == 3


def test_another_header_and_a_cut_line_are_refused(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.csv"
    append_entry(ledger, entry())
    good = ledger.read_bytes()
    for spoilt, why in (
        (good.replace(b"date,commit", b"commit,date", 1), "this header is not the ledger's"),
        (good[:-1], "cut short"),
        (b"", "this header is not the ledger's"),
    ):
        ledger.write_bytes(spoilt)
        with pytest.raises(DocumentError, match=why):
            append_entry(ledger, entry())
        assert ledger.read_bytes() == spoilt


def test_the_shipped_ledger_only_grows() -> None:
    """Each committed version begins with the one before it, from the first opening on."""
    assert read_ledger(LEDGER_FILE) is not None
    root, name = LEDGER_FILE.parents[1], "docs/locked_ledger.csv"

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True).stdout

    before = b""
    for commit in git("log", "--reverse", "--format=%H", "--", name).decode().split():
        version = git("show", f"{commit}:{name}")
        assert version.startswith(before), commit
        before = version if version.count(b"\n") > 1 else b""
    assert LEDGER_FILE.read_bytes().startswith(before)
    assert LEDGER_FILE.read_text(encoding="utf-8").startswith(",".join(COLUMNS) + "\n")


def test_releases_are_read_in_order(tmp_path: Path) -> None:
    table = tmp_path / "prospective.csv"
    table.write_text(
        "id,release,predicted_on,measured_step_time_s,measured_peak_memory_gib,step_time_s,"
        "step_time_low_s,step_time_high_s,peak_memory_gib,peak_memory_low_gib,"
        "peak_memory_high_gib\n"
        "a-1,new,2026-11-24,2.0,10,1.0,0.5,3.0,,,\n"
        "a-1,old,2026-11-22,2.0,10,2.2,2.1,2.4,11,9,12\n"
        "b-1,old,2026-11-23,2.0,,,,,,,\n",
        encoding="utf-8",
    )
    old, new = read_releases(table)
    assert (old.name, old.predicted_on, len(old.rows)) == ("old", "2026-11-23", 2)
    found = score(old.rows)
    assert (found.unsupported, found.step.rows, found.memory.rows) == (1, 1, 1)
    assert found.step.median == pytest.approx(0.1)
    assert (found.step.coverage, found.memory.coverage) == (0.0, 1.0)
    assert score(new.rows).step.median == pytest.approx(0.5)
    table.write_text("id,release\na,b\n", encoding="utf-8")
    with pytest.raises(InputError, match="'predicted_on' is missing"):
        read_releases(table)
