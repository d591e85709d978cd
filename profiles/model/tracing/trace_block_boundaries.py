"""Where blocks may begin, repeated blocks that a trace skips, and the type of a block's inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from profiles.model.graph import BlockRef

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_INDEX_NAMES = ("idx", "index", "layer_id", "layer_number")


def cut_candidates(module: nn.Module) -> tuple[str, ...]:
    """Paths of the modules at whose first call a block may begin.

    The members of the outermost lists and sequences of modules (of nested sequences the inner ones,
    as in ResNet's stages), and the modules with parameters outside of lists. Without a list, the
    outermost modules with parameters.
    """
    inside: list[str] = []
    outside: list[str] = []

    def visit(path: str, child: nn.Module, contained: bool) -> None:
        if not _holds_parameters(child):
            return
        if isinstance(child, _CONTAINERS):
            for name, member in child.named_children():
                visit(_join(path, name), member, True)
        elif contained:
            inside.append(path)
        elif _has_container(child):
            for name, member in child.named_children():
                visit(_join(path, name), member, False)
        else:
            outside.append(path)

    for name, member in module.named_children():
        visit(name, member, isinstance(module, _CONTAINERS))
    # A module with several names is listed under the first.
    first = {path for path, _ in module.named_modules()}
    return tuple(path for path in inside + outside if path in first)


def container_members(module: nn.Module, candidates: tuple[str, ...]) -> frozenset[str]:
    """The candidates that are members of a list or sequence."""
    lists = {path for path, child in module.named_modules() if isinstance(child, _CONTAINERS)}
    return frozenset(path for path in candidates if path.rpartition(".")[0] in lists)


def _has_container(module: nn.Module) -> bool:
    return any(
        isinstance(child, _CONTAINERS) and len(child) > 1 and _holds_parameters(child)
        for child in module.modules()
    )


def _holds_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def structure(module: nn.Module) -> Any:
    """A key that is equal for modules whose traces should be equal.

    Class tree, parameters, buffers and plain attributes without layer numbers (trace.py compares
    the traces of some members of each group).
    """
    attributes = sorted(
        (name, value)
        for name, value in vars(module).items()
        if isinstance(value, (bool, int, float, str))
        and not any(word in name for word in _INDEX_NAMES)
    )
    parameters = tuple(
        (name, tuple(p.shape), str(p.dtype), p.requires_grad) if p is not None else (name,)
        for name, p in module._parameters.items()
    )
    buffers = tuple(
        (name, tuple(b.shape)) if b is not None else (name,) for name, b in module._buffers.items()
    )
    children = tuple((name, structure(child)) for name, child in module._modules.items() if child)
    return (type(module), tuple(attributes), parameters, buffers, children)


def repeated(
    module: nn.Module, candidates: tuple[str, ...], *, trusted: bool = False, alone: int = 1
) -> dict[str, str]:
    """Skipped candidate -> the traced candidate that it repeats.

    In a group of equal structure, the first, the second and the last `alone` are traced, and the
    others repeat the second. If the group is `trusted` to be equal, all others repeat the first.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    modules = dict(module.named_modules())
    for path in candidates:
        groups[structure(modules[path])].append(path)
    traced_as: dict[str, str] = {}
    for paths in groups.values():
        if trusted:
            traced_as |= dict.fromkeys(paths[1:], paths[0])
        elif len(paths) > 2 + alone:
            traced_as |= dict.fromkeys(paths[2:-alone], paths[1])
    return traced_as


def repeated_as(module: nn.Module, chain: Sequence[BlockRef]) -> dict[str, str]:
    """Skipped block -> the first block of the same kind and structure in an earlier trace of the
    module."""
    first: dict[Any, str] = {}
    traced_as: dict[str, str] = {}
    for ref in chain[1:]:
        key = (ref.kind, structure(module.get_submodule(ref.entry)))
        model = first.setdefault(key, ref.entry)
        if model != ref.entry:
            traced_as[ref.entry] = model
    return traced_as


@contextmanager
def other_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within the context, a call of the module runs `forward`."""
    before, overridden = module.forward, "forward" in vars(module)
    module.forward = forward
    try:
        yield
    finally:
        if overridden:
            module.forward = before
        else:
            del module.forward


class Output:
    """The structure of the outputs of a traced call of the module at `path`: leaves that are
    inputs, and specs of new tensors."""

    def __init__(self, path: str, args: Any, kwargs: Any, out: Any) -> None:
        inputs = tree_leaves((args, kwargs))
        leaves, self.spec = tree_flatten(out)
        positions = {id(x): i for i, x in enumerate(inputs) if isinstance(x, Tensor)}
        self.inputs = _specs(path, inputs)
        self.leaves: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) in positions:
                self.leaves.append(("input", positions[id(leaf)]))
            elif isinstance(leaf, Tensor):
                self.leaves.append(("new", _layout(leaf), leaf.requires_grad))
            else:
                self.leaves.append(("plain", leaf))

    def fits(self, path: str, args: Any, kwargs: Any) -> bool:
        """Whether the arguments of a call of the module at `path` equal the recorded ones, except
        for values of tensors and the module's number in its list."""
        return _specs(path, tree_leaves((args, kwargs))) == self.inputs

    def make(self, args: Any, kwargs: Any) -> Any:
        """Outputs of the recorded shapes, connected to the inputs for autograd."""
        inputs = tree_leaves((args, kwargs))
        needing = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        new = [leaf for leaf in self.leaves if leaf[0] == "new"]
        made: tuple[Tensor, ...] = ()
        if new:
            made = _Stub.apply(tuple(leaf[1] for leaf in new), *needing)  # type: ignore[no-untyped-call] # torch's
        pairs = zip(made, new, strict=True)
        return self.filled(args, kwargs, (x if leaf[2] else x.detach() for x, leaf in pairs))

    def filled(self, args: Any, kwargs: Any, new: Iterator[Tensor]) -> Any:
        """Outputs made of this call's inputs and the new tensors."""
        inputs = tree_leaves((args, kwargs))
        made = []
        for leaf in self.leaves:
            if leaf[0] == "new":
                made.append(next(new))
            else:
                made.append(inputs[leaf[1]] if leaf[0] == "input" else leaf[1])
        return tree_unflatten(made, self.spec)


class _Stub(torch.autograd.Function):
    """Tensors of given shapes and strides in place of a skipped block, with contiguous gradients
    of the right shapes."""

    @staticmethod
    def forward(ctx: Any, layouts: Any, *inputs: Tensor) -> Any:
        ctx.inputs = [(x.shape, x.dtype, x.device) for x in inputs]
        return tuple(torch.empty_strided(*sizes, dtype=dtype) for *sizes, dtype in layouts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *(torch.empty(s, dtype=t, device=d) for s, t, d in ctx.inputs))


def _layout(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Shape, strides and dtype of a new tensor like `x`, with dimensions in the same order in
    memory, without gaps."""
    strides, size = [0] * x.dim(), 1
    for dim in sorted(range(x.dim()), key=lambda d: (x.stride(d), -d)):
        strides[dim], size = size, size * x.shape[dim]
    return tuple(x.shape), tuple(strides), x.dtype


def _specs(path: str, leaves: list[Any]) -> list[Any]:
    last = path.rpartition(".")[2]
    number = int(last) if last.isdecimal() else None
    return ["its number" if type(x) is int and x == number else _spec(x) for x in leaves]


def _spec(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (tuple(x.shape), x.dtype, x.requires_grad)
    return x if isinstance(x, (int, float, bool, str, type(None))) else type(x)


def narrowed(unit: nn.Module, given: Any) -> Any:
    """A unit's inputs, cast to its compute type if they are wider, as FSDP2 does
    (`MixedPrecisionPolicy.cast_forward_inputs`); `given` itself if there is nothing to cast."""
    kept = (p.dtype for p in unit.parameters() if p.dim() and p.is_floating_point())
    narrow = next(kept, torch.float64)

    def wide(x: Any) -> bool:
        floating = isinstance(x, Tensor) and x.is_floating_point()
        return floating and x.dtype.itemsize > narrow.itemsize

    if narrow.itemsize > 2 or not any(map(wide, tree_leaves(given))):
        return given
    return tree_map(lambda x: x.to(narrow) if wide(x) else x, given)
