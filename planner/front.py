"""`front`: what no other beats in two figures at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def front(items: Iterable[T], figures: Callable[[T], tuple[Any, ...]]) -> list[T]:
    """The items that no other beats or equals in both of the first two figures, the first rising;
    further figures say which of equal ones stays.

    >>> front([(3, 1), (1, 2), (2, 2), (1, 4)], lambda pair: pair)
    [(1, 2), (3, 1)]
    """
    kept: list[T] = []
    for item in sorted(items, key=figures):
        if not kept or figures(item)[1] < figures(kept[-1])[1]:
            kept.append(item)
    return kept
