"""The strategies of an op: placements of its inputs and outputs on every axis, and its local work.

On one axis an op runs whole on every rank, cut along one of its loops (loops.py) or, if it is
linear, on partial sums. On a mesh of two axes a strategy is a choice for each axis.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from shardwright_placements.op_graph.op_graph import GraphOp, OpGraph
from shardwright_placements.planning.flow import (
    SHARED,
    SUMMANDS,
    WHOLE,
    Flow,
    Layout,
    backward_of,
    forward_of,
    shards,
    sliced,
)
from shardwright_placements.planning.loops import Exchange, Loop, loops_of, passes_partial


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One way to run an op.

    inputs, outputs   the layout of each tensor
    cuts              (role, ranks) of every loop that is cut
    exchanged         (axis, collective inside the op, with the buffer after cuts by other axes)
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    cuts: tuple[tuple[str, int], ...]
    exchanged: tuple[tuple[int, Exchange], ...] = ()

    @property
    def label(self) -> str:
        """The layouts as text: `S(1) R/P -> P/R`; axes are joined by a comma."""

        def text(layouts: tuple[Layout, ...]) -> str:
            return " ".join(",".join(map(str, layout)) for layout in layouts)

        return f"{text(self.inputs)} -> {text(self.outputs)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """A strategy on one axis."""

    inputs: tuple[Flow, ...]
    outputs: tuple[Flow, ...]
    loop: Loop | None


def strategies_of(op: GraphOp, graph: OpGraph, sizes: tuple[int, ...]) -> tuple[Strategy, ...]:
    """All strategies of the op on a mesh with axes of these sizes, the whole one first.

    Dims are cut evenly: a loop whose dim the ranks do not divide is left out.
    """
    choices = _choices(op, graph)
    found: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], Strategy] = {}
    for combination in itertools.product(choices, repeat=len(sizes)):
        made = _combined(op, graph, sizes, combination)
        if made is not None:
            found.setdefault((made.inputs, made.outputs), made)
    return tuple(found.values())


def _choices(op: GraphOp, graph: OpGraph) -> tuple[_Choice, ...]:
    inputs = tuple(graph.tensors[t] for t in op.inputs)
    outputs = tuple(graph.tensors[t] for t in op.outputs)
    trains = any(x.needs_gradient for x in outputs)
    found = [_Choice(inputs=(WHOLE,) * len(inputs), outputs=(WHOLE,) * len(outputs), loop=None)]
    for loop in loops_of(op, graph.tensors):
        lacking = SHARED if trains else WHOLE
        found.append(
            _Choice(
                inputs=tuple(
                    sliced(d)
                    if d is not None
                    else lacking
                    if x.needs_gradient and i not in loop.whole
                    else WHOLE
                    for i, (d, x) in enumerate(zip(loop.inputs, inputs, strict=True))
                ),
                outputs=tuple(
                    sliced(d) if d is not None else SUMMANDS if loop.is_sum else WHOLE
                    for d in loop.outputs
                ),
                loop=loop,
            )
        )
    if inputs and passes_partial(op):
        # A weight is stored whole or cut, never as partial sums; its gradient may be partial.
        # Partial sums of integers or booleans are useless.
        plain = any(x.parameter or not x.dtype.startswith(("float", "bfloat")) for x in inputs)
        flows = () if plain else (SUMMANDS,)
        for flow in (*flows, SHARED) if trains else flows:
            found.append(
                _Choice(inputs=(flow,) * len(inputs), outputs=(flow,) * len(outputs), loop=None)
            )
    return tuple(found)


def _combined(
    op: GraphOp, graph: OpGraph, sizes: tuple[int, ...], choices: tuple[_Choice, ...]
) -> Strategy | None:
    """The strategy made of one choice per axis, None if the cuts cannot be combined."""
    if not all(_nest(a, b) for a, b in itertools.combinations(choices, 2)):
        return None
    inputs = tuple(tuple(c.inputs[i] for c in choices) for i in range(len(op.inputs)))
    outputs = tuple(tuple(c.outputs[i] for c in choices) for i in range(len(op.outputs)))
    for numbers, layouts in ((op.inputs, inputs), (op.outputs, outputs)):
        for number, layout in zip(numbers, layouts, strict=True):
            for placements in (forward_of(layout), backward_of(layout)):
                for dim, length in enumerate(graph.tensors[number].shape):
                    if length % shards(placements, sizes, dim):
                        return None
    cuts = tuple(
        (c.loop.role, size) for c, size in zip(choices, sizes, strict=True) if c.loop is not None
    )
    exchanged = tuple(
        (axis, _left_by_others(exchange, axis, choices, sizes))
        for axis, c in enumerate(choices)
        if c.loop is not None
        for exchange in c.loop.exchanged
    )
    return Strategy(inputs=inputs, outputs=outputs, cuts=cuts, exchanged=exchanged)


def _nest(outer: _Choice, inner: _Choice) -> bool:
    """Whether two cuts of one dim on two axes give every rank matching parts of all tensors.

    Slices nest: the inner axis cuts the slices of the outer one. But a tensor that only the inner
    axis cuts has other slices than one that both cut: if both cut the queries and only the inner
    axis the keys, a rank has keys of other heads. Rows are exchanged on one axis only.
    """
    if outer.loop is None or inner.loop is None:
        return True
    a, b = outer.loop, inner.loop
    if a is b:
        return not any(x.operation == "all_to_all" for x in a.exchanged)
    pairs = [*zip(a.inputs, b.inputs, strict=True), *zip(a.outputs, b.outputs, strict=True)]
    if not any(x is not None and x == y for x, y in pairs):
        return True
    return all(x is not None or y is None for x, y in pairs)


def _left_by_others(
    exchange: Exchange, axis: int, choices: tuple[_Choice, ...], sizes: tuple[int, ...]
) -> Exchange:
    ranks = 1
    for other, choice in enumerate(choices):
        cut = choice.loop.inputs[0] if choice.loop is not None else None
        if other != axis and cut in exchange.without:
            ranks *= sizes[other]
    return replace(exchange, elements=exchange.elements // ranks)
