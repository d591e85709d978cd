"""`Pace`: rate of a long job, and the remaining time at that rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from profiles.units import format_time

# The rate is that of the last so many seconds: questions differ, and the first ones wait for
# processes to start.
_WINDOW_S = 60.0


class Pace:
    """Counts what is done by the seconds of a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def words(self, done: int, left: int) -> str:
        """`16.2 a second, about 8.4 min left`; "" before there is a rate.

        done  so far, without what was known before;  left  still to do
        """
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_S:
            self._seen.popleft()
        begin, before = self._seen[0]
        if done == before or now <= begin:
            return ""
        rate = (done - before) / (now - begin)
        return f"{rate:.3g} a second, about {format_time(left / rate)} left"
