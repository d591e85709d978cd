"""What a run on shapes leaves in caches of the model's code: tensors without values, which a real
run would take for its own."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_Cached = type(functools.lru_cache(lambda: None))
_ABSENT = object()


@contextmanager
def nothing_kept(module: nn.Module) -> Iterator[None]:
    """Around a run: functions with `lru_cache` that the model's classes or the files which define
    them know forget results that hold tensors, before and after it; tensors that it puts in
    variables of these files, or in dictionaries there, are taken out again."""
    named = _named(module)
    tables = [x for x in named if isinstance(x, dict)]
    caches = {id(cache): cache for x in named for cache in _caches(x)}
    _forget(caches.values())
    before = [dict(table) for table in tables]
    try:
        yield
    finally:
        for table, held in zip(tables, before, strict=True):
            _restore(table, held)
        _forget(caches.values())


def _named(module: nn.Module) -> list[Any]:
    """The files that define the model's classes, as dictionaries of their variables, and all that
    has a name in these or in the classes."""
    kinds = {type(child) for child in module.modules()}
    classes = {base for kind in kinds for base in kind.__mro__}
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("torch", "builtins")]
    files = [vars(sys.modules[name]) for name in {cls.__module__ for cls in own} & set(sys.modules)]
    inner = [x for table in (*map(vars, own), *files) for x in table.values()]
    return list({id(x): x for x in (*files, *inner)}.values())


def _caches(x: Any, depth: int = 3) -> Iterator[Any]:
    """Functions with `lru_cache` among x, what it wraps, and what its closure holds."""
    x = x.__func__ if isinstance(x, (staticmethod, classmethod)) else x
    if isinstance(x, _Cached):
        yield x
    elif isinstance(x, FunctionType) and x.__closure__ and depth:
        for cell in x.__closure__:
            with suppress(ValueError):  # a cell that is empty yet
                yield from _caches(cell.cell_contents, depth - 1)


def _forget(caches: Iterable[Any]) -> None:
    for cache in caches:
        held = [y for x in gc.get_referents(cache) for y in tree_leaves(x)]
        if any(isinstance(x, Tensor) for x in held):
            cache.cache_clear()


def _restore(table: dict[Any, Any], held: dict[Any, Any]) -> None:
    for key, value in list(table.items()):
        if value is held.get(key, _ABSENT):
            continue
        if any(isinstance(x, Tensor) for x in tree_leaves(value)):
            if key in held:
                table[key] = held[key]
            else:
                del table[key]
