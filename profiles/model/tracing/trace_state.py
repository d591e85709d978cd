"""What a forward changes and computes with: state that goes from one call to the next.

Running statistics that training does not read, and counters, are none. Such a state belongs to one
copy of its module: two stages, or two replicas, would each have another.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from profiles.model.fake_tensors.trace_tensors import arguments_of, tensors_in


class StateWatch:
    """What a pass does with buffers; told of every forward op."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = _buffers(module)
        self._written: set[str] = set()
        self._read: set[str] = set()
        self._touched: dict[str, set[int]] = defaultdict(set)
        # What was made of buffers alone: storage -> (alive while the tensor is, their names).
        self._made: dict[int, tuple[Any, frozenset[str]]] = {}

    def note(
        self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any, segment: int
    ) -> None:
        """An op of the forward has run in a segment."""
        if not self._names or "batch_norm" in func._schema.name:
            return
        names: set[str] = set()
        trained = False
        for given, written in arguments_of(func, args, kwargs):
            for x in given:
                found = self._of(x)
                for name in found:
                    self._touched[name].add(segment)
                own = self._names.get(x.untyped_storage()._cdata)
                if written and own is not None:
                    self._written.add(own)
                else:
                    names |= found
                    trained = trained or x.requires_grad
        if not names:
            return
        if trained:
            self._read |= names
            return
        for x in tensors_in(out):
            if x.untyped_storage()._cdata not in self._names:
                self._note_made(x, frozenset(names))

    def state(self) -> dict[str, tuple[int, int]]:
        """Each buffer that is changed and computed with, in words -> the first and the last segment
        that use it; asked after the forward."""
        after = _buffers(self._module)
        kept = {name: key for key, name in after.items()}
        replaced = {n for key, n in self._names.items() if kept.get(n, key) != key}
        found = sorted((self._written | replaced) & self._read)
        return {
            f"the buffer {name}": (min(self._touched[name]), max(self._touched[name]))
            for name in found
        }

    def _of(self, x: Tensor) -> frozenset[str]:
        key = x.untyped_storage()._cdata
        own = self._names.get(key)
        if own is not None:
            return frozenset((own,))
        return self._made[key][1] if key in self._made else frozenset()

    def _note_made(self, x: Tensor, names: frozenset[str]) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        kept = weakref.ref(storage, lambda _: self._made.pop(key, None))
        self._made[key] = (kept, names | self._of(x))


def state_of_weights(names: Sequence[str], segments: int) -> dict[str, tuple[int, int]]:
    """The same of weights that a forward writes to: any code may read one at any time, so that it
    holds all segments together."""
    return {f"the weight {name}": (0, segments - 1) for name in names}


def _buffers(module: nn.Module) -> dict[int, str]:
    """Storage -> the name of the buffer that it holds; those without storage (meta) left out."""
    named = module.named_buffers(remove_duplicate=False)
    found: dict[int, str] = {}
    for name, x in named:
        if x.device.type != "meta":
            found.setdefault(x.untyped_storage()._cdata, name)
    return found
