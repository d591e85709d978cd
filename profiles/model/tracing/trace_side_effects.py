"""Side effects in a traced pass that a pipeline of stages would not reproduce.

`StateWatch`: buffers and weights that the forward changes and computes with. Two stages or replicas
would have different copies of such state. Counters, and running statistics that training does not
read, are excluded.
`GivenWatch`: modules that change lists and dictionaries among their arguments.
`watched_functions`: autograd functions written in Python, including `torch.utils.checkpoint`. The
calls in their forward are not in the graph: they may run whole blocks, again in the backward.
"""

from __future__ import annotations

import operator
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_leaves

from profiles.model.fake_tensors.trace_fakes import arguments_of, tensors_in


class StateWatch:
    """Uses of buffers, and writes to weights, in a pass, from all forward ops."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._names = _buffers(module)
        named = module.named_parameters()
        self._weights = {p.untyped_storage()._cdata: name for name, p in named if not p.is_meta}
        # Weights that the forward writes to -> modules that clamp their own, otherwise "".
        self._changed: dict[str, set[str]] = defaultdict(set)
        self.clamped: list[str] = []
        self._written: set[str] = set()
        self._read: set[str] = set()
        self._touched: dict[str, set[int]] = defaultdict(set)
        # Tensors computed from buffers alone: storage -> (weak reference, names of the buffers).
        self._made: dict[int, tuple[Any, frozenset[str]]] = {}

    def note(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        out: Any,
        segment: int,
        module: str,
    ) -> None:
        """Record an op of the forward in a segment, called by the code of `module`."""
        if func._schema.is_mutable:
            for given, written in arguments_of(func, args, kwargs):
                keys = {x.untyped_storage()._cdata for x in given} if written else set()
                for name in (self._weights[key] for key in keys & self._weights.keys()):
                    clamps = func in _CLAMPS and name.startswith(f"{module}.")
                    self._changed[name].add(module if clamps else "")
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

    def state(
        self, entries: list[str], uses: Mapping[str, list[int]]
    ) -> dict[str, tuple[int, int]]:
        """Description of each buffer and weight that was changed and used -> its first and last
        segment; call it after the forward. Changed weights span all segments, since any code may
        read them; if only a module inside one block limits them to a range, as every copy does,
        they are `clamped`.

        entries  of the segments;  uses  segments that use each weight
        """
        kept = {name: key for key, name in _buffers(self._module).items()}
        replaced = {n for key, n in self._names.items() if kept.get(n, key) != key}
        found = {
            f"the buffer {name}": (min(self._touched[name]), max(self._touched[name]))
            for name in sorted((self._written | replaced) & self._read)
        }
        above = modules_above(entries)
        for name in (name for name in self._weights.values() if name in self._changed):
            own = range(len(entries)) if self._changed[name] & above else uses[name]
            if len(own) == 1 and "" not in self._changed[name]:
                self.clamped.append(name)
            else:
                found[f"the weight {name}"] = (min(own), max(own))
        return found

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


def _buffers(module: nn.Module) -> dict[int, str]:
    """Storage -> the name of its buffer; without buffers on meta."""
    named = module.named_buffers(remove_duplicate=False)
    found: dict[int, str] = {}
    for name, x in named:
        if x.device.type != "meta":
            found.setdefault(x.untyped_storage()._cdata, name)
    return found


def modules_above(entries: Iterable[str]) -> set[str]:
    """Paths of the modules whose code runs between blocks with these entries."""
    return {entry[:i] for entry in entries for i, c in enumerate(entry) if c == "."} | {""}


_CLAMPS = (torch.ops.aten.clamp_.default, torch.ops.aten.clamp_min_.default)
_CHANGEABLE = (MutableMapping, MutableSequence)  # a UserDict, too


class GivenWatch:
    """Compares the arguments of every call of a module before and after it.

    changing  paths of modules that changed an argument, in the order of their calls
    """

    def __init__(self) -> None:
        self.changing: list[str] = []
        self._running: list[list[tuple[Any, list[Any]]]] = []

    def enter(self, arguments: Iterable[Any]) -> None:
        """A module is called with these arguments."""
        held = [x for x in arguments if isinstance(x, _CHANGEABLE)]
        self._running.append([(x, _members(x)) for x in held])

    def leave(self, path: str) -> None:
        """The innermost running call, of the module at `path`, has ended."""
        for x, before in self._running.pop():
            after = _members(x)
            if len(before) != len(after) or any(map(operator.is_not, before, after)):
                self.changing.append(path)
                break


def _members(x: Any) -> list[Any]:
    return tree_leaves(list(x.values() if isinstance(x, MutableMapping) else x))


@contextmanager
def watched_functions(on_apply: Callable[[str], None]) -> Iterator[None]:
    """Within the context, `on_apply` receives the name of every Python autograd function that is
    applied to a tensor with a gradient, except for the tracer's fused ops."""
    original: Any = vars(Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        trained = any(isinstance(x, Tensor) and x.requires_grad for x in args)
        if trained and torch.is_grad_enabled() and not cls.__module__.startswith("profiles."):
            on_apply(f"{cls.__module__}.{cls.__qualname__}")
        return original.__func__(cls, *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[method-assign,assignment] # as it was after
    try:
        yield
    finally:
        Function.apply = original  # type: ignore[method-assign] # restored
