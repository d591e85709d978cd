"""Layers of recurrences in a probe: what is measured is what is priced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from profiles.hardware.catalogue.device import ConvPoint, Measurements
from profiles.hardware.probe.probe_cases import Case, recurrence_layers
from profiles.hardware.probe.probe_ops import op_call, traced_op
from profiles.hardware.probe.probe_timing import TimedCall, measure_on_thread
from profiles.model.graph import RECURRENCES, Phase
from simulator.traced.op_cost import price_op
from tests.simulator.hand_made import device


@pytest.mark.parametrize("layer", recurrence_layers(quick=True), ids=str)
@pytest.mark.parametrize("phase", list(Phase))
def test_a_layer_runs_and_costs_what_it_was_measured_to_take(layer, phase) -> None:
    case = Case(family="recurrence", shape=layer, phase=phase)
    op_call(case, torch.device("cpu"))()
    op_call(replace(case, dtype="bfloat16"), torch.device("cpu"))()
    op = traced_op(case)
    assert RECURRENCES[op.name] == layer.kind
    assert op.matmul is not None
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[layer.kind]
    passes = 1 if phase is Phase.FORWARD else 2
    width = layer.inputs + layer.size
    assert op.work_flop == 2 * 32 * passes * layer.batch * gates * layer.size * width
    point = ConvPoint(
        dtype="float32",
        phase=str(phase),
        kind=layer.kind,
        rows=op.matmul.m,
        channels=op.matmul.n,
        patch=op.matmul.k,
        work_flop=op.work_flop,
        moved_bytes=op.read_bytes + op.written_bytes,
        time_s=0.25,
    )
    points = Measurements(source="by hand", date="2026-11-22", conv=(point,))
    on = replace(device(), type="cpu", measurements=points)
    assert price_op(op, on).time_s == pytest.approx(0.25)


def test_what_prepares_a_call_is_not_timed() -> None:
    ran = []
    sample = measure_on_thread(
        TimedCall(lambda: ran.append("call"), prepare=lambda: ran.append(sum(range(10**6)))),
        3,
    )
    assert [x == "call" for x in ran] == [False, True] * 3
    assert sample.cpu_s < 1e-3
