"""`ResultStore`: the answers of a sweep in one SQLite file, each stored immediately.

During a sweep the file has one table, `answers`: key of the job, version of code and data, answer
as compressed JSON. At the end a new file with all answers and tables, rows in a fixed order,
replaces it in one move: equal answers make equal bytes, and readers see either state. Every answer
is committed to SQLite's write-ahead log, which takes 4 ms (2026-11-24), so neither a killed process
nor a power cut loses one.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planner.batch.sweep import Job, Reply, Workers
from profiles.errors import DocumentError

STORE_SCHEMA = "shardwright/results@1"
_TYPES = {int: "INTEGER", float: "REAL", str: "TEXT"}
_TABLES = """
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE answers (job TEXT PRIMARY KEY, version TEXT NOT NULL, answer BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of results for readers of the file.

    columns  names with int, float or str;  rows  in this order of columns, None for missing values
    """

    name: str
    columns: Mapping[str, type]
    rows: Sequence[Sequence[object]]


class ResultStore:
    """The answers in the file at `path`, which is created if missing.

    version     of code and data; answers of another version are not found
    patience_s  waiting time if another program has the file open

    Raises DocumentError for a file that is damaged or no store, and leaves it unchanged.
    """

    def __init__(self, path: Path, *, version: str, patience_s: float = 10.0) -> None:
        self.path, self._version = path, version
        with self._as_document_errors():
            if not path.exists():
                for left in _logs(path):
                    left.unlink(missing_ok=True)
            self._open = sqlite3.connect(path, isolation_level=None, timeout=patience_s)
            try:
                self._begin()
                self._open.execute("PRAGMA journal_mode = WAL")
            except BaseException:
                self._open.close()
                raise

    def _begin(self) -> None:
        run = self._open.execute
        found = {name for (name,) in run("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not found:
            # In one transaction: a file with tables and without the schema would be refused.
            schema = f"INSERT INTO about VALUES ('schema', '{STORE_SCHEMA}');"
            self._open.executescript(f"BEGIN;{_TABLES}{schema}COMMIT;")
            return
        if not {"about", "answers"} <= found:
            raise DocumentError(
                f"{self.path} is an SQLite file, but no result store of a sweep (it has no tables "
                "about and answers); nothing was changed. Name another folder with -o"
            )
        tag = dict(run("SELECT name, value FROM about")).get("schema")
        if tag != STORE_SCHEMA:
            raise DocumentError(
                f"{self.path}: schema {tag!r} is not supported, this release reads {STORE_SCHEMA}; "
                "nothing was changed. Name another folder with -o"
            )
        faults = [said for (said,) in run("PRAGMA integrity_check(1)") if said != "ok"]
        if faults:
            raise self._damaged(faults[0])

    def known(self) -> set[str]:
        """Keys of jobs with an answer of this version; damaged answers are left out with a
        warning."""
        found = set()
        with self._as_document_errors():
            rows = self._open.execute(
                "SELECT job, answer FROM answers WHERE version = ?", (self._version,)
            )
            for job, packed in rows:
                try:
                    zlib.decompress(packed)
                except (zlib.error, TypeError) as error:
                    warnings.warn(
                        f"{self.path}: the answer of job {job} is damaged ({error}); it is solved "
                        "again",
                        stacklevel=2,
                    )
                else:
                    found.add(job)
        return found

    def keep(self, job: str, answer: str) -> None:
        """Store an answer durably."""
        packed = zlib.compress(answer.encode())
        with self._as_document_errors():
            self._open.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", (job, self._version, packed)
            )

    def answer(self, job: str) -> str:
        """The answer of a job, which must be known."""
        with self._as_document_errors():
            (packed,) = self._open.execute(
                "SELECT answer FROM answers WHERE job = ?", (job,)
            ).fetchone()
        return zlib.decompress(packed).decode()

    def finish(self, tables: Sequence[Table]) -> None:
        """Replace the file by one with the answers of this version and the tables, in a fixed
        order, and close it."""
        new = self.path.with_name(f".{self.path.name}.new")
        with self._as_document_errors():
            for left in (new, *_logs(new)):
                left.unlink(missing_ok=True)
            self._write(new, tables)
            self._open.close()
            os.replace(new, self.path)

    def _write(self, new: Path, tables: Sequence[Table]) -> None:
        out = sqlite3.connect(new, isolation_level=None)
        try:
            # A file that nobody opens before it is complete needs no journal.
            for pragma in ("page_size = 4096", "journal_mode = OFF", "synchronous = OFF"):
                out.execute(f"PRAGMA {pragma}")
            out.executescript(_TABLES)
            out.execute("BEGIN")
            out.execute("INSERT INTO about VALUES ('schema', ?)", (STORE_SCHEMA,))
            for table in tables:
                columns = ", ".join(f'"{n}" {_TYPES[kind]}' for n, kind in table.columns.items())
                out.execute(f'CREATE TABLE "{table.name}" ({columns})')
                marks = ", ".join("?" * len(table.columns))
                out.executemany(f'INSERT INTO "{table.name}" VALUES ({marks})', table.rows)
            out.executemany(
                "INSERT INTO answers VALUES (?, ?, ?)",
                self._open.execute(
                    "SELECT job, version, answer FROM answers WHERE version = ? ORDER BY job",
                    (self._version,),
                ),
            )
            out.execute("COMMIT")
        finally:
            out.close()
        with new.open("rb") as stream:
            os.fsync(stream.fileno())

    def close(self) -> None:
        """Close the file; may be called again."""
        self._open.close()

    def _damaged(self, error: object) -> DocumentError:
        return DocumentError(
            f"{self.path} is damaged, or no result store ({error}); nothing was changed. Move it "
            "away and the same command begins anew; `sqlite3 FILE .recover` of SQLite's own tools "
            "saves what can be read"
        )

    @contextmanager
    def _as_document_errors(self) -> Iterator[None]:
        """Context that turns errors of SQLite and of the disk into DocumentErrors."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise DocumentError(
                    f"{self.path} is locked by another program that reads or writes it; close it"
                ) from error
            raise DocumentError(
                f"{self.path}: cannot be written: {error}; finished answers are saved, and "
                "the same command continues from there"
            ) from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.ProgrammingError):
                raise
            raise self._damaged(error) from error
        except OSError as error:
            raise DocumentError(
                f"{self.path}: cannot be written: {error.strerror or error}"
            ) from error


def _logs(path: Path) -> tuple[Path, ...]:
    """SQLite's additional files of a database."""
    return tuple(path.with_name(f"{path.name}-{end}") for end in ("journal", "wal", "shm"))


def solve_into(store: ResultStore, jobs: Sequence[Job], workers: Workers) -> Iterator[Reply]:
    """Solve the jobs and store their answers. Yields replies without text, in the order in which
    jobs end.

    An answer is JSON whose `reason` is "". Answers with a reason, and jobs that a worker could not
    solve, are faults: they are not stored, so the next sweep tries them again.
    """
    for reply in workers(jobs):
        fault = reply.fault or str(json.loads(reply.text).get("reason", ""))
        if not fault:
            store.keep(reply.key, reply.text)
        yield Reply(key=reply.key, fault=fault)
