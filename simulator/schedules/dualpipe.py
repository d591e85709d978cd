"""DualPipe and DualPipeV: micro-batches from both ends, with forwards overlapping backwards.

DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2.1, figure 5 and table 2;
the order of actions follows the eight steps of github.com/deepseek-ai/DualPipe.

In DualPipe every rank has two stages: one of a model copy that runs down the ranks and one of a
copy that runs up. Each copy processes half the micro-batches. A rank and its mirror do equal work,
so half of the ranks can do it with one copy that turns back at the last rank: DualPipeV, the
"cut-in-half" of Qi et al. (https://hackmd.io/@ufotalent/r1lVXsa9Jg).

Bubble: (p / 2 - 1) (F&B + B - 3 W) with p parts of the model, B the full backward and F&B an
overlapped forward and backward (table 2; exact if I takes as long as F, and W no longer). A
`Schedule` has no pairs: the forward precedes its backward, so F&B = F + B without any gain from
overlap. The forward's result is sent before the backward ends, which saves (p / 2 - 1) I.
"""

from __future__ import annotations

from collections import deque

from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Placement, Rows, ScheduleKind, ScheduleOptions, register

_F, _B = ActionKind.FORWARD, ActionKind.BACKWARD
_I, _W = ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


@register(
    ScheduleKind(
        name="dualpipev",
        placement=Placement.V,
        stages_per_rank=2,
        splits_backward=True,
        pairs=True,
        microbatches_per_rank=2,
    )
)
def dualpipev(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """One copy of the model in a V; torch's ScheduleDualPipeV."""
    rows = []
    for rank in range(num_ranks):
        row = _Row((rank, 2 * num_ranks - 1 - rank), (0, 0))
        row.fill(rank, num_ranks, num_microbatches)
        rows.append(tuple(row.actions))
    return tuple(rows)


@register(
    ScheduleKind(
        name="dualpipe",
        copies=2,
        splits_backward=True,
        pairs=True,
        microbatches_per_rank=2,
        even=True,
    )
)
def dualpipe(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Two model copies, one down and one up the ranks; virtual stages p + s are the second copy.

    Rank r has stage r of the first and stage p - 1 - r of the second copy: twice the parameters.
    """
    half = num_microbatches // 2
    rows = []
    for rank in range(num_ranks):
        # The copy that starts nearer to the rank comes first.
        copies = ((rank, 0), (2 * num_ranks - 1 - rank, half))
        near, distant = copies if rank < num_ranks // 2 else copies[::-1]
        row = _Row((near[0], distant[0]), (near[1], distant[1]))
        row.fill(min(rank, num_ranks - 1 - rank), num_ranks // 2, half)
        rows.append(tuple(row.actions))
    return tuple(rows)


class _Row:
    """Actions of a rank with two stages: direction 0 down the ranks, direction 1 up."""

    def __init__(self, stages: tuple[int, int], first_microbatches: tuple[int, int]) -> None:
        self.actions: list[Action] = []
        self._stages = stages
        kinds = ((direction, kind) for direction in (0, 1) for kind in (_F, _B))
        self._next = {key: first_microbatches[key[0]] for key in kinds}
        self._pending: deque[Action] = deque()

    def fill(self, rank: int, num_ranks: int, micro: int) -> None:
        """The eight steps of one of `num_ranks` ranks in a V, on `micro` micro-batches."""
        below = num_ranks - 1 - rank
        for _ in range(2 * below):
            self._run(0, _F)
        for _ in range(rank + 1):
            self._run(0, _F)
            self._run(1, _F)
        for _ in range(below):
            self._run(1, _I)
            self._weight()
            self._run(1, _F)
        for _ in range(micro - 2 * num_ranks + rank + 1):
            self._run(0, _F)
            self._run(1, _B)
            self._run(1, _F)
            self._run(0, _B)
        for _ in range(below):
            self._run(1, _B)
            self._run(1, _F)
            self._run(0, _B)
        # The second half of these backwards is split so that W can fill the end.
        for turn in range(2 * (rank + 1)):
            self._run(1 - turn % 2, _I if turn > rank else _B)
        for _ in range(below):
            self._weight()
            self._run(0, _I)
        while self._pending:
            self._weight()

    def _run(self, direction: int, kind: ActionKind) -> None:
        count = (direction, _F if kind is _F else _B)
        action = Action(self._stages[direction], kind, self._next[count])
        self._next[count] += 1
        self.actions.append(action)
        if kind is _I:
            self._pending.append(Action(action.stage, _W, action.microbatch))

    def _weight(self) -> None:
        if self._pending:
            self.actions.append(self._pending.popleft())
