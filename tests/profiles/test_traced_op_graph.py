"""The cached op graph is the traced one, and is not traced again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.model import trace_op_graph
from profiles.model.loaders import resolve_model
from profiles.model.traced_op_graph import traced_op_graph
from tests.executor.config_zoo import config_of


def test_a_second_question_reads_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config_of("bert")))
    spec, cache = resolve_model(str(path)), tmp_path / "cache"
    settings = {"sequence_length": 16, "dtype": "bfloat16", "cache": cache}
    first = traced_op_graph(spec, micro_batch=2, **settings)
    other = traced_op_graph(spec, micro_batch=4, **settings)
    assert other != first

    def again(*_: object, **__: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(trace_op_graph, "trace_op_graph", again)
    assert traced_op_graph(spec, micro_batch=2, **settings) == first
    # An unusable file is traced anew, and said so.
    next(cache.glob("*")).write_text("{")
    with pytest.raises(AssertionError, match="traced again"), pytest.warns(match="unusable"):
        for size in (2, 4):
            traced_op_graph(spec, micro_batch=size, **settings)
