"""Whether modules change the lists and dictionaries that they are given."""

from __future__ import annotations

import operator
from collections.abc import Iterable, MutableMapping, MutableSequence
from typing import Any

from torch.utils._pytree import tree_leaves

_CHANGEABLE = (MutableMapping, MutableSequence)  # a UserDict, too


class GivenWatch:
    """Told of every call of a module as it begins and ends.

    changing  paths of modules that changed what they were given, in the order of their calls
    """

    def __init__(self) -> None:
        self.changing: list[str] = []
        self._running: list[list[tuple[Any, list[Any]]]] = []

    def enter(self, arguments: Iterable[Any]) -> None:
        """A module is called with these."""
        held = [x for x in arguments if isinstance(x, _CHANGEABLE)]
        self._running.append([(x, _members(x)) for x in held])

    def leave(self, path: str) -> None:
        """The call that began last, of the module at `path`, has ended."""
        if any(_differ(before, _members(x)) for x, before in self._running.pop()):
            self.changing.append(path)


def _members(x: Any) -> list[Any]:
    return tree_leaves(list(x.values() if isinstance(x, MutableMapping) else x))


def _differ(before: list[Any], after: list[Any]) -> bool:
    return len(before) != len(after) or any(map(operator.is_not, before, after))
