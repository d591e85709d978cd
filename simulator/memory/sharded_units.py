"""What FSDP2 makes and frees beside each block where a plan without a pipeline shards its weights.

The executor gives FSDP2 a unit per module that holds weights and no cut (executor/parallelize.py);
weights that several blocks read, or that stand in no such module, are the root's. Of a unit of P
elements, T of them trained, on dp replicas, with c bytes a weight as it is computed with and g a
gradient as it is summed (torch 2.13, torch/distributed/fsdp/_fully_shard: `_fsdp_param_group.py`,
`_fsdp_collectives.py`):

    gathered   c P in one flat tensor and c P taken out of it; in the forward the flat one goes when
               the next unit's is taken apart; gloo, on a CPU, gathers into c P more
    backward   c P, the flat tensor of the unit before, which is fetched ahead (ZeRO 3), and the g T
               of the unit behind that were sent to be summed
    summed     g T as they are sent, g T / dp as they come, on a CPU gloo's copy of the g T, and of
               the gradients c T the last parameter's, which a variable of torch's loop still names

Units that are given no tensor with a gradient (the first block's, tables of words) and the root are
summed one after the other when the backward is over: until its turn each keeps its weights and
gradients whole. Modules of the first block that take what another of them made are counted so, too.
Against measured peaks: tests/oracles/test_sharded_memory.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from profiles.model.graph import Block, BlockRef, ModelGraph, Parameter
from simulator.memory.held import BlockBytes, parameter_name
from simulator.training_run.framework.executor_states import PrecisionBytes

AnyBlock = TypeVar("AnyBlock", bound=BlockBytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitBuffers:
    """Bytes of FSDP2's beside a block, less what stays whole all step long (ZeRO 2: all weights).

    forward, backward   while the block's ops run;  gathering, summing  while they do not
    """

    forward: float = 0.0
    gathering: float = 0.0
    backward: float = 0.0
    summing: float = 0.0

    def beside(self, cost: AnyBlock) -> AnyBlock:
        """The block's cost with them: before its forward and behind its backward nothing is saved
        of it."""
        return replace(
            cost,
            forward_transient_bytes=max(
                cost.forward_transient_bytes + self.forward, self.gathering - cost.saved_bytes
            ),
            backward_transient_bytes=max(
                cost.backward_transient_bytes + self.backward, self.summing - cost.saved_bytes
            ),
        )

    def most(self, other: UnitBuffers) -> UnitBuffers:
        """The larger of each figure."""
        return UnitBuffers(
            forward=max(self.forward, other.forward),
            gathering=max(self.gathering, other.gathering),
            backward=max(self.backward, other.backward),
            summing=max(self.summing, other.summing),
        )


@dataclass(frozen=True, slots=True)
class _Unit:
    """Elements: of all parameters, of those trained, of the largest and of the last of these.

    late  it is summed when the backward is over
    """

    total: int = 0
    trained: int = 0
    widest: int = 0
    last: int = 0
    late: bool = False


_NONE = _Unit()


def unit_buffers(
    graph: ModelGraph,
    *,
    zero_stage: int,
    dp: int,
    num_microbatches: int,
    sizes: PrecisionBytes,
    on_cpu: bool,
) -> tuple[UnitBuffers, ...]:
    """Of each kind of block the most over its places in the chain; 0 where nothing is sharded."""
    if zero_stage < 2 or dp == 1:
        return (UnitBuffers(),) * len(graph.kinds)
    found: list[UnitBuffers | None] = [None] * len(graph.kinds)
    places = _Places(graph, zero_stage, dp, num_microbatches, sizes, on_cpu)
    for position, ref in enumerate(graph.chain):
        here, known = places.at(position), found[ref.kind]
        found[ref.kind] = here if known is None else known.most(here)
    return tuple(buffers or UnitBuffers() for buffers in found)


class _Places:
    """The formulas at the top of this file, block by block in the order of the chain."""

    def __init__(
        self,
        graph: ModelGraph,
        zero_stage: int,
        dp: int,
        num_microbatches: int,
        sizes: PrecisionBytes,
        on_cpu: bool,
    ) -> None:
        self._root, self._read, self._blocks = _units(graph)
        self._kept_whole = zero_stage == 2
        self._dp, self._on_cpu = dp, on_cpu
        # The first micro-batch's share becomes the gradient, which is counted by itself.
        self._adds = num_microbatches > 1
        self._c, self._g = sizes.compute_bytes, sizes.gradient_bytes
        self._cast = bool(sizes.working_copy_bytes)
        whole = self._root.total + sum(u.total for units in self._blocks for u in units)
        self._static = self._c * whole if self._kept_whole else 0.0

    def at(self, position: int) -> UnitBuffers:
        """Beside the block at this position."""
        units = self._blocks[position]
        earlier = [u for block in self._blocks[:position] for u in block]
        before = earlier[-1] if earlier else self._root
        waiting = sum(u.total + u.trained for u in self._late(position + 1))
        c, root = self._c, self._root
        run = max(units, key=lambda u: u.total, default=_NONE)
        own = sum(u.total for u in units) if self._kept_whole else run.total
        weights = c * (root.total + self._whole(earlier) + own)
        gathering = summing = 0.0
        for index, (previous, unit) in enumerate(pairwise([before, *units])):
            present = c * (root.total + self._whole([*earlier, *units[:index]]))
            copies = (2 if self._on_cpu else 1) + (1 / self._dp if self._cast else 0.0)
            gathering = max(gathering, present + c * (previous.total + copies * unit.total))
            ahead = 0 if self._kept_whole or not position else previous.total
            held = present + c * (ahead + waiting + self._root_made(position))
            summing = max(summing, 0.0 if unit.late else held + self._summed(unit))
        if not position:
            summing = max(summing, self._summed_last())
        later = (u for block in self._blocks[position + 1 :] for u in block)
        behind = next((u for u in later if not u.late), _NONE)
        ahead = 0 if self._kept_whole or not earlier else before.total
        made = self._root_made(position, running=True) + run.trained - run.widest
        backward = weights + c * (ahead + waiting + made) + self._g * behind.trained
        return UnitBuffers(
            forward=weights + c * run.total - self._static,
            gathering=gathering - self._static,
            backward=backward - self._static,
            summing=summing - self._static,
        )

    def _root_made(self, position: int, *, running: bool = False) -> int:
        """Elements of the root's gradients behind the backward of this block, or while it runs,
        beyond the one that is being made."""
        before: dict[str, int] = {}
        for read in self._read[position + 1 :]:
            before |= read
        here = [size for name, size in self._read[position].items() if name not in before]
        return sum(before.values()) + sum(here) - max(here, default=0) * running

    def _whole(self, units: Sequence[_Unit]) -> int:
        """Elements of these units that are whole while another runs."""
        return sum(u.total for u in units) if self._kept_whole else 0

    def _summed(self, unit: _Unit) -> float:
        """Bytes while a unit's gradients are summed."""
        if not unit.trained:
            return 0.0
        sent, share = self._g * unit.trained, self._g * unit.trained / self._dp
        behind = share * self._adds + sent * self._on_cpu + self._c * unit.last
        return sent + max(self._c * unit.trained, behind)

    def _late(self, position: int) -> list[_Unit]:
        """Late units of the blocks from this one on."""
        return [u for block in self._blocks[position:] for u in block if u.late]

    def _summed_last(self) -> float:
        """Bytes while the root and the late units are summed."""
        order = [self._root, *self._late(0)]
        waits = [self._c * (unit.total + unit.trained) for unit in order]
        return max(sum(waits[i + 1 :]) + self._summed(unit) for i, unit in enumerate(order))


