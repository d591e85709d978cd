"""`Known`: what several cells share, computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Key = tuple[object, ...]
Value = TypeVar("Value")


class Known:
    """Values by their key, each made once."""

    def __init__(self) -> None:
        self._values: dict[Key, Any] = {}

    def once(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key; made if it is not known."""
        if key not in self._values:
            self._values[key] = make()
        value: Value = self._values[key]
        return value
