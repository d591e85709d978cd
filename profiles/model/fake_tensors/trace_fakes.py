"""Fake tensors: a model's parameters and inputs as shapes without storage, and contexts for runs on
them without traces in the caches of the model's code."""

from __future__ import annotations

import functools
import gc
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.model.building.build import BuiltModel
from profiles.model.fake_tensors.trace_generators import Generators


def tensors_in(tree: Any) -> list[Tensor]:
    """All tensors in the arguments or results of a dispatched op, in order.

    Dispatched ops use only lists, tuples and dictionaries; this takes a third of the time of
    torch's pytrees.
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


@dataclass(slots=True)
class Fakes:
    """Fake inputs and parameters.

    keys     storage of a parameter -> its number; tied parameters have the same
    names    number -> first name of the parameter
    tensors  number -> the fake parameter
    """

    args: tuple[Any, ...]
    targets: Any
    keys: dict[int, int]
    names: list[str]
    tensors: list[Tensor]


@contextmanager
def as_in_real_runs(module: nn.Module, draws: str = "") -> Iterator[list[bool]]:
    """Context for a run of a model on shapes that behaves like a real run, without side effects.

    - Random numbers outside torch come from a fixed seed (`draws` as of Generators.watched); the
      list contains True afterwards if there were any.
    - transformers makes its masks as in a real run (`masks_as_in_real_runs`).
    - A module that is moved to its current type (`self.router.to(...)`) stays unchanged: torch
      cannot swap fake weights in use.
    """
    moved: Any = nn.Module._apply

    def apply(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
        with torch.no_grad():
            held = [*module.parameters(recurse), *module.buffers(recurse)]
            same = all(fn(x) is x for x in held)
        return module if same else moved(module, fn, recurse)

    nn.Module._apply = apply  # type: ignore[method-assign] # as it was after
    try:
        with (
            masks_as_in_real_runs(),
            nothing_kept(module),
            Generators(module).watched(draws) as drawn,
        ):
            yield drawn
    finally:
        nn.Module._apply = moved  # type: ignore[method-assign] # restored


@contextmanager
def masks_as_in_real_runs() -> Iterator[None]:
    """Context in which transformers creates no mask if a real run would not.

    Under fake tensors it assumes that it is compiled and materializes a causal S x S mask, which
    turns fused causal attention into masked attention (twice the work, no flash kernel).
    """
    masks = sys.modules.get("transformers.masking_utils")
    replaced: dict[str, Any] = {}
    # `fast_all` reads the values of a padding mask: there is no padding.
    for name, answer in (
        ("is_tracing", False),
        ("find_packed_sequence_indices", None),
        ("fast_all", True),
    ):
        if masks is not None and hasattr(masks, name):
            replaced[name] = getattr(masks, name)
            setattr(masks, name, lambda *args, _answer=answer, **kwargs: _answer)
    try:
        yield
    finally:
        for name, original in replaced.items():
            setattr(masks, name, original)


_Cached = type(functools.lru_cache(lambda: None))
_ABSENT = object()


@contextmanager
def nothing_kept(module: nn.Module) -> Iterator[None]:
    """Context for a run that removes its tensors from the model's source files: `lru_cache` results
    with tensors are cleared before and after it, and variables and dictionaries are restored."""
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
    """The modules that define the model's classes, as dictionaries of their variables, and all
    named objects in these modules and classes."""
    kinds = {type(child) for child in module.modules()}
    classes = {base for kind in kinds for base in kind.__mro__}
    own = [cls for cls in classes if cls.__module__.partition(".")[0] not in ("torch", "builtins")]
    files = [vars(sys.modules[name]) for name in {cls.__module__ for cls in own} & set(sys.modules)]
    inner = [x for table in (*map(vars, own), *files) for x in table.values()]
    return list({id(x): x for x in (*files, *inner)}.values())


def _caches(x: Any, depth: int = 3) -> Iterator[Any]:
    """Functions with `lru_cache`: x itself, the function it wraps, and others in its closure."""
    x = x.__func__ if isinstance(x, (staticmethod, classmethod)) else x
    if isinstance(x, _Cached):
        yield x
    elif isinstance(x, FunctionType) and x.__closure__ and depth:
        for cell in x.__closure__:
            with suppress(ValueError):  # an empty cell
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


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Context without oneDNN, whose ops differ between machines; also without torch's warning about
    a GPU setting."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield


@contextmanager
def no_logged_failures() -> Iterator[None]:
    """Context in which torch does not log tracebacks of ops that fail on shapes: a module may catch
    the error, and our errors contain the reason."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def make_fake(built: BuiltModel, skipped: Mapping[str, str]) -> Fakes:
    """Replace parameters and buffers by fake tensors in place; shared ones stay shared.

    Those of skipped modules stay on meta, since only their shapes are used.
    """
    memo: dict[int, Tensor] = {}

    def convert(x: Tensor) -> Tensor:
        if isinstance(x, FakeTensor):
            return x
        if id(x) not in memo:
            empty = torch.empty(x.shape, dtype=x.dtype, device="cpu")
            if isinstance(x, nn.Parameter):
                memo[id(x)] = nn.Parameter(empty, requires_grad=x.requires_grad)
            else:
                memo[id(x)] = empty
        return memo[id(x)]

    for _, module in without_skipped(built.module, skipped):
        for table in (module._parameters, module._buffers):
            for name, x in table.items():
                if x is not None:
                    table[name] = convert(x)  # type: ignore[assignment] # of the same type
    for module in built.module.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) in memo:  # a skipped module's, shared with a traced one
                module._parameters[name] = convert(p)  # type: ignore[assignment] # a Parameter
    names: list[str] = []
    tensors: list[Tensor] = []
    keys: dict[int, int] = {}
    for name, p in built.module.named_parameters(remove_duplicate=False):
        key = p.untyped_storage()._cdata
        if key not in keys:
            keys[key] = len(names)
            names.append(name)
            tensors.append(p)
    make = tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), built.args)
    targets = tree_map_only(Tensor, lambda x: torch.empty(x.shape, dtype=x.dtype), built.targets)
    return Fakes(make, targets, keys, names, tensors)


def without_skipped(
    module: nn.Module, skipped: Mapping[str, str], *, themselves: bool = False
) -> Iterator[tuple[str, nn.Module]]:
    """named_modules() without the children of skipped modules, with or without `themselves`.

    A module that is also a child of another module is kept.
    """
    seen: set[int] = set()
    pending = [("", module)]
    while pending:
        path, current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if path in skipped:
            if themselves:
                yield path, current
            continue
        yield path, current
        children = [(f"{path}.{name}" if path else name, m) for name, m in current._modules.items()]
        pending += [(name, m) for name, m in reversed(children) if m is not None]
