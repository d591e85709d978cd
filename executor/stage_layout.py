"""A model as its stages see it: the modules that hold weights, their calls, what crosses a cut.

Seen in one run of the whole model on fake tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from executor.replay.draws import DrawsSeen
from executor.replay.uses_beside import UsesBeside
from profiles.errors import MismatchError
from profiles.model.building.build import BuiltModel
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes, loss_of
from profiles.model.fake_tensors.trace_fakes import no_causal_mask


@dataclass(frozen=True, slots=True)
class UnitCall:
    """One call of a unit in the whole model: in which block, and what it gave back.

    leaves  per output leaf: (`input`, position), (`new`, shape, dtype), (`same`, position of the
            leaf that is the same tensor) or (`plain`, value)
    written  the code after the call changes what it gave back in place
    """

    block: int
    spec: Any
    leaves: tuple[Any, ...]
    written: bool = False


@dataclass(frozen=True, slots=True)
class Boundary:
    """What crosses the cut before a block: positions among the entry call's leaves, and shapes."""

    positions: tuple[int, ...]
    shapes: tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The whole model as the replay sees it, for one micro-batch size.

    units       the top-most weight-holding modules that no block boundary lies inside
    calls       unit path -> its calls in order
    boundaries  block -> what crosses the cut before it (block 0: nothing)
    draws       something is drawn at random
    used_beside  blocks of which code outside the entry call uses what crosses, too (`x + block(x)`)
    """

    entries: tuple[str, ...]
    units: tuple[str, ...]
    calls: dict[str, tuple[UnitCall, ...]]
    boundaries: dict[int, Boundary]
    used_beside: frozenset[int] = frozenset()
    draws: bool = False


def units_of(module: nn.Module, entries: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the top-most modules that hold parameters and contain no entry of a block."""
    opening = entries[1:]
    above = {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}
    above |= {""} if opening else set()
    units: list[str] = []
    first = {path for path, _ in module.named_modules()}

    def visit(path: str, child: nn.Module) -> None:
        if next(child.parameters(), None) is None:
            return
        # Lists and dictionaries are never called themselves; parameters that stand in one, as those
        # that stand in the model itself, are held by every stage.
        if isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            return
        listed = isinstance(child, (nn.ModuleList, nn.ModuleDict))
        if listed or (path in above and path not in opening):
            for name, member in child.named_children():
                visit(f"{path}.{name}" if path else name, member)
        elif path in first and path not in units:  # known by its first name, if it has several
            units.append(path)

    visit("", module)
    return tuple(units) if units != [""] else ("",)


def layout_of(built: BuiltModel, entries: tuple[str, ...]) -> Layout:
    """The layout, from one forward pass on fake tensors; the built model is used up by it.

    Raises MismatchError where the model has no module of an entry's name.
    """
    modules = dict(built.module.named_modules())
    for entry in entries[1:]:
        if entry not in modules:
            raise MismatchError(
                f"the plan cuts the model at {entry!r}, but the model has no such module: the plan "
                "is for another model; plan again for this one"
            )
    units = units_of(built.module, entries)
    calls: dict[str, list[UnitCall]] = {unit: [] for unit in units}
    boundaries: dict[int, Boundary] = {0: Boundary((), ())}
    versions: list[tuple[str, int, list[tuple[Tensor, int]]]] = []
    block = 0
    beside = UsesBeside()
    order = {entry: i for i, entry in enumerate(entries) if i}
    seen: set[str] = set()
    handles = []

    def at_entry(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal block
            if path in seen:
                beside.enter(block, [])
                return
            seen.add(path)
            block = order[path]
            leaves = tree_leaves((args, kwargs))
            boundaries[block] = _boundary(leaves)
            beside.enter(block, [leaves[i] for i in boundaries[block].positions])

        return hook

    def left(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        beside.leave()

    def after(path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls[path].append(_call(block, args, kwargs, output))
            made = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
            versions.append((path, len(calls[path]) - 1, [(x, x._version) for x in made]))

        return hook

    for path in order:
        handles.append(modules[path].register_forward_pre_hook(at_entry(path), with_kwargs=True))
        handles.append(modules[path].register_forward_hook(left, with_kwargs=True))
    for path in units:
        handles.append(modules[path].register_forward_hook(after(path), with_kwargs=True))
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake:
            fake_state(built.module, fake)
            args, targets = tree_map_only(Tensor, fake.from_tensor, (built.args, built.targets))
            with no_causal_mask(), expected_shapes() as shapes, beside, DrawsSeen() as drawn:
                # The loss may use what crossed a cut, too.
                loss_of(shapes, built.loss_fn, built.call(built.module, *args), targets)
    finally:
        for handle in handles:
            handle.remove()
    for path, number, tensors in versions:
        if any(x._version != version for x, version in tensors):
            calls[path][number] = replace(calls[path][number], written=True)
    missing = [entry for entry in entries[1:] if entry not in seen]
    if missing:
        raise MismatchError(f"the model never calls {missing[0]!r}, where the plan cuts it")
    return Layout(
        entries,
        units,
        {k: tuple(v) for k, v in calls.items()},
        boundaries,
        frozenset(beside.blocks),
        drawn.any,
    )


def fake_state(module: nn.Module, fake: FakeTensorMode) -> None:
    """Parameters and buffers as fake CPU tensors: shapes without storage, in place."""
    for child in module.modules():
        for key, p in child._parameters.items():
            if p is not None:
                empty = torch.empty(p.shape, dtype=p.dtype, device="cpu")
                child._parameters[key] = nn.Parameter(empty, requires_grad=p.requires_grad)
        for key, b in child._buffers.items():
            if b is not None:
                child._buffers[key] = torch.empty(b.shape, dtype=b.dtype, device="cpu")


def _boundary(leaves: list[Any]) -> Boundary:
    positions, shapes, seen = [], [], set()
    for i, x in enumerate(leaves):
        if isinstance(x, Tensor) and x.requires_grad and id(x) not in seen:
            seen.add(id(x))
            positions.append(i)
            shapes.append((tuple(x.shape), x.dtype))
    return Boundary(tuple(positions), tuple(shapes))


def _call(block: int, args: Any, kwargs: Any, output: Any) -> UnitCall:
    inputs = {id(x): i for i, x in enumerate(tree_leaves((args, kwargs))) if isinstance(x, Tensor)}
    leaves, spec = tree_flatten(output)
    made: list[Any] = []
    first: dict[int, int] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and id(leaf) in inputs:
            made.append(("input", inputs[id(leaf)]))
        elif isinstance(leaf, Tensor) and first.setdefault(id(leaf), i) != i:
            made.append(("same", first[id(leaf)]))
        elif isinstance(leaf, Tensor):
            made.append(("new", tuple(leaf.shape), leaf.dtype))
        else:
            made.append(("plain", leaf))
    return UnitCall(block, spec, tuple(made))
