"""Results of the plug-in's Python functions in a notebook; the notebook of examples/ runs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

import shardwright as public
from plugins.frameworks.tests.traces.test_traces import NCCL
from profiles.errors import InputError
from shardwright.results.result import Result
from tests.shardwright.test_cli import ROOT
from tests.shardwright.test_docs import fenced
from tests.shardwright.test_notebook import page_of

NOTEBOOK = ROOT / "examples/framework_files.ipynb"


def cells(path: Path) -> list[str]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    found = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            found.append("".join(cell["source"]))
    return found


def last_value(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; the value of its last line, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_the_notebook_runs() -> None:
    names: dict[str, Any] = {}
    shown = [last_value(source, names) for source in cells(NOTEBOOK)]
    results = [value for value in shown if isinstance(value, Result)]
    assert len(results) == 7
    texts = [page_of(result).text for result in results]
    assert names["layout"].chosen is not None
    assert "--recompute-granularity" in texts[4]  # the change that brings most, by its flag
    checked = results[2]
    assert not checked.agrees
    assert [each.key for each in checked.different] == ["micro_batch"]
    watched = results[-1]
    assert watched.error == pytest.approx(1 / 1.1 - 1, abs=0.01)
    for result in results:
        columns = [tuple(row) for row in result.table()]
        assert columns or result is results[1]  # all of the plan was expressed: nothing to list


def test_what_files_say_is_escaped(tmp_path: Path) -> None:
    """Neither HTML nor rich's own markup of a configuration is followed."""
    script = tmp_path / "run[red]:smile:.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --hidden-size 64 --micro-batch-size 1 "
        "--num-layers 2 '--no-such-[/bold]<script>' x "
        "--bf16 --attention-backend '<b>[red]2[/red]' --seq-length 128\n"
    )
    run = public.import_config(script)
    page = page_of(run)
    assert "run[red]:smile:.sh" in page.text
    assert "<script" not in run._repr_html_()
    assert {row["setting"]: row["value"] for row in run.table()}["seq_len"] == 128


def test_rows_say_where_a_value_stands_and_what_is_a_default(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 2 --hidden-size 64 --bf16 \\\n"
        "  --tensor-model-parallel-size 2\n"
    )
    rows = {row["setting"]: row for row in public.import_config(script).table()}
    assert rows["tp"]["value"] == 2
    assert rows["tp"]["said_by"] == "--tensor-model-parallel-size (run.sh:2)"
    assert not rows["tp"]["default"]
    assert rows["pp"]["default"]
    assert rows["pp"]["value"] == 1
    assert rows["model.hidden_size"]["value"] == 64


def test_jupyter_shows_a_result_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There rich would show by itself what is printed into a record."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)

    def refused(*_: object) -> None:
        raise AssertionError("shown a second time")

    monkeypatch.setattr("rich.jupyter.display", refused)
    path = tmp_path / "out.txt"
    path.write_text(NCCL, encoding="utf-8")
    page_of(public.read_log(path))


def test_rows_of_several_benchmarks_tell_whose_they_are(tmp_path: Path) -> None:
    path = tmp_path / "both.txt"
    path.write_text(NCCL + NCCL.replace("all_reduce_perf", "alltoall_perf"), encoding="utf-8")
    rows = public.read_log(path).table()
    assert [(row["operation"], row["devices"], row["size_bytes"]) for row in rows] == [
        (name, 8, size) for name in ("all_reduce", "all_to_all") for size in (2**20, 2**21)
    ]


def test_the_example_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = fenced(ROOT / "docs/python.md", "python")
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "python.md", "exec"), {})
    said = capsys.readouterr().out
    assert "\nTrue\n" in said
    listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/python.md").read_text(), re.MULTILINE))
    assert listed <= set(dir(public))
    assert {"plan", "predict", "compare", "size", "export", "check", "watch"} <= listed


def test_an_answer_is_exported_without_a_file() -> None:
    work = public.Workload(global_batch=32, sequence_length=4096)
    layout = public.plan("llama-3.1-8b", "8xh100-sxm", work, stack="torchtitan", tp=2, pp=1)
    folder = public.export(layout, "torchtitan")
    assert "train.toml" in {file.path for file in folder.files}
    page_of(folder)
    with pytest.raises(InputError, match="answer of plan"):
        public.export(3, "torchtitan")
