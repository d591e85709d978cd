"""The SQLite file of a sweep: what it keeps, what it says when it is damaged, equal bytes."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.batch.folder_lock import LOCK_FILE, folder_held
from planner.batch.result_store import ResultStore, Table, solve_into
from planner.batch.sweep import Job, Reply
from profiles.errors import DocumentError, InputError

TABLE = Table(
    name="results",
    columns={"question": int, "model": str, "step_time_s": float},
    rows=[(1, "a", 0.5), (2, "b", None)],
)


def store(folder: Path, version: str = "1") -> AbstractContextManager[ResultStore]:
    return closing(ResultStore(folder / "results.sqlite", version=version))


def kept(folder: Path, *jobs: str) -> Path:
    """A finished file with these answers, given in this order."""
    with store(folder) as open_store:
        for job in jobs:
            open_store.keep(job, f"answer of {job}")
        open_store.finish([TABLE])
    return folder / "results.sqlite"


def test_what_is_kept_is_known_to_the_next_one_and_to_no_other_version(tmp_path: Path) -> None:
    with store(tmp_path) as first:
        first.keep("a", "ä")
    with store(tmp_path) as second:
        assert second.known() == {"a"}
        assert second.answer("a") == "ä"
    with store(tmp_path, version="2") as other:
        assert other.known() == set()
    with store(tmp_path) as again:
        assert again.known() == {"a"}


def test_a_cut_loses_no_answer(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path\n"
        "from planner.batch.result_store import ResultStore\n"
        "store = ResultStore(Path(sys.argv[1]), version='1')\n"
        "for job in 'abc': store.keep(job, job)\n"
        "os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "results.sqlite"
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    with store(tmp_path) as again:
        assert again.known() == {"a", "b", "c"}
        again.finish([TABLE])
    assert sorted(found.name for found in tmp_path.iterdir()) == ["results.sqlite"]


def test_readers_find_tables(tmp_path: Path) -> None:
    with sqlite3.connect(kept(tmp_path, "b", "a")) as found:
        rows = found.execute("SELECT question, model, step_time_s FROM results").fetchall()
        assert rows == TABLE.rows
        assert found.execute("SELECT job FROM answers").fetchall() == [("a",), ("b",)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.sqlite"]


@settings(max_examples=15, deadline=None)
@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 3))
def test_the_order_of_answers_and_where_a_sweep_was_cut_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, order: list[str], cut: int
) -> None:
    one, two = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    with store(two) as first:
        for job in order[:cut]:
            first.keep(job, f"answer of {job}")
    with store(two) as second:
        for job in order[cut:]:
            second.keep(job, f"answer of {job}")
        second.finish([TABLE])
    assert kept(one, "a", "b", "c", "d").read_bytes() == (two / "results.sqlite").read_bytes()


def test_a_file_that_is_no_store_or_a_damaged_one_is_said_and_left(tmp_path: Path) -> None:
    path = kept(tmp_path, *(f"job {number}" for number in range(200)))
    whole = path.read_bytes()
    newer = whole.replace(b"shardwright/results@1", b"shardwright/results@7")
    for bad, said in (
        (b"no database at all, by any means" * 40, "is damaged, or no result store"),
        (whole[:1000], "is damaged, or no result store"),
        (whole[: len(whole) // 2], "is damaged, or no result store"),
        (whole[:4096] + bytes(8192) + whole[12288:], "is damaged, or no result store"),
        (newer, "schema 'shardwright/results@7' is not supported"),
    ):
        path.write_bytes(bad)
        with pytest.raises(DocumentError, match=said) as raised:
            store(tmp_path)
        assert str(path) in str(raised.value)
        assert "nothing was changed" in str(raised.value)
        assert path.read_bytes() == bad
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    with pytest.raises(DocumentError, match="no result store of a sweep"):
        store(tmp_path)


def test_a_new_file_is_a_store_or_has_nothing(tmp_path: Path) -> None:
    """Whatever a cut leaves is taken up: tables and schema come in one transaction."""
    path = tmp_path / "results.sqlite"
    connect, said = sqlite3.connect, list[str]()

    def watched(*given: object, **named: object) -> sqlite3.Connection:
        made = connect(*given, **named)
        made.set_trace_callback(said.append)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", watched)
        with store(tmp_path):
            pass
    begin, end = said.index("BEGIN;"), said.index("COMMIT;")
    writes = [n for n, text in enumerate(said) if text.strip().startswith(("CREATE", "INSERT"))]
    assert len(writes) == 3
    assert all(begin < number < end for number in writes)
    assert path.is_file()
    with store(tmp_path) as again:
        assert again.known() == set()


def test_a_damaged_answer_is_told_and_not_known(tmp_path: Path) -> None:
    path = kept(tmp_path, "a", "b")
    with sqlite3.connect(path) as found:
        found.execute("UPDATE answers SET answer = x'00' WHERE job = 'b'")
    with store(tmp_path) as again, pytest.warns(UserWarning, match="answer of job b is damaged"):
        assert again.known() == {"a"}


def test_another_program_that_holds_the_file_is_said(tmp_path: Path) -> None:
    path = kept(tmp_path, "a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(DocumentError, match="locked by another program"):
        ResultStore(path, version="1", patience_s=0.0)
    other.close()


def test_what_has_a_reason_is_not_kept(tmp_path: Path) -> None:
    def workers(jobs: Sequence[Job]) -> Iterator[Reply]:
        yield Reply(key="good", text=json.dumps({"reason": "", "layout": {}}))
        yield Reply(key="bad", text=json.dumps({"reason": "no such axis"}))
        yield Reply(key="dead", fault="its process died")

    jobs = [Job(key=key, text="") for key in ("good", "bad", "dead")]
    with store(tmp_path) as open_store:
        ended = list(solve_into(open_store, jobs, workers))
        assert [(one.key, one.fault) for one in ended] == [
            ("good", ""),
            ("bad", "no such axis"),
            ("dead", "its process died"),
        ]
        assert open_store.known() == {"good"}


HOLD = """
import sys, time
from pathlib import Path
from planner.batch.folder_lock import folder_held
with folder_held(Path(sys.argv[1]), "shardwright sweep study.toml"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_two_sweeps_in_one_folder_and_who_holds_it(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    command = [sys.executable, "-c", HOLD, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        who = rf"process {process.pid} on .*sweep study.toml"
        with pytest.raises(InputError, match=who) as raised, folder_held(folder, "another"):
            pass
        assert "nothing was changed" in str(raised.value)
        process.kill()
    with folder_held(folder, "the next"):
        assert (folder / LOCK_FILE).read_text().startswith("process ")
    assert (folder / LOCK_FILE).read_bytes() == b""


def test_a_full_disk_under_the_lock_is_said(tmp_path: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("planner.batch.folder_lock.os.pwrite", full)
        held = folder_held(tmp_path, "test")
        with pytest.raises(DocumentError, match="cannot be written: No space left"):
            held.__enter__()
