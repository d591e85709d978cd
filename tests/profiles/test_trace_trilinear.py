"""nn.Bilinear's op, counted as the products that torch makes of it."""

from __future__ import annotations

import torch
from torch import nn

from profiles.model.building.build_given import spec_of_module
from profiles.model.graph import MatmulShape, OpKind, Phase
from profiles.model.tracing.trace import trace_graph


def test_a_bilinear_layer_is_two_products_for_each_output() -> None:
    """10 outputs of 6 samples: [6, 4] x [4, 5] each, then 5 by 5; a backward for each factor."""
    layer = nn.Bilinear(4, 5, 10)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.both = nn.Linear(3, 4), nn.Linear(3, 5), layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.both(self.a(x), self.b(x))  # type: ignore[no-any-return] # nn.Module's

    spec = spec_of_module(Both(), torch.randn(6, 3))
    graph = trace_graph(spec, micro_batch=6, sequence_length=1, dtype="float32")
    ops = [
        op
        for block in graph.kinds
        for op in (*block.forward_ops, *block.backward_ops)
        if op.name == "_trilinear"
    ]
    (forward,) = (op for op in ops if op.phase is Phase.FORWARD)
    assert forward.kind is OpKind.MATMUL
    assert forward.matmul == MatmulShape(batch=10, m=6, n=5, k=4)
    assert forward.work_flop == 2 * 10 * 6 * 5 * 4 + 2 * 10 * 6 * 5
    # Of the first input, of the weight and of the second: no product is left out.
    backward = [op for op in ops if op.phase is Phase.BACKWARD]
    assert len(backward) == 3
    assert all(op.work_flop >= 2 * 10 * 6 * 5 * 4 for op in backward)
