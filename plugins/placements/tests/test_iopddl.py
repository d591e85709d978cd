"""The command: answers that the contest's checker agrees with, errors that name the place."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import iopddl
from bench.command import main
from bench.iopddl import iopddl_rows, solve_file
from bench.strategy_graph.audit import audit
from bench.strategy_graph.contest_file import read_contest_problem
from profiles.errors import DocumentError

SHARED = Path(__file__).parents[4] / "shared" / "yardsticks" / "iopddl"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the folder shared/yardsticks is not beside this repository"
)


def document(**changes: object) -> dict[str, object]:
    """Two nodes and an edge; `changes` replace entries of the problem."""
    problem: dict[str, object] = {
        "name": "two",
        "nodes": {
            "intervals": [[0, 4], [2, 6]],
            "costs": [[1, 5], [2, 3]],
            "usages": [[10, 4], [10, 3]],
        },
        "edges": {"nodes": [[0, 1]], "costs": [[0, 0, 0, 7]]},
        "usage_limit": 13,
    }
    problem.update(changes)
    return {"problem": problem}


def written(folder: Path, content: object) -> Path:
    path = folder / "instance.json"
    path.write_text(json.dumps(content))
    return path


def test_it_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, document()), tmp_path / "solution.json"
    assert (
        main(
            iopddl.add_arguments,
            iopddl.solve_command,
            None,
            [str(path), "--time-limit", "1", "-o", str(out)],
        )
        == 0
    )
    # Memory 13 leaves 10 + 3: costs 1 + 3.
    assert capsys.readouterr().out.startswith("cost 4 bound 4 time ")
    assert json.loads(out.read_text()) == [0, 1]


def test_a_limit_that_nothing_meets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, document(usage_limit=6))
    assert (
        main(iopddl.add_arguments, iopddl.solve_command, None, [str(path), "--time-limit", "1"])
        == 3
    )
    assert capsys.readouterr().out.startswith("infeasible time ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"usage_limit": "much"}, "problem.usage_limit: found 'much'"),
        ({"nodes": []}, "problem.nodes: found list; give a JSON object"),
        ({"edges": {"nodes": [[0, 9]], "costs": [[1]]}}, r"problem.edges.nodes\[0\]: found 9"),
        ({"edges": {"nodes": [[0, 1]], "costs": [[1]]}}, r"problem.edges.costs\[0\]: found 1 cost"),
        (
            {"edges": {"nodes": [[0, 1]], "costs": [[1, 2, 3, 0.5]]}},
            r"problem.edges.costs\[0\]\[3\]: found 0.5; give a whole number",
        ),
        (
            {
                "nodes": {"intervals": [[0, 1]], "costs": [[1]], "usages": [[1, 2]]},
                "edges": {"nodes": [], "costs": []},
            },
            "node 0 has 1 costs but 2 usages",
        ),
    ],
)
def test_a_wrong_entry_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], message: str
) -> None:
    path = written(tmp_path, document(**changes))
    assert (
        main(iopddl.add_arguments, iopddl.solve_command, None, [str(path), "--time-limit", "1"])
        == 2
    )
    error = capsys.readouterr().err
    assert "instance.json" in error
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(error)


def test_files_that_are_no_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(gzip.compress(b'{"problem": {}}')[:-12])
    text = tmp_path / "text.json"
    text.write_text("not json")
    for path, message in (
        (cut, "cannot be read"),
        (text, "is not JSON"),
        (tmp_path / "absent.json", "no such file"),
    ):
        assert (
            main(iopddl.add_arguments, iopddl.solve_command, None, [str(path), "--time-limit", "1"])
            == 2
        )
        assert message in capsys.readouterr().err


def test_edges_of_one_and_three_nodes(tmp_path: Path) -> None:
    # Only (0, 0, 0) costs 9, the other seven nothing; node 0 alone: 0 costs 0, 1 costs 4.
    nodes = {"intervals": [[0, 1]] * 3, "costs": [[0, 0], [0, 5], [0, 6]], "usages": [[0, 0]] * 3}
    edges = {"nodes": [[0, 1, 2], [0]], "costs": [[9, 0, 0, 0, 0, 0, 0, 0], [0, 4]]}
    path = written(tmp_path, document(nodes=nodes, edges=edges))
    row = solve_file(path, time_limit_s=1.0)
    assert row.solution.cost == 4
    assert row.strategies == (1, 0, 0)


def test_a_row_for_each_instance_of_a_folder(tmp_path: Path) -> None:
    for name in ("X", "Y"):
        with gzip.open(tmp_path / f"contest-{name}.json.gz", "wt") as file:
            json.dump(document(), file)
    table = tmp_path / "best_known.csv"
    table.write_text("instance,timeout_s,best_contest,published_lower_bound\nX,1,5,3\nY,1,2,1\n")
    rows = iopddl_rows(tmp_path)
    # Both cost 4: a fifth below what is known of X, twice what is said of Y.
    assert [(one.instance, one.above_best_known) for one in rows] == [("X", -0.2), ("Y", 1.0)]
    table.write_text("instance,timeout_s\nX,1\nY,1\n")
    with pytest.raises(DocumentError, match="best_contest"):
        iopddl_rows(tmp_path)


@needs_shared
@pytest.mark.slow
def test_the_contest_checker_agrees(tmp_path: Path) -> None:
    for name in ("example.json", "asplos-2025-iopddl-B.json.gz"):
        row = solve_file(SHARED / name, time_limit_s=4.0)
        assert row.strategies is not None
        graph = read_contest_problem(SHARED / name).graph
        out = tmp_path / "solution.json"
        out.write_text(json.dumps(row.strategies))
        answer = subprocess.run(
            [sys.executable, str(SHARED / "check.py"), str(SHARED / name), str(out)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(answer.stdout) == row.solution.cost == audit(graph, row.strategies).cost
