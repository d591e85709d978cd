"""Compares the shipped coefficients with the locked half of the later sources, and records it.

    python -m tools.open_locked RUNS.csv [MORE.csv ...]
    python -m tools.open_locked --learning RUNS.csv [MORE.csv ...]

Each opening appends a line to docs/locked_ledger.csv before any score is printed. It is refused on
a changed work tree, since its line names the commit that predicted; only the ledger may have more
lines than the commit. With `--learning` the same scores are printed for the learning half, and
nothing is recorded.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evidence.compared_run import ComparedRun, compare_runs
from evidence.groups import source_of
from evidence.ledger import (
    LEDGER_FILE,
    MOST_OPENINGS,
    LedgerEntry,
    append_entry,
    check_ledger,
    read_ledger,
)
from evidence.prospective import (
    LATER_SOURCES,
    SCORE_TARGETS,
    Half,
    Scores,
    half_of,
    score,
)
from profiles.document import content_hash
from profiles.errors import InputError, ShardwrightError
from shardwright.commands.tables.predict_runs import predicted_runs
from shardwright.runs.run_table import read_measured, read_runs
from simulator.training_run.fit.evidence import shipped_evidence


def main(arguments: Sequence[str]) -> int:
    """Runs the tool; returns its exit code."""
    learning = "--learning" in arguments
    paths = [Path(name) for name in arguments if name != "--learning"]
    if not paths or any(str(path).startswith("-") for path in paths):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        text = learning_text(paths) if learning else open_locked(paths)
    except ShardwrightError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(text)
    return 0


def learning_text(paths: Sequence[Path]) -> str:
    """The scores of the learning half as text."""
    return scores_text(score(compared_rows(paths, Half.LEARNING)), Half.LEARNING)


def open_locked(paths: Sequence[Path], ledger: Path = LEDGER_FILE) -> str:
    """Appends the scores of the locked half to the ledger; returns them as text.

    Raises InputError, before anything is predicted, on a changed work tree, for a ledger that does
    not begin with the committed one, for tables without a locked source and for coefficients that
    were fitted on one.
    """
    commit = clean_commit(ledger)
    check_ledger(ledger)
    fitted = fitted_locked_sources()
    if fitted:
        raise InputError(f"the shipped coefficients were fitted on locked sources: {fitted}")
    rows = compared_rows(paths, Half.LOCKED)
    entry = LedgerEntry(
        date=datetime.date.today().isoformat(),
        commit=commit,
        rows_sha256=content_hash([(row.run, row.measured) for row in rows]),
        scores=score(rows),
    )
    append_entry(ledger, entry)
    opening = len(read_ledger(ledger))
    limit = f"one issue may use {MOST_OPENINGS}"
    warning = " - OVER THE LIMIT of one issue" if opening > MOST_OPENINGS else ""
    return (
        f"opening {opening} ({limit}){warning}; commit {ledger.name}\n"
        f"{scores_text(entry.scores, Half.LOCKED)}"
    )


def compared_rows(paths: Sequence[Path], half: Half) -> tuple[ComparedRun, ...]:
    """The rows of one half of the later sources with their predictions; no other row is predicted.

    Raises InputError if a source of the half has no row.
    """
    names = {source for source in LATER_SOURCES if half_of(source) is half}
    runs = [
        run for path in paths for run in read_runs(path, lenient=True) if source_of(run.id) in names
    ]
    missing = names - {source_of(run.id) for run in runs}
    if missing:
        raise InputError(
            f"no row of {', '.join(sorted(missing))}: the {half} half is compared as a whole; "
            "name the tables that contain its sources"
        )
    measured = [row for path in paths for row in read_measured(path)]
    return compare_runs(runs, measured, predicted_runs(runs))


def fitted_locked_sources() -> str:
    """The locked sources among the rows that the shipped coefficients were fitted on."""
    sources = {name for each in shipped_evidence().step.values() for name in each.sources}
    return ", ".join(sorted(name for name in sources if half_of(name) is Half.LOCKED))


def clean_commit(ledger: Path) -> str:
    """The commit of the work tree that contains the ledger.

    Raises InputError if a file other than the ledger differs from it, untracked files included, and
    if the ledger lacks a byte of the committed one.
    """
    root = Path(_git(ledger.parent, "rev-parse", "--show-toplevel").decode().strip())
    own = ledger.resolve().relative_to(root.resolve()).as_posix()
    status = _git(root, "status", "--porcelain", "--untracked-files=all", "-z").decode()
    changed = sorted({entry[3:] for entry in status.split("\0") if entry} - {own})
    if changed:
        shown = ", ".join(changed[:5]) + (", ..." if len(changed) > 5 else "")
        raise InputError(
            f"the work tree has changes ({shown}); commit or remove them first, since the ledger "
            "names the commit that predicted"
        )
    if _git(root, "ls-tree", "HEAD", "--", own):
        committed = _git(root, "show", f"HEAD:{own}")
        if not ledger.exists() or not ledger.read_bytes().startswith(committed):
            raise InputError(
                f"{own}: committed lines were changed or removed; restore them with "
                f"`git checkout {own}`"
            )
    return _git(root, "rev-parse", "--short=12", "HEAD").decode().strip()


def scores_text(scores: Scores, half: Half) -> str:
    """The scores against their targets, one per line."""
    sources = [name for name in LATER_SOURCES if half_of(name) is half]
    lines = [
        f"{half} half: {len(sources)} sources, {scores.rows} rows, {scores.unsupported} "
        f"unsupported, {scores.step.rows} step times and {scores.memory.rows} peaks compared"
    ]
    lines += [
        f"  {target.name:<30} {target.reached(scores):>8}   target {target.bounds:<18} "
        f"{target.verdict(scores)}"
        for target in SCORE_TARGETS
    ]
    return "\n".join(lines) + "\n"


def _git(folder: Path, *words: str) -> bytes:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    if done.returncode:
        raise InputError(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
