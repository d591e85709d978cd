"""Spare nodes: how much of the time a run waits for one, and how many are enough.

Broken nodes come at a rate r while the run is on its way, and each is whole again after a time T
on average, all mended at once. With S spares a run waits while S + 1 are broken, and nothing breaks
then: the number of broken nodes is that of busy lines in a telephone exchange of S + 1 lines that
is offered a = r T, and the share of time with all of them busy is Erlang's B (Erlang 1917; it
holds for any distribution of T).
"""

from __future__ import annotations

_MOST = 100_000


def waiting_share(spares: int, load: float) -> float:
    """Share of the time that a run waits for a node; load is a.

    >>> round(waiting_share(1, 1.0), 3)  # two lines: (1/2) / (1 + 1 + 1/2)
    0.2
    """
    blocked = 1.0
    for lines in range(1, spares + 2):
        blocked = load * blocked / (lines + load * blocked)
    return blocked


def spares_for(load: float, *, most_waiting: float = 0.01) -> int:
    """The fewest spares with which a run waits for at most this share of its time."""
    blocked = 1.0
    for lines in range(1, _MOST):
        blocked = load * blocked / (lines + load * blocked)
        if blocked <= most_waiting:
            return lines - 1
    return _MOST
