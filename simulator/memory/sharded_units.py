"""Memory that FSDP2 allocates and frees around each block if a plan shards its weights.

A unit is what FSDP2 gathers at once (an FSDP parameter group). The executor makes one per module
that has weights and contains no cut (executor/parallelize.py). All other weights belong to the root
unit: those read by several blocks without calling their module, and those in no such module.

A unit has P elements, T of them trained, on dp replicas (with hybrid sharding: those of a group); c
is the size in bytes of a weight in the compute type, g of a gradient as it is reduced. P and T
include padding (held.padded_elements). While a unit is in one of these states, the memory is (torch
2.13, torch/distributed/fsdp/_fully_shard: `_fsdp_param_group.py`, `_fsdp_collectives.py`):

    gathered   c P in one flat tensor and c P copied out of it, weights that are not sharded by rows
               through another copy (held.shard_dimension). In the forward, the flat one is
               freed after the next unit's copy (a variable of `wait_for_unshard` refers to it), the
               last at the end of the forward. On a CPU, gloo gathers into another c P, next to the
               cast shard
    backward   c P; the flat tensor of the previous unit, which is prefetched (ZeRO 3); the g T of
               the following unit, which are being reduced; and of its c T gradients the largest
               one. At its end, all c T exist, but its activations are freed
    reduced    g T sent, g T / dp received, on a CPU gloo's copy of the g T, and the last
               parameter's gradient, which a variable of torch's loop refers to

Some units are reduced one after the other after the backward: the root, and units whose inputs have
no gradient (those of the first block, embedding tables). Until its turn, each keeps its weights and
gradients whole. Modules of the first block with inputs from its other modules are treated like this
too.

A unit that is called again in a later block is gathered there again. Gradients of that call stay
whole until those of the first call; under ZeRO 1 and 2 the weights freed by the later call make up
for them.

In a pipeline, gradients are whole during the whole step, and so are weights except under ZeRO 3.
Only the weights that ZeRO 3 gathers are counted here, in each block that reads them, and in mixed
precision the c T gradients, which are added to sums of g T at the end of the unit's backward. The
first block of a stage has no previous unit.
Comparison with measured peaks: tests/oracles/test_sharded_memory.py,
tests/executor/fake_accelerator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

from profiles.model.graph import Block, BlockRef, ModelGraph, Parameter, parameter_name
from simulator.memory.data_group import DataGroup
from simulator.memory.held import BlockBytes, padded_elements, shard_dimension

AnyBlock = TypeVar("AnyBlock", bound=BlockBytes)


class UnitBuffers(NamedTuple):
    """Bytes of FSDP2's buffers around a block, without what is whole during the whole step (ZeRO 1
    and 2: all weights).

    forward, backward     while the block's ops run
    gathering, summing    before its forward and after its backward
    ending                while the block's last backward op runs; of its activations, only the
                          gradient of the input is left
    loss_forward, loss_backward   while a loss runs, before which ZeRO 3 has freed the units
    """

    forward: float = 0.0
    gathering: float = 0.0
    backward: float = 0.0
    ending: float = 0.0
    summing: float = 0.0
    loss_forward: float = 0.0
    loss_backward: float = 0.0

    def add_to(self, block: AnyBlock) -> AnyBlock:
        """The block with these buffers added to its transient bytes. Before its forward and after
        its backward, none of its tensors are saved. If the block contains the loss, its peak is
        usually in the loss, where its weights are not gathered."""
        forward, saved = block.forward_transient_bytes + self.forward, block.saved_bytes
        backward = block.backward_transient_bytes + self.backward
        if not block.output_bytes:
            products = block.weight_bytes
            of_loss = block.forward_transient_bytes + self.loss_forward
            forward = min(forward, max(of_loss, products + self.forward))
            of_loss = block.backward_transient_bytes + self.loss_backward
            backward = min(backward, max(of_loss, products + self.backward))
        return replace(
            block,
            forward_transient_bytes=max(forward, self.gathering - saved),
            backward_transient_bytes=max(
                backward, self.ending + block.input_bytes - saved, self.summing - saved
            ),
        )


class _Unit(NamedTuple):
    """Numbers of elements of a unit.

    total, sent    of all parameters as gathered, and of gradients as reduced; both with padding
    rearranged     of parameters that are not sharded by rows
    trained        of trained parameters, without padding
    widest, last   of the largest and of the last trained parameter
    late           it is reduced after the backward
    again          an earlier block has called it
    """

    total: int = 0
    rearranged: int = 0
    sent: int = 0
    trained: int = 0
    widest: int = 0
    last: int = 0
    late: bool = False
    again: bool = False


_NONE = _Unit()


def unit_buffers(
    graph: ModelGraph,
    group: DataGroup,
    *,
    tied: Sequence[Sequence[str]] = (),
    openings: Collection[int] = (),
) -> tuple[UnitBuffers, ...]:
    """The buffers of each block of the chain; 0 if FSDP2 moves no blocks.

    tied      names of the parameters that share their storage
    openings  indices of blocks that are the first of a pipeline stage
    """
    if not group.moves_blocks:
        return (UnitBuffers(),) * len(graph.chain)
    c, g, dp = group.sizes.compute_bytes, group.sizes.gradient_bytes, group.degrees.shard_replicas
    on_cpu = group.device.type == "cpu"
    stays_whole = group.zero_stage <= 2
    root, read, blocks = _units(graph, dp, frozenset(chain.from_iterable(tied)))
    if group.pipelined:
        root, read, blocks = _NONE, [{} for _ in read], _units_of_stages(graph, group)
    # Copies of a unit's elements while it is gathered; elements of units that stay whole while
    # others run.
    copies = 2 + (1 / dp if on_cpu and group.sizes.working_copy_bytes else 0.0)
    kept = [[unit.total * (stays_whole and not unit.again) for unit in units] for units in blocks]
    static = c * (root.total + sum(map(sum, kept))) if stays_whole else 0.0

    def summed(unit: _Unit) -> float:
        """Bytes while a unit's gradients are reduced. In the first micro-batch the reduced shard
        becomes the gradient, which is counted elsewhere unless it goes to the host."""
        if not unit.trained:
            return 0.0
        sent = g * unit.sent
        share = sent / dp * (group.num_microbatches > 1 or group.offloaded)
        return sent + max(c * unit.trained, share + sent * on_cpu + c * unit.last)

    buffers = []
    before, earlier = root, 0
    for position, units in enumerate(blocks):
        if position in openings:
            before = _NONE
        later = [unit for block in blocks[position + 1 :] for unit in block]
        waiting = sum(unit.total + unit.trained for unit in later if unit.late)
        if not stays_whole:
            waiting += sum(unit.trained for unit in later if unit.again and not unit.late)
        made = _root_made(read, position)
        present = c * (root.total + earlier)
        gathering = summing = 0.0
        previous = before
        for unit, whole in zip(units, kept[position], strict=True):
            if not (stays_whole and unit.again):
                gathered = previous.total + copies * unit.total + unit.rearranged
                gathering = max(gathering, present + c * gathered)
            ahead = 0 if stays_whole or previous is root else previous.total
            if not unit.late:
                summing = max(summing, present + c * (ahead + waiting + made) + summed(unit))
            present += c * whole
            previous = unit
        if not position:
            # The root and the late units are reduced one after the other after the backward.
            order = [root, *(unit for unit in (*units, *later) if unit.late)]
            waits = [c * (unit.total + unit.trained) for unit in order]
            last = (sum(waits[i + 1 :]) + summed(unit) for i, unit in enumerate(order))
            summing = max(summing, *last)
        run = max(units, key=lambda unit: unit.total, default=_NONE)
        own = sum(kept[position]) if stays_whole else run.total
        weights = c * (root.total + earlier + own)
        # Units of a tower that is called again run one after the other within a block.
        again = [unit for unit in units if unit.again]
        nearest = max((unit.total for unit in again), default=0)
        ahead = 0 if stays_whole or before is root else max(before.total, nearest)
        made = _root_made(read, position, running=True)
        largest = min(run.trained - run.widest, run.widest)
        flat = run.total if units else before.total
        left = weights - c * own * (not stays_whole)
        behind = next((unit for unit in later if not unit.late), _NONE).sent
        behind = max(behind, *(unit.sent for unit in again)) if again else behind
        running = weights + c * (ahead + waiting + made) + g * behind
        here = (
            weights + c * flat,
            gathering,
            running + c * largest,
            running + c * run.trained,
            summing,
            left + c * flat,
            left,
        )
        buffers.append(UnitBuffers(*(size - static for size in here)))
        before, earlier = previous, earlier + sum(kept[position])
    return tuple(buffers)


def largest_by_kind(graph: ModelGraph, buffers: Sequence[UnitBuffers]) -> tuple[UnitBuffers, ...]:
    """For each kind of block, the maximum over its positions in the chain."""
    most: dict[int, UnitBuffers] = {}
    for ref, here in zip(graph.chain, buffers, strict=True):
        most[ref.kind] = UnitBuffers(*map(max, most.get(ref.kind, here), here))
    return tuple(most.get(kind, UnitBuffers()) for kind in range(len(graph.kinds)))


def _root_made(read: Sequence[dict[str, int]], position: int, *, running: bool = False) -> int:
    """Elements of the root's gradients that exist after the backward of this block; if `running`,
    during it, except for the one that is being computed."""
    before: dict[str, int] = {}
    for each in read[position + 1 :]:
        before |= each
    here = [size for name, size in read[position].items() if name not in before]
    return sum(before.values()) + sum(here) - max(here, default=0) * running


def _units(
    graph: ModelGraph, dp: int, tied: frozenset[str]
) -> tuple[_Unit, list[dict[str, int]], list[list[_Unit]]]:
    """The root unit; for each block, the elements by name of the root's trained parameters that it
    reads; the units of each block in the order of their parameters."""
    held = _modules(graph)
    readers = Counter(chain.from_iterable(set().union(*groups.values()) for groups in held))
    opening, above = _openings(graph)
    roots = {
        path
        for groups in held
        for path, group in groups.items()
        if not path or any(readers[name] > 1 and not p.calls for name, p in group.items())
    }
    # A unit with one shared weight belongs to the root entirely
    # (parallelize.without_shared_weights).
    roots |= {_unit_path(name, opening, above) for name in tied}
    root: dict[str, Parameter] = {}
    read: list[dict[str, int]] = []
    blocks = []
    first = True  # no earlier block has weights
    called: set[str] = set()
    for ref, groups in zip(graph.chain, held, strict=True):
        shared: dict[str, Parameter] = {}
        for path, group in groups.items():
            shared |= group if path in roots else {}
        root |= shared
        read.append({name: p.spec.num_elements for name, p in shared.items() if p.trainable})
        block = graph.kinds[ref.kind]
        blocks.append(
            [
                _unit(group, dp, late=first or _is_table(path, block, ref), again=path in called)
                for path, group in groups.items()
                if path not in roots
            ]
        )
        called |= groups.keys()
        first = first and not groups
    return _unit(root, dp), read, blocks


def _units_of_stages(graph: ModelGraph, group: DataGroup) -> list[list[_Unit]]:
    """The units of each block of a pipeline; weights that several blocks read are in each of them.
    Only elements that are not whole during the whole step: of weights under ZeRO 3, of gradients in
    mixed precision."""
    gathered, cast = group.zero_stage == 3, group.sizes.working_copy_bytes > 0

    def moved(unit: _Unit) -> _Unit:
        return _Unit(
            total=unit.total * gathered,
            rearranged=unit.rearranged * gathered,
            trained=unit.trained * cast,
            widest=unit.widest * cast,
        )

    dp = group.degrees.shard_replicas
    return [[moved(_unit(own, dp)) for own in groups.values()] for groups in _modules(graph)]


def _modules(graph: ModelGraph) -> list[dict[str, dict[str, Parameter]]]:
    """The parameters of each block by name, grouped by the module that could be a unit."""
    opening, above = _openings(graph)
    held: list[dict[str, dict[str, Parameter]]] = []
    for ref in graph.chain:
        groups: dict[str, dict[str, Parameter]] = {}
        for parameter in graph.kinds[ref.kind].parameters:
            name = parameter_name(ref, parameter)
            groups.setdefault(_unit_path(name, opening, above), {})[name] = parameter
        held.append(groups)
    return held


def _openings(graph: ModelGraph) -> tuple[set[str], set[str]]:
    """The modules with which blocks begin, and all modules above them."""
    opening = {ref.entry for ref in graph.chain if ref.entry} or {""}
    return opening, {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}


def _unit(
    group: dict[str, Parameter], dp: int, *, late: bool = False, again: bool = False
) -> _Unit:
    specs = [p.spec for p in group.values() if p.trainable]
    trained = [spec.num_elements for spec in specs] or [0]
    return _Unit(
        total=sum(padded_elements(p.spec, dp) for p in group.values()),
        rearranged=_rearranged(group, dp),
        sent=sum(padded_elements(spec, dp) for spec in specs),
        trained=sum(trained),
        widest=max(trained),
        last=trained[-1],
        late=late,
        again=again,
    )


def _rearranged(group: dict[str, Parameter], dp: int) -> int:
    specs = (p.spec for p in group.values())
    return sum(spec.num_elements for spec in specs if shard_dimension(spec.shape, dp))


def _is_table(path: str, block: Block, ref: BlockRef) -> bool:
    """Whether a unit is an embedding table: its input is token ids, so no gradient flows through
    it."""
    own = "" if path == ref.entry else path.removeprefix(f"{ref.entry}.")
    return any(op.name.endswith("embedding") and op.module == own for op in block.forward_ops)


def _unit_path(name: str, opening: set[str], above: set[str]) -> str:
    """The top-most module that contains a parameter and no cut between blocks; "" for none."""
    if "" in opening:  # a model without cuts is one unit
        return ""
    path = ""
    for part in name.split(".")[:-1]:
        path = f"{path}.{part}" if path else part
        if path in opening or path not in above:
            return path
    return ""
