"""V-Half and V-Min: half and a third of the activations of 1F1B, on a V of two stages per rank.

Qi et al., Pipeline Parallelism with Controllable Memory, arXiv 2405.15362. A building block assigns
the two F and the two I of one micro-batch to time slots of each rank; a slot holds one action. A
new block begins every six slots, and W uses the other two. The lifetime of a block's activations
sets the memory: (p + 2) // 2 micro-batches in V-Half, (p + 4) // 3 in V-Min, p in 1F1B (table at
https://huggingface.co/spaces/sail/pipeline-parallelism-with-controllable-memory). Before the first
and after the last repeat, actions move to earlier free slots if the memory limit allows it. If F, I
and W take equally long, the bubble is below 1/2 and 2/3 of 1F1B's (README of
github.com/sail-sg/zero-bubble-pipeline-parallelism). If they differ, V-Min waits in every repeat.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Placement, Rows, ScheduleKind, ScheduleOptions, register

_PERIOD = 6  # slots between micro-batches: two each of F, I and W
_F, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT
_Block = dict[tuple[int, ActionKind], int]


@register(
    ScheduleKind(name="v-min", placement=Placement.V, stages_per_rank=2, splits_backward=True)
)
def v_min(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Keeps (p + 4) // 3 micro-batches: every action directly follows its predecessor.

    If p is a multiple of three, two slots stay free at the turn; otherwise actions would collide.
    """
    p, free = num_ranks, 2 if num_ranks % 3 == 0 else 0
    block = {}
    for rank in range(p):
        block[rank, _F] = rank
        block[2 * p - 1 - rank, _F] = 2 * p - 1 - rank
        block[2 * p - 1 - rank, _I] = 2 * p + free + rank
        block[rank, _I] = 4 * p - 1 + free - rank
    return _rows(block, num_ranks, num_microbatches)


@register(
    ScheduleKind(name="v-half", placement=Placement.V, stages_per_rank=2, splits_backward=True)
)
def v_half(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Keeps (p + 2) // 2 micro-batches: an action takes two slots down the ranks, one slot up.

    If p is even, three slots stay free at the turn; otherwise actions would collide.
    """
    p, free = num_ranks, 3 if num_ranks % 2 == 0 else 0
    block = {}
    for rank in range(p):
        block[rank, _F] = 2 * rank
        block[2 * p - 1 - rank, _F] = 3 * p - 2 - rank
        block[2 * p - 1 - rank, _I] = 3 * p - 1 + free + 2 * rank
        block[rank, _I] = 6 * p - 2 + free - rank
    return _rows(block, num_ranks, num_microbatches)


def _rows(block: _Block, num_ranks: int, num_microbatches: int) -> Rows:
    slots = _Slots(block, num_microbatches, Placement.V.ranks_of(num_ranks, 2))
    slots.advance()
    return tuple(slots.row(rank) for rank in range(num_ranks))


@dataclass(slots=True)
class _Held:
    """Activations kept by a rank at a slot, pending W actions, and the most activations so far."""

    count: int = 0
    owed: int = 0
    most: int = 0

    def through(self, cells: list[Action | None]) -> _Held:
        """State after these slots, with a pending W in each free slot."""
        count, owed, most = self.count, self.owed, self.most
        for action in cells:
            if action is None:
                if owed:
                    count, owed = count - 1, owed - 1
            elif action.kind is _F:
                count += 1
                most = max(most, count)
            else:
                owed += 1
        return _Held(count, owed, most)


class _Slots:
    """F and I actions of every rank by slot; W fills the free slots."""

    def __init__(self, block: _Block, micro: int, placement: tuple[int, ...]) -> None:
        self._placement, self._last_stage = placement, len(placement) - 1
        self._slot = {
            Action(stage, kind, mb): slot + _PERIOD * mb
            for (stage, kind), slot in block.items()
            for mb in range(micro)
        }
        length = max(self._slot.values()) + 1
        self._cells: list[list[Action | None]] = [[None] * length for _ in set(placement)]
        for action, slot in self._slot.items():
            self._cells[placement[action.stage]][slot] = action
        # The steady phase: from the first gradient on rank 0 to its last forward.
        self._first = self._slot[Action(0, _I, 0)]
        self._last = self._slot[Action(0, _F, micro - 1)]
        self._limit = max(_Held().through(cells).most for cells in self._cells)

    def advance(self) -> None:
        """Move actions before and after the steady phase to their earliest allowed slot."""
        length = len(self._cells[0])
        head, tail = slice(0, self._first + 2 * _PERIOD), slice(self._last, length)
        if head.stop > tail.start:
            head = tail = slice(0, length)
        # A move in the head does not change the memory of the tail: within two repeats, the
        # displaced W runs in the vacated slot. So it is enough to count the part that contains the
        # move.
        before = [_Held().through(cells[: tail.start]) for cells in self._cells]
        for action, slot in sorted(self._slot.items(), key=lambda item: item[1]):
            if slot < self._first:
                self._move(action, head, _Held())
            elif slot > self._last:
                self._move(action, tail, before[self._placement[action.stage]])

    def _move(self, action: Action, part: slice, before: _Held) -> None:
        cells, slot = self._cells[self._placement[action.stage]], self._slot[action]
        for earlier in range(max(self._ready(action), part.start), slot):
            if cells[earlier] is not None:
                continue
            cells[earlier], cells[slot] = action, None
            if before.through(cells[part]).most <= self._limit:
                self._slot[action] = earlier
                return
            cells[earlier], cells[slot] = None, action

    def _ready(self, action: Action) -> int:
        """First slot after all dependencies of the action."""
        stage, kind, mb = action.stage, action.kind, action.microbatch
        needs = [Action(stage, kind, mb - 1)] if mb else []
        if kind is _F and stage:
            needs.append(Action(stage - 1, _F, mb))
        if kind is _I:
            needs.append(Action(stage, _F, mb))
            if stage < self._last_stage:
                needs.append(Action(stage + 1, _I, mb))
        return 1 + max((self._slot[need] for need in needs), default=-1)

    def row(self, rank: int) -> tuple[Action, ...]:
        """The rank's actions in order, W in the free slots and at the end."""
        row: list[Action] = []
        owed: deque[Action] = deque()
        for action in self._cells[rank]:
            if action is None:
                if owed:
                    row.append(owed.popleft())
                continue
            row.append(action)
            if action.kind is _I:
                owed.append(Action(action.stage, _W, action.microbatch))
        return (*row, *owed)
