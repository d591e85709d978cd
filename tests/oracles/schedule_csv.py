"""Schedules as torch.distributed.pipelining reads them: a line per rank, a cell per action."""

from __future__ import annotations

import itertools
import re

from profiles.errors import InputError
from simulator.schedules.schedule import Action, ActionKind, Schedule


def parse_action(text: str) -> Action:
    """The action that `text` names, as in 2F0."""
    stage, kind, microbatch = re.split("([FBIW])", text.strip())
    return Action(int(stage), ActionKind(kind), int(microbatch))


def to_csv(schedule: Schedule) -> str:
    """One line per rank, actions separated by commas, as torch's runtime reads it."""
    return "".join(",".join(str(action) for action in row) + "\n" for row in schedule.ranks)


def schedule_from_csv(text: str, name: str = "csv") -> Schedule:
    """The schedule in a CSV as torch writes it (idle cells are empty); raises InputError.

    Where parts of the stages share no micro-batch with the others, they are copies of the model.
    """
    rows = tuple(
        tuple(parse_action(cell) for cell in line.split(",") if cell.strip())
        for line in text.splitlines()
        if line.strip()
    )
    actions = [action for row in rows for action in row]
    if not actions:
        raise InputError("the schedule has no actions")
    count = max(action.stage for action in actions) + 1
    owner = {action.stage: rank for rank, row in enumerate(rows) for action in row}
    if set(owner) != set(range(count)):
        missing = sorted(set(range(count)) - set(owner))
        raise InputError(f"the schedule has stages up to {count - 1} but none numbered {missing}")
    return Schedule(
        name=name,
        num_microbatches=max(action.microbatch for action in actions) + 1,
        stage_to_rank=tuple(owner[stage] for stage in range(count)),
        ranks=rows,
        copies=_copies(actions, count),
    )


def _copies(actions: list[Action], num_stages: int) -> int:
    """Into how many equal parts the stages fall that share no micro-batch."""
    taken: list[set[int]] = [set() for _ in range(num_stages)]
    for action in actions:
        taken[action.stage].add(action.microbatch)
    parts = 1 + sum(a.isdisjoint(b) for a, b in itertools.pairwise(taken))
    return parts if num_stages % parts == 0 else 1