def _units(graph: ModelGraph) -> tuple[_Unit, list[dict[str, int]], list[list[_Unit]]]:
    """The root; elements of its trained parameters by name that each block reads; the units of each
    block in the order of their parameters."""
    opening = {ref.entry for ref in graph.chain if ref.entry} or {""}
    above = {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}
    held: list[dict[str, dict[str, Parameter]]] = []
    readers: Counter[str] = Counter()
    for ref in graph.chain:
        groups: dict[str, dict[str, Parameter]] = {}
        for parameter in graph.kinds[ref.kind].parameters:
            name = parameter_name(ref, parameter)
            groups.setdefault(_unit_path(name, opening, above), {})[name] = parameter
        held.append(groups)
        readers.update({name for group in groups.values() for name in group})
    roots = {
        path
        for groups in held
        for path, group in groups.items()
        if not path or any(readers[name] > 1 for name in group)
    }
    root: dict[str, Parameter] = {}
    read: list[dict[str, int]] = []
    blocks = []
    first = True  # no block before this one holds weights
    for ref, groups in zip(graph.chain, held, strict=True):
        shared: dict[str, Parameter] = {}
        for path, group in groups.items():
            shared |= group if path in roots else {}
        root |= shared
        read.append({name: p.spec.num_elements for name, p in shared.items() if p.trainable})
        block = graph.kinds[ref.kind]
        blocks.append(
            [
                _unit(group, late=first or _is_table(path, block, ref))
                for path, group in groups.items()
                if path not in roots
            ]
        )
        first = first and not groups
    return _unit(root), read, blocks


def _unit(group: dict[str, Parameter], *, late: bool = False) -> _Unit:
    sizes = [p.spec.num_elements for p in group.values()]
    trained = [p.spec.num_elements for p in group.values() if p.trainable] or [0]
    return _Unit(
        total=sum(sizes), trained=sum(trained), widest=max(trained), last=trained[-1], late=late
    )


def _is_table(path: str, block: Block, ref: BlockRef) -> bool:
    """Whether a unit is a table, of which rows are looked up: it is given whole numbers alone."""
    own = "" if path == ref.entry else path.removeprefix(f"{ref.entry}.")
    return any(op.name.endswith("embedding") and op.module == own for op in block.forward_ops)


def _unit_path(name: str, opening: set[str], above: set[str]) -> str:
    """The top-most module that holds a parameter and no cut; "" where there is none."""
    if "" in opening:  # a model that is not cut is one unit
        return ""
    path = ""
    for part in name.split(".")[:-1]:
        path = f"{path}.{part}" if path else part
        if path in opening or path not in above:
            return path
    return ""
