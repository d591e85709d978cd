"""Where a model may be cut into blocks, and how repeated blocks are skipped while tracing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

_CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
_INDEX_NAMES = ("idx", "index", "layer_id", "layer_number")


def cut_candidates(module: nn.Module) -> tuple[str, ...]:
    """Paths of the modules at whose first call a block may begin.

    The members of the outermost lists and sequences of modules (a sequence inside a sequence is
    opened, ResNet's stages for example), and the parameter-holding modules beside them. Where there
    is no list, the top-most modules that hold parameters.
    """
    inside: list[str] = []
    beside: list[str] = []

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
            beside.append(path)

    for name, member in module.named_children():
        visit(name, member, isinstance(module, _CONTAINERS))
    # A module that is reached by several names opens a block by its first.
    first = {path for path, _ in module.named_modules()}
    return tuple(path for path in inside + beside if path in first)


def container_members(module: nn.Module, candidates: tuple[str, ...]) -> frozenset[str]:
    """The candidates that are members of a list or sequence (the others stand beside them)."""
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
    """What must be equal for two modules to be expected to trace alike.

    Class tree, parameters, buffers and plain attributes; layer numbers are left out (equal traces
    are checked on members of each group, see trace.py).
    """
    own = tuple(
        (name, value)
        for name, value in sorted(vars(module).items())
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
    return (type(module), own, parameters, buffers, children)


def repeated(
    module: nn.Module, candidates: tuple[str, ...], *, trusted: bool = False, alone: int = 1
) -> dict[str, str]:
    """For each candidate to be skipped, the one of its group whose trace stands for it.

    Groups of equal structure: the first, the second and the last `alone` are traced and the second
    stands for the rest; where they are trusted to be equal, the first for all others.
    """
    groups: dict[Any, list[str]] = defaultdict(list)
    modules = dict(module.named_modules())
    for path in candidates:
        groups[structure(modules[path])].append(path)
    stands_for: dict[str, str] = {}
    for paths in groups.values():
        if trusted:
            stands_for |= dict.fromkeys(paths[1:], paths[0])
        elif len(paths) > 2 + alone:
            stands_for |= dict.fromkeys(paths[2:-alone], paths[1])
    return stands_for


@contextmanager
def other_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside it, a call of the module runs `forward`."""
    before, own = module.forward, "forward" in vars(module)
    module.forward = forward
    try:
        yield
    finally:
        if own:
            module.forward = before
        else:
            del module.forward


class Output:
    """The outputs of a traced call as a recipe: which leaves are inputs, and new tensors' specs."""

    def __init__(self, args: Any, kwargs: Any, out: Any) -> None:
        inputs = tree_leaves((args, kwargs))
        leaves, self.spec = tree_flatten(out)
        positions = {id(x): i for i, x in enumerate(inputs) if isinstance(x, Tensor)}
        self.inputs = [_spec(x) for x in inputs]
        self.leaves: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) in positions:
                self.leaves.append(("input", positions[id(leaf)]))
            elif isinstance(leaf, Tensor):
                self.leaves.append(("new", _spec(leaf), leaf.requires_grad))
            else:
                self.leaves.append(("plain", leaf))

    def fits(self, args: Any, kwargs: Any) -> bool:
        """Whether a call is given what the remembered one was given, but for values."""
        return [_spec(x) for x in tree_leaves((args, kwargs))] == self.inputs

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
        """Outputs with the inputs of this call and these new tensors."""
        inputs = tree_leaves((args, kwargs))
        made = []
        for leaf in self.leaves:
            if leaf[0] == "new":
                made.append(next(new))
            else:
                made.append(inputs[leaf[1]] if leaf[0] == "input" else leaf[1])
        return tree_unflatten(made, self.spec)


class _Stub(torch.autograd.Function):
    """Tensors of given shapes in place of a skipped block, with gradients of the right shapes."""

    @staticmethod
    def forward(ctx: Any, specs: Any, *inputs: Tensor) -> Any:
        ctx.inputs = [(x.shape, x.dtype, x.device) for x in inputs]
        return tuple(torch.empty(shape, dtype=dtype) for shape, dtype, _ in specs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *(torch.empty(s, dtype=t, device=d) for s, t, d in ctx.inputs))


def _spec(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (tuple(x.shape), x.dtype, x.requires_grad)
    return x if isinstance(x, (int, float, bool, str, type(None))) else type(x)
