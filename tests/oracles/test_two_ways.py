"""A plan of alike layers takes about as long and as much memory priced block by block as priced as
a layout.

Both use the same coefficients; one counts a framework's kernels and bytes from its file, the other
those of the trace.
"""

from __future__ import annotations

import functools

import pytest

from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import TracedModel, trace_model
from shardwright import api
from simulator.traced.predict import predict
from simulator.values.workload import Workload

# With the allowed difference of step times. BERT: figures price attention in both directions as
# causal. The last: a stage of the head alone, whose loss is counted in more bytes than the trace.
PLAIN = {"micro_batch": 64, "recompute": "none"}
QUESTIONS = (
    ("gpt2", "1xh100-sxm", Workload(global_batch=16, sequence_length=1024), {}, 0.08),
    ("bert-large", "1xh200-sxm", Workload(global_batch=64, sequence_length=512), PLAIN, 0.1),
    (
        "gpt2",
        "1x8xa100-sxm-80gb",
        Workload(global_batch=64, sequence_length=1024),
        {"zero": 2},
        0.08,
    ),
    ("tiny-llama-demo", "1xh100-sxm", Workload(global_batch=64, sequence_length=256), {}, 0.08),
    ("gpt2", "1x4xh100-sxm", Workload(global_batch=32, sequence_length=1024), {"pp": 4}, 0.2),
)


@functools.cache
def traced(model: str, sequence_length: int) -> TracedModel:
    return trace_model(resolve_model(model), sequence_length=sequence_length, dtype="bfloat16")


@pytest.mark.parametrize(("model", "on", "work", "pins", "most"), QUESTIONS)
def test_blocks_and_layouts_take_about_as_long(model, on, work, pins, most):
    answer = api.plan(model, on, work, **pins)
    whole = predict(answer.plan, traced(model, work.sequence_length), get_cluster(on))
    blocks = whole.step_time_s
    layout = answer.prediction.step_time_s
    assert blocks.value == pytest.approx(layout.value, rel=most)
    assert layout.low < blocks.value < layout.high
    assert whole.peak.value == pytest.approx(answer.prediction.peak.value, rel=0.08)
