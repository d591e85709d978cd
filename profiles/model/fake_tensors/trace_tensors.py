"""The tensors of a dispatched op's arguments and results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor in what a dispatched op is given or returns, in order.

    There tensors stand in lists, tuples and dictionaries alone, which takes a third of the time
    that torch's pytrees take for containers of any kind.
    """
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return []
    found: list[Tensor] = []
    for x in tree:
        if isinstance(x, Tensor):
            found.append(x)
        elif isinstance(x, (tuple, list, dict)):
            found += tensors_in(x)
    return found


def arguments_of(
    func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[list[Tensor], bool]]:
    """The tensors of each argument of a dispatched op, and whether the op writes to them."""
    for position, argument in enumerate(func._schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        alias = argument.alias_info
        yield tensors_in(given), alias is not None and alias.is_write
