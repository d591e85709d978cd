"""Memory that FSDP2 allocates and frees around each block if a plan shards its weights.

The executor gives FSDP2 a unit per module that holds weights and no cut (executor/parallelize.py);
weights that several blocks read other than by calling their module, or that stand in no such
module, are the root's. Of a unit of P elements, T of them trained, on dp replicas (with hybrid
sharding those of a group), with c bytes a weight as it is computed with and g a gradient as it is
summed, P and T with the zeros that fill rows (held.dealt_elements; torch 2.13,
torch/distributed/fsdp/_fully_shard: `_fsdp_param_group.py`, `_fsdp_collectives.py`):

    gathered   c P in one flat tensor and c P taken out of it; in the forward the flat one goes when
               the next unit's has been taken apart (a variable of `wait_for_unshard` names it), the
               last with its end; gloo, on a CPU, gathers into c P more, beside the share as cast
    backward   c P, the flat tensor of the unit before, which is fetched ahead (ZeRO 3), the g T of
               the unit behind that were sent to be summed, and of the c T of its gradients one as
               large as the largest; at its end all of them, when its activations are freed
    summed     g T as they are sent, g T / dp as they come, on a CPU gloo's copy of the g T, and of
               the gradients c T the last parameter's, which a variable of torch's loop still names

Units that are given no tensor with a gradient (the first block's, tables of words) and the root are
summed one after the other when the backward is over: until its turn each keeps its weights and
gradients whole. Modules of the first block that take what another of them made are counted so, too.

A unit that is called again in a later block is gathered there again, and the gradients of that call
wait whole for those of the first; under ZeRO 1 and 2 the weights that the later call has freed make
up for them.

In a pipeline gradients are whole all step long, and so are weights but under ZeRO 3, whose gathered
weights alone are counted here, with weights that several blocks read in each of them. The first
block of a stage follows none.
Against measured peaks: tests/oracles/test_sharded_memory.py, tests/executor/fake_accelerator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

from profiles.model.graph import Block, BlockRef, ModelGraph, Parameter
from simulator.memory.data_group import DataGroup
from simulator.memory.held import BlockBytes, dealt_elements, parameter_name

AnyBlock = TypeVar("AnyBlock", bound=BlockBytes)


class UnitBuffers(NamedTuple):
    """Bytes of FSDP2's in addition to a block's, less what stays whole all step long (ZeRO 1 and 2:
    all weights).

    forward, backward   while the block's ops run;  gathering, summing  while they do not
    ending  when the block's last op runs, of which activations only the input's gradient is left
    loss_forward, loss_backward   while a loss runs, before which ZeRO 3 has freed the units
    """

    forward: float = 0.0
    gathering: float = 0.0
    backward: float = 0.0
    ending: float = 0.0
    summing: float = 0.0
    loss_forward: float = 0.0
    loss_backward: float = 0.0

    def beside(self, block: AnyBlock) -> AnyBlock:
        """The block with them: before its forward and behind its backward nothing is saved of
        it. The block with the loss needs most in the loss, when its weights are not gathered."""
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
    """Elements: of all parameters, as they are gathered, of those trained, as they are sent to be
    summed and as their gradients are made, of the largest and of the last of these.

    late   it is summed when the backward is over
    again  an earlier block has called it
    """

    total: int = 0
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
    """Of each block of the chain; 0 where no block comes and goes.

    tied      names of the parameters that share their storage
    openings  blocks with which stages of a pipeline begin
    """
    if not group.moves_blocks:
        return (UnitBuffers(),) * len(graph.chain)
    c, g, dp = group.sizes.compute_bytes, group.sizes.gradient_bytes, group.degrees.shard_replicas
    on_cpu = group.device.type == "cpu"
    stays_whole = group.zero_stage <= 2
    root, read, blocks = _units(graph, dp, frozenset(chain.from_iterable(tied)))
    if group.pipelined:
        root, read, blocks = _NONE, [{} for _ in read], _weights_alone(graph, dp)
    # Elements gathered for a unit, and those of the units that stay whole while others run.
    copies = 2 + (1 / dp if on_cpu and group.sizes.working_copy_bytes else 0.0)
    kept = [[unit.total * (stays_whole and not unit.again) for unit in units] for units in blocks]
    static = c * (root.total + sum(map(sum, kept))) if stays_whole else 0.0

    def summed(unit: _Unit) -> float:
        """Bytes while a unit's gradients are summed; the first micro-batch's share becomes the
        gradient, which is counted by itself unless it goes to the host."""
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
                gathering = max(gathering, present + c * (previous.total + copies * unit.total))
            ahead = 0 if stays_whole or not position else previous.total
            if not unit.late:
                summing = max(summing, present + c * (ahead + waiting + made) + summed(unit))
            present += c * whole
            previous = unit
        if not position:
            # The root and the late units, one after the other when the backward is over.
            order = [root, *(unit for unit in (*units, *later) if unit.late)]
            waits = [c * (unit.total + unit.trained) for unit in order]
            last = (sum(waits[i + 1 :]) + summed(unit) for i, unit in enumerate(order))
            summing = max(summing, *last)
        run = max(units, key=lambda unit: unit.total, default=_NONE)
        own = sum(kept[position]) if stays_whole else run.total
        weights = c * (root.total + earlier + own)
        # Of a tower that is called again the units run one after the other within a block.
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


def most_of_kinds(graph: ModelGraph, buffers: Sequence[UnitBuffers]) -> tuple[UnitBuffers, ...]:
    """Of each kind of block the most over its places in the chain."""
    most: dict[int, UnitBuffers] = {}
    for ref, here in zip(graph.chain, buffers, strict=True):
        most[ref.kind] = UnitBuffers(*map(max, most.get(ref.kind, here), here))
    return tuple(most.get(kind, UnitBuffers()) for kind in range(len(graph.kinds)))


def _root_made(read: Sequence[dict[str, int]], position: int, *, running: bool = False) -> int:
    """Elements of the root's gradients behind the backward of this block, or while it runs, beyond
    the one that is being made."""
    before: dict[str, int] = {}
    for each in read[position + 1 :]:
        before |= each
    here = [size for name, size in read[position].items() if name not in before]
    return sum(before.values()) + sum(here) - max(here, default=0) * running


def _units(
    graph: ModelGraph, dp: int, tied: frozenset[str]
) -> tuple[_Unit, list[dict[str, int]], list[list[_Unit]]]:
    """The root; elements of its trained parameters by name that each block reads; the units of each
    block in the order of their parameters."""
    held = _modules(graph)
    readers = Counter(chain.from_iterable(set().union(*groups.values()) for groups in held))
    opening, above = _openings(graph)
    roots = {
        path
        for groups in held
        for path, group in groups.items()
        if not path or any(readers[name] > 1 and not p.calls for name, p in group.items())
    }
    # A unit that shares one weight is left to the root whole (parallelize.without_shared_weights).
    roots |= {_unit_path(name, opening, above) for name in tied}
    root: dict[str, Parameter] = {}
    read: list[dict[str, int]] = []
    blocks = []
    first = True  # no block before this one holds weights
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


def _weights_alone(graph: ModelGraph, dp: int) -> list[list[_Unit]]:
    """The units of each block without gradients, weights that several blocks read in each."""
    return [
        [
            _Unit(total=sum(dealt_elements(p.spec, dp) for p in group.values()))
            for group in groups.values()
        ]
        for groups in _modules(graph)
    ]


def _modules(graph: ModelGraph) -> list[dict[str, dict[str, Parameter]]]:
    """Of each block the parameters by module that could be a unit, and by name."""
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
    """The modules that open a block, and all modules above them."""
    opening = {ref.entry for ref in graph.chain if ref.entry} or {""}
    return opening, {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}


def _unit(
    group: dict[str, Parameter], dp: int, *, late: bool = False, again: bool = False
) -> _Unit:
    specs = [p.spec for p in group.values() if p.trainable]
    trained = [spec.num_elements for spec in specs] or [0]
    return _Unit(
        total=sum(dealt_elements(p.spec, dp) for p in group.values()),
        sent=sum(dealt_elements(spec, dp) for spec in specs),
        trained=sum(trained),
        widest=max(trained),
        last=trained[-1],
        late=late,
        again=again,
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
