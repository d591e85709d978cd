"""The cached op graph is the traced one, and is read instead of traced again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.op_graph.traced_op_graph import traced_op_graph

from profiles.model.loaders import resolve_model
from tests.executor.config_zoo import config_of


def test_a_second_question_reads_the_graph(tmp_path: Path) -> None:
    path, cache = tmp_path / "config.json", tmp_path / "cache"
    path.write_text(json.dumps(config_of("bert")))
    spec = resolve_model(str(path))

    def ask(micro_batch: int, folder: Path | None = cache) -> OpGraph:
        return traced_op_graph(
            spec, micro_batch=micro_batch, sequence_length=16, dtype="bfloat16", cache=folder
        )

    first = ask(2)
    assert first == ask(2, None)
    assert ask(4) != first
    file = next(f for f in cache.glob("*") if '"bfloat16"' in f.read_text())
    before = len(list(cache.glob("*")))
    assert ask(2) == first
    assert len(list(cache.glob("*"))) == before == 2
    # What is read is the file: a changed one shows, an unusable one is traced anew.
    file.write_text(file.read_text().replace('"gelu"', '"changed"'))
    assert {op.name for g in (ask(2), ask(4)) for op in g.ops} >= {"gelu", "changed"}
    file.write_text("{")
    with pytest.warns(UserWarning, match="traced again"):
        assert (ask(2), ask(4))[0] == first
