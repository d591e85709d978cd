"""Tensors that cross a cut and are used outside the call that opens the block, too.

In `x = x + block(x)` the call of `block` opens a stage: the replay hands it the received tensor in
the place of its argument, but the sum beside it is plain code that still holds the placeholder.
Such uses are found once, in the fake run of the whole model; a stage that has any replaces
placeholders in every torch function while it replays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map


class UsesBeside(TorchFunctionMode):
    """Around a run of the whole model: `blocks` whose crossing tensors are used beside the call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: set[int] = set()
        self._crossing: dict[int, tuple[Tensor, set[int]]] = {}
        self._inside: list[set[int]] = []

    def enter(self, block: int, tensors: list[Tensor]) -> None:
        """A call of an entry begins; these of its arguments cross the cut before the block (none
        where the entry was called before)."""
        for x in tensors:
            # Kept alive, or its id could be that of another tensor later.
            self._crossing.setdefault(id(x), (x, set()))[1].add(block)
        self._inside.append({id(x) for x in tensors})

    def leave(self) -> None:
        """A call of an entry ends."""
        self._inside.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        within = self._inside[-1] if self._inside else set()
        for x in tree_leaves((args, kwargs)):
            known = self._crossing.get(id(x))
            if known is not None and id(x) not in within:
                self.blocks |= known[1]
        return func(*args, **(kwargs or {}))


class Replaced(TorchFunctionMode):
    """Around a replay: every torch function gets what stands for a placeholder.

    replaced  id of a placeholder -> (the placeholder, what stands for it); may grow meanwhile
    """

    def __init__(self, replaced: dict[int, tuple[Any, Tensor]]) -> None:
        super().__init__()
        self._replaced = replaced

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def real(x: Any) -> Any:
            found = self._replaced.get(id(x)) if isinstance(x, Tensor) else None
            return x if found is None else found[1]

        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))
