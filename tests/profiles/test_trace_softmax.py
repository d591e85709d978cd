"""The name of a softmax along another dimension than the last, which is slower on a CPU."""

from __future__ import annotations

import torch
from torch import nn

from profiles.hardware.catalogue.device import ACROSS
from profiles.model.building.build_given import spec_of_module
from profiles.model.tracing.trace import trace_graph


def test_a_softmax_along_another_dimension_than_the_last_is_named_so_on_a_cpu() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(dim=1), nn.Softmax(dim=-1))
    for target, end in (("cpu", ACROSS), ("gpu", "")):
        spec = spec_of_module(module, torch.rand(2, 6, 8))
        graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype="float32", target=target)
        ops = [op.name for kind in graph.kinds for op in (*kind.forward_ops, *kind.backward_ops)]
        assert {name for name in ops if "softmax" in name} == {
            f"_log_softmax{end}",
            f"_log_softmax_backward_data{end}",
            "_softmax",
            "_softmax_backward_data",
        }
