"""The changes of placements between ops with chosen strategies, with costs, in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.planning.flow import Layout, backward_of, forward_of
from shardwright_placements.planning.resharding import Resharding
from shardwright_placements.planning.strategies import Strategy
from shardwright_placements.planning.uses import layouts_read, makers_of, readers_of
from shardwright_placements.sharding_file import Change, Conversion, PlacedTensor, Placements

Between = Mapping[tuple[int, int], tuple[Layout, ...]]
"""(block, tensor) -> the layouts into which it is converted, including intermediate ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """A tensor that the ops of a block read in another layout than its maker's.

    made      layout of output `output` of op `maker`
    needed    layouts in which it is read
    forms     `needed`, and intermediate layouts that make conversions cheaper
    forward_s, backward_s  seconds of one conversion
    count     conversions per micro-batch
    """

    tensor: int
    block: int
    maker: int
    output: int
    made: Layout
    needed: tuple[Layout, ...]
    forms: tuple[Layout, ...]
    forward_s: float
    backward_s: float
    count: int

    @property
    def total_s(self) -> float:
        """Seconds per micro-batch, forward and backward."""
        return self.count * (self.forward_s + self.backward_s)


def reshards_of(
    graph: OpGraph, strategies: Sequence[Strategy], resharding: Resharding, chosen: Between
) -> tuple[Reshard, ...]:
    """All tensors that are read in another layout than their maker's; `strategies` has all ops."""
    found = []
    for (block, t), readers in readers_of(graph).items():
        tensor = graph.tensors[t]
        read = {x for r in readers for x in layouts_read(graph, r, strategies[r], t)}
        needed = tuple(sorted(read, key=str))
        for maker, output, count in makers_of(graph, block, t):
            made = strategies[maker].outputs[output]
            if needed == (made,):
                continue
            forms = chosen.get((block, t), needed)
            direct = resharding.total_seconds(tensor, made, needed)
            if resharding.total_seconds(tensor, made, forms) >= direct:
                forms = needed
            found.append(
                Reshard(
                    tensor=t,
                    block=block,
                    maker=maker,
                    output=output,
                    made=made,
                    needed=needed,
                    forms=forms,
                    forward_s=resharding.one_way_seconds(tensor, made, forms, back=False),
                    backward_s=resharding.one_way_seconds(tensor, made, forms, back=True),
                    count=count,
                )
            )
    return tuple(found)


def conversion_of(graph: OpGraph, reshard: Reshard, resharding: Resharding) -> Conversion:
    """The conversion for the file.

    Changes to unused layouts are left out, and so are changes of gradients that are never computed.
    """
    tensor, made, needed = graph.tensors[reshard.tensor], reshard.made, reshard.needed
    forward: list[Change] = []
    wanted: set[Placements] = {forward_of(x) for x in needed}
    for change in reversed(resharding.changes(tensor, made, reshard.forms, back=False)):
        if change.target in wanted:
            forward.insert(0, change)
            wanted.add(change.source)
    backward: list[Change] = []
    arrived: set[Placements] = {backward_of(x) for x in needed}
    for change in resharding.changes(tensor, made, reshard.forms, back=True):
        if change.source in arrived:
            backward.append(change)
            arrived.add(change.target)
    return Conversion(
        tensor=reshard.tensor,
        block=reshard.block,
        maker=reshard.maker,
        output=reshard.output,
        made=placed(made),
        used=tuple(placed(layout) for layout in needed),
        forward=tuple(forward),
        backward=tuple(backward),
        runs=reshard.count,
    )


def placed(layout: Layout) -> PlacedTensor:
    """The layout for the file."""
    return PlacedTensor(forward=forward_of(layout), backward=backward_of(layout))


def weight_layouts(graph: OpGraph, strategies: Sequence[Strategy]) -> dict[int, tuple[Layout, ...]]:
    """The layouts in which each trained weight is read, by its number."""
    found: dict[int, dict[Layout, None]] = {}
    for op, strategy in zip(graph.ops, strategies, strict=True):
        for t, layout in zip(op.inputs, strategy.inputs, strict=True):
            if graph.tensors[t].parameter and graph.tensors[t].needs_gradient:
                found.setdefault(t, {})[layout] = None
    return {t: tuple(layouts) for t, layouts in found.items()}
