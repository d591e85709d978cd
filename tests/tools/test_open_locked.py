"""The opening of the locked half on hand-made rows in a repository of its own."""

from __future__ import annotations

import csv
import subprocess
from pathlib import Path

import pytest

from evidence.ledger import read_ledger
from evidence.prospective import LATER_SOURCES, locked_sources
from profiles.errors import InputError
from shardwright.runs.run import FIGURES
from simulator.training_run.fit.evidence import Evidence, EvidenceFile
from tools.open_locked import fitted_locked_sources, main, open_locked


def git(folder: Path, *words: str) -> str:
    config = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.hooksPath=")
    done = subprocess.run(
        ["git", "-C", str(folder), *config, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Where the ledger of a repository with one commit belongs."""
    root = tmp_path / "repository"
    (root / "docs").mkdir(parents=True)
    (root / "code.py").write_text("x = 1\n", encoding="utf-8")
    git(root, "init", "--quiet")
    git(root, "add", "code.py")
    git(root, "commit", "--quiet", "-m", "Start")
    return root / "docs" / "ledger.csv"


def table(folder: Path, sources: tuple[str, ...], seconds: str = "10") -> Path:
    """A run of the project's own table under an id of each source, measured at ten seconds."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        known = next(row for row in csv.DictReader(file) if row["id"].startswith("korthikanti"))
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(known))
        writer.writeheader()
        writer.writerows(
            known | {"id": f"{source}-1", "step_time_s": seconds} for source in sources
        )
    return path


def test_an_opening_is_recorded_and_printed(tmp_path: Path, ledger: Path) -> None:
    """Only the locked sources are compared; the line names the commit and what was printed."""
    path = table(tmp_path, LATER_SOURCES)
    text = open_locked([path], ledger)
    assert text.startswith("opening 1 (one issue may use 3)")
    assert "locked half: 7 sources, 7 rows, 0 unsupported, 7 step times" in text
    (entry,) = read_ledger(ledger)
    assert git(ledger.parent, "rev-parse", "HEAD").startswith(entry.commit)
    assert (entry.scores.rows, entry.scores.step.sources) == (7, 7)
    line = next(line for line in text.splitlines() if "median over sources" in line)
    assert f"{100 * entry.scores.step.median:.1f} %" in line
    assert line.endswith("missed")
    # One row per source, no grade (three targets), no experts, no long sequence, no peak.
    assert text.count("no rows") == 7
    before = ledger.read_bytes()
    # An uncommitted ledger is the one change that is no obstacle.
    for number in (2, 3, 4):
        text = open_locked([path], ledger)
        assert text.startswith(f"opening {number} ")
        assert ("OVER THE LIMIT" in text) == (number > 3)
    assert ledger.read_bytes().startswith(before)
    digests = {entry.rows_sha256 for entry in read_ledger(ledger)}
    open_locked([table(tmp_path, LATER_SOURCES, seconds="11")], ledger)
    assert len(digests) == 1
    assert read_ledger(ledger)[-1].rows_sha256 not in digests


def test_a_changed_work_tree_is_refused(tmp_path: Path, ledger: Path) -> None:
    path, root = table(tmp_path, LATER_SOURCES), ledger.parents[1]
    for name in ("code.py", "new file.py"):
        (root / name).write_text("x = 2\n", encoding="utf-8")
        with pytest.raises(InputError, match=rf"the work tree has changes \({name}\)"):
            open_locked([path], ledger)
        git(root, "checkout", "--quiet", "code.py")
    (root / "new file.py").unlink()
    (root / "code.py").write_text("x = 2\n", encoding="utf-8")
    git(root, "add", "code.py")
    with pytest.raises(InputError, match="the work tree has changes"):
        open_locked([path], ledger)
    assert not ledger.exists()


def test_a_ledger_that_lost_committed_lines_is_refused(tmp_path: Path, ledger: Path) -> None:
    path, root = table(tmp_path, LATER_SOURCES), ledger.parents[1]
    open_locked([path], ledger)
    git(root, "add", "docs")
    git(root, "commit", "--quiet", "-m", "Open")
    committed = ledger.read_bytes()
    for spoilt in (committed.splitlines(keepends=True)[0], committed.replace(b"202", b"203", 1)):
        ledger.write_bytes(spoilt)
        with pytest.raises(InputError, match="committed lines were changed or removed"):
            open_locked([path], ledger)
        assert ledger.read_bytes() == spoilt
    ledger.unlink()
    with pytest.raises(InputError, match="committed lines were changed or removed"):
        open_locked([path], ledger)


def test_coefficients_fitted_on_a_locked_source_are_refused(
    tmp_path: Path, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitted_locked_sources() == ""
    evidence = Evidence(runs=2, sources=("llmf", "swift", "alcf"))
    file = EvidenceFile(date="2026-11-24", step={"torch-fsdp, h100-sxm-80gb": evidence})
    monkeypatch.setattr("tools.open_locked.shipped_evidence", lambda: file)
    with pytest.raises(InputError, match="fitted on locked sources: alcf, swift"):
        open_locked([table(tmp_path, LATER_SOURCES)], ledger)
    assert not ledger.exists()


def test_a_part_of_the_locked_half_is_refused(tmp_path: Path, ledger: Path) -> None:
    path = table(tmp_path, locked_sources()[1:])
    with pytest.raises(InputError, match="no row of tinyllama: the locked half is compared as a"):
        open_locked([path], ledger)
    assert not ledger.exists()


def test_the_learning_half_leaves_no_entry(
    tmp_path: Path,
    ledger: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tools.open_locked.LEDGER_FILE", ledger)
    path = table(tmp_path, LATER_SOURCES)
    assert main(["--learning", str(path)]) == 0
    assert "learning half: 7 sources, 7 rows" in capsys.readouterr().out
    assert not ledger.exists()
    assert main([]) == 2
    assert "python -m tools.open_locked" in capsys.readouterr().err
    assert main(["--learnin", str(path)]) == 2
