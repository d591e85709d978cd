"""How many activations a rank keeps, over the actions of a schedule or over time.

A forward adds M_B of its stage; a full backward takes it away. A split backward takes M_B - M_W
away at its I and M_W at its W (Qi et al., arXiv 2401.10241, section 2.3 and equation 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Schedule
from simulator.schedules.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one micro-batch keeps on each virtual stage, in any unit: activations, or bytes.

    m_b  from its forward to its I (or B);  m_w  from its I to its W, no more than m_b
    """

    m_b: tuple[float, ...]
    m_w: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.m_b) != len(self.m_w):
            raise InputError(
                f"m_b is given for {len(self.m_b)} stages and m_w for {len(self.m_w)}; both are "
                "needed for every virtual stage"
            )
        for stage, (m_b, m_w) in enumerate(zip(self.m_b, self.m_w, strict=True)):
            if not 0.0 <= m_w <= m_b:
                raise InputError(
                    f"stage {stage} keeps m_w={m_w:g} of m_b={m_b:g}: not a part of it"
                )

    @classmethod
    def units(cls, num_stages: int, kept_for_weights: float = 1.0) -> Kept:
        """In units of one micro-batch's activations on one virtual stage.

        kept_for_weights  M_W / M_B; 1 where nothing is given back before W
        """
        return cls(m_b=(1.0,) * num_stages, m_w=(kept_for_weights,) * num_stages)


@dataclass(frozen=True, slots=True)
class HeldSample:
    """What is kept from `time_s` on."""

    time_s: float
    held: float


def most_held(schedule: Schedule, kept: Kept | None = None) -> tuple[float, ...]:
    """Per rank the most that it keeps at once; `kept` is one unit per stage if not given.

    Ranks run their actions in order whatever these take, so that no timeline is needed.

    >>> from simulator.schedules.schedule import build_schedule
    >>> most_held(build_schedule("1f1b", num_ranks=4, num_microbatches=8))
    (4.0, 3.0, 2.0, 1.0)
    """
    kept = _checked(kept, schedule.num_stages)
    return tuple(max(_levels(row, kept), default=0.0) for row in schedule.ranks)


def held_over_time(
    timeline: Timeline, kept: Kept | None = None
) -> tuple[tuple[HeldSample, ...], ...]:
    """Per rank what it keeps, from each moment at which that changes.

    It rises when a forward starts and falls when a backward, or a half of one, ends.
    """
    kept = _checked(kept, 1 + max(action.stage for action in timeline.actions))
    found, begin = [], 0
    for last in timeline.lasts:
        actions = timeline.actions[begin : last + 1]
        samples = [HeldSample(0.0, 0.0)]
        for at, level in enumerate(_levels(actions, kept), start=begin):
            rises = timeline.actions[at].kind is ActionKind.FORWARD
            samples.append(HeldSample((timeline.start_s if rises else timeline.end_s)[at], level))
        found.append(tuple(samples))
        begin = last + 1
    return tuple(found)


def _checked(kept: Kept | None, num_stages: int) -> Kept:
    if kept is None:
        return Kept.units(num_stages)
    if len(kept.m_b) != num_stages:
        raise InputError(
            f"the schedule has {num_stages} virtual stages, activations are given for "
            f"{len(kept.m_b)}"
        )
    return kept


def _levels(actions: Sequence[Action], kept: Kept) -> Iterator[float]:
    """What is kept after each action; sums of small parts end at 0 only up to rounding."""
    held = 0.0
    for action in actions:
        m_b, m_w = kept.m_b[action.stage], kept.m_w[action.stage]
        match action.kind:
            case ActionKind.FORWARD:
                held += m_b
            case ActionKind.BACKWARD:
                held -= m_b
            case ActionKind.BACKWARD_INPUT:
                held -= m_b - m_w
            case ActionKind.BACKWARD_WEIGHT:
                held -= m_w
        yield held


def stage_peaks(schedule: Schedule) -> tuple[int, ...]:
    """Per virtual stage, the most micro-batches whose activations it keeps at once."""
    held = [0] * schedule.num_stages
    most = [0] * schedule.num_stages
    for row in schedule.ranks:
        for action in row:
            if action.kind is ActionKind.FORWARD:
                held[action.stage] += 1
                most[action.stage] = max(most[action.stage], held[action.stage])
            elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
                held[action.stage] -= 1
    return tuple(most)
