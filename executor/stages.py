"""Stages: a range of a model's blocks, run by replaying the model's own forward.

Modules outside the stage hold no weights. In a replay the calls of earlier blocks return
placeholders of the right shape, the call that opens the stage takes the received tensors instead,
and the call that opens the next stage ends the replay and gives its tensors as the stage's output.
Any Python between blocks runs as it is. Which tensors cross a cut was seen in one run of the whole
model on meta tensors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from executor.split_backward import SplitBackward
from executor.uses_beside import Replaced, UsesBeside
from profiles.errors import MismatchError
from profiles.model.build import BuiltModel, build_model
from profiles.model.loaders import ModelSpec
from profiles.model.trace import no_causal_mask
from profiles.model.trace_expected_shapes import expected_shapes


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
    used_beside  blocks of which code outside the entry call uses what crosses, too (`x + block(x)`)
    """

    entries: tuple[str, ...]
    units: tuple[str, ...]
    calls: dict[str, tuple[UnitCall, ...]]
    boundaries: dict[int, Boundary]
    used_beside: frozenset[int] = frozenset()


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside it, modules are built with real buffers and meta parameters."""
    register = nn.Module.register_parameter

    def to_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and param.device.type != "meta":
            made = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)
            module._parameters[name] = made

    nn.Module.register_parameter = to_meta  # type: ignore[method-assign, assignment] # undone
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign] # as it was


def units_of(module: nn.Module, entries: tuple[str, ...]) -> tuple[str, ...]:
    """Paths of the top-most modules that hold parameters and contain no entry of a block."""
    opening = entries[1:]
    above = {entry[:i] for entry in opening for i, c in enumerate(entry) if c == "."}
    above |= {""} if opening else set()
    units: list[str] = []

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
        elif path not in units:
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
            _fake_state(built.module, fake)
            args, targets = tree_map_only(Tensor, fake.from_tensor, (built.args, built.targets))
            with no_causal_mask(), expected_shapes(), beside:
                # The loss may use what crossed a cut, too.
                built.loss_fn(built.call(built.module, *args), targets)
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
    )


def _fake_state(module: nn.Module, fake: FakeTensorMode) -> None:
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


class _StopReplay(Exception):
    """Ends a replay; carries the tensors that cross the cut."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors


# Where torch keeps a module's forward hooks (2.11 to 2.13).
_HOOKS: tuple[str, ...] = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)
_HOOKS += ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


class _Absent(nn.Module):
    """Stands where a module outside the stage was: no weights, placeholders as outputs.

    Plain attributes and the class are still those of the module (models look at them between
    blocks: `if isinstance(layer, ...)`), and its hooks still run (some models collect features so).
    """

    def __init__(self, stage: StageModule, path: str, original: nn.Module) -> None:
        super().__init__()
        object.__setattr__(self, "_stage", stage)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_original", original)
        for name in _HOOKS:
            object.__setattr__(self, name, getattr(original, name))

    @property  # type: ignore[misc] # only read
    def __class__(self) -> Any:
        return type(object.__getattribute__(self, "_original"))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(object.__getattribute__(self, "_original"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage.placeholder(self._path, args, kwargs)


class StageModule(nn.Module):
    """Blocks [first, last) of a model as a module.

    forward(*received, **model_args) -> tuple of tensors for the next stage, or for the last stage
    the loss as a tensor of shape [1]. `model_args` are those of model_arguments.
    Holds real weights for its own blocks only. A model whose forward gives tensors of shapes that
    depend on their values cannot be staged. `split` is there where its backward runs in two halves.
    """

    def __init__(
        self,
        built: BuiltModel,
        layout: Layout,
        first: int,
        last: int,
        *,
        split: SplitBackward | None = None,
    ) -> None:
        super().__init__()
        self.split = split
        self.model = built.module
        self.first, self.last = first, last
        self.is_last = last == len(layout.entries)
        self._built, self._layout = built, layout
        self._counts: dict[str, int] = {}
        # Not read off a call's inputs: models move them to where an absent module's weights are.
        self.device = torch.device("cpu")
        # id of a placeholder -> (the placeholder, what stands for it): it must stay alive, or its
        # id could be that of another tensor later.
        self._replaced: dict[int, tuple[Any, Tensor]] = {}
        self._received: tuple[Tensor, ...] = ()
        self._entered: set[str] = set()
        self._install()

    # --- set-up -------------------------------------------------------------------------------

    def _install(self) -> None:
        modules = dict(self.model.named_modules())
        for path in self._layout.units:
            blocks = {call.block for call in self._layout.calls[path]}
            inside = [b for b in blocks if self.first <= b < self.last]
            if not inside and (blocks or self.first > 0) and path:
                self._replace(path, _Absent(self, path, modules[path]))
            elif path and any(b < self.first for b in blocks):
                self._guard(path, modules[path])

    def watch_entries(self) -> None:
        """Hook the calls that open blocks. To be called last: FSDP's own hooks hand the module new
        tensor objects, and placeholders are known by identity."""
        modules = dict(self.model.named_modules())
        for index, path in enumerate(self._layout.entries):
            if index and self.first <= index <= self.last:
                modules[path].register_forward_pre_hook(
                    self._at_entry(index, path), prepend=True, with_kwargs=True
                )

    def _replace(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        owner = self.model.get_submodule(parent) if parent else self.model
        original = owner._modules[name]
        # The same module may be reachable by several names (tied embeddings).
        for other in self.model.modules():
            for key, child in other._modules.items():
                if child is original:
                    other._modules[key] = module

    def _guard(self, path: str, module: nn.Module) -> None:
        """A unit that is called both before and inside the stage: placeholders before."""
        original = module.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            number = self._counts.get(path, 0)
            if self._layout.calls[path][number].block < self.first:
                return self.placeholder(path, args, kwargs)
            self._counts[path] = number + 1
            return original(*args, **kwargs)

        module.forward = forward

    def unit_paths(self, block: int) -> list[str]:
        """Units of this stage that a block calls, in the order of the layout."""
        calls = self._layout.calls
        return [u for u in self._layout.units if any(c.block == block for c in calls[u])]

    # --- replay -------------------------------------------------------------------------------

    def forward(self, *received: Tensor, **model_args: Any) -> Any:
        self._counts, self._replaced, self._entered = {}, {}, set()
        self._received = received if self.first else ()
        args, targets = self.given(model_args)
        beside = self.first in self._layout.used_beside
        try:
            # Of two modes the one entered last is asked first: placeholders go before products.
            with (
                self.split.watching() if self.split else nullcontext(),
                Replaced(self._replaced) if beside else nullcontext(),
            ):
                output = self._built.call(self.model, *args)
                loss = self._built.loss_fn(output, targets)
        except _StopReplay as stop:
            return stop.tensors
        finally:
            self._replaced, self._received = {}, ()
        return loss.reshape(1)

    def given(self, model_args: Mapping[str, Tensor]) -> tuple[list[Tensor], Any]:
        """The model's inputs and the targets of a micro-batch (see model_arguments)."""
        args = [model_args[f"arg{i}"] for i in range(len(self._built.args))]
        self.device = args[0].device
        leaves, spec = tree_flatten(self._built.targets)
        found = [model_args.get(f"target{i}", x) for i, x in enumerate(leaves)]
        return args, tree_unflatten(found, spec)

    def _at_entry(self, index: int, path: str) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            if path in self._entered:
                return None
            self._entered.add(path)
            leaves, spec = tree_flatten((args, kwargs))
            positions = self._layout.boundaries[index].positions
            if index == self.first:
                for position, tensor in zip(positions, self._received, strict=True):
                    self._replaced[id(leaves[position])] = (leaves[position], tensor)
            changed = [self._replaced.get(id(x), (x, x))[1] for x in leaves]
            if index == self.last:
                raise _StopReplay(tuple(changed[p] for p in positions))
            return tree_unflatten(changed, spec)

        return hook

    def placeholder(self, path: str, args: Any, kwargs: Any) -> Any:
        """Outputs of a call outside the stage: no memory, right shapes."""
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        call = self._layout.calls[path][number]
        inputs = tree_leaves((args, kwargs))
        made: list[Any] = []
        for leaf in call.leaves:
            if leaf[0] == "input":
                made.append(inputs[leaf[1]])
            elif leaf[0] == "same":
                made.append(made[leaf[1]])
            elif leaf[0] == "new" and call.written:
                made.append(torch.zeros(leaf[1], dtype=leaf[2], device=self.device))
            elif leaf[0] == "new":
                made.append(torch.zeros((), dtype=leaf[2], device=self.device).expand(leaf[1]))
            else:
                made.append(leaf[1])
        return tree_unflatten(made, call.spec)


def model_arguments(args: Sequence[Tensor], targets: Any) -> dict[str, Tensor]:
    """Inputs as arg0, arg1, ..., and the targets' tensors as target0, target1, ..., in the order in
    which they stand in their tuple or dictionary."""
    given = {f"arg{i}": x for i, x in enumerate(args)}
    leaves = enumerate(tree_leaves(targets))
    return given | {f"target{i}": x for i, x in leaves if isinstance(x, Tensor)}


def initial_value(name: str, like: Tensor, seed: int) -> Tensor:
    """The starting value of a parameter: a function of its name, shape and the seed alone.

    Matrices are normal with deviation 0.02 (GPT-2's, Radford et al. 2019), vectors are 1 and biases
    0, so that every split of a model starts from the same weights without one rank holding all.
    Weights are fp32 whatever the model computes in (parallelize.apply_fully_sharded).
    """
    dtype = torch.float32 if like.is_floating_point() else like.dtype
    if like.dim() < 2:
        fill = 0.0 if name.endswith("bias") else 1.0
        return torch.full(like.shape, fill, dtype=dtype)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return (torch.randn(like.shape, generator=generator) * 0.02).to(dtype)


def materialize(
    module: nn.Module, names: dict[int, str], device: torch.device, seed: int
) -> dict[str, nn.Parameter]:
    """Give every parameter of `module` its starting value; returns them by name.

    names  id of a meta parameter -> its name in the whole model; tied ones share an id and a name
    """
    made: dict[str, nn.Parameter] = {}
    for child in module.modules():
        for key, p in list(child._parameters.items()):
            if p is None:
                continue
            name = names[id(p)]
            if name not in made:
                value = initial_value(name, p, seed).to(device)
                made[name] = nn.Parameter(value, requires_grad=p.requires_grad)
            child._parameters[key] = made[name]
        for key, b in child._buffers.items():
            if b is not None and b.device != device:
                child._buffers[key] = b.to(device)
    return made


def parameter_names(module: nn.Module) -> dict[int, str]:
    """id of each parameter -> its first name in the whole model."""
    names: dict[int, str] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), name)
    return names


def build_meta(
    spec: ModelSpec, *, micro_batch: int, sequence_length: int, dtype: str, seed: int
) -> BuiltModel:
    """The model with meta parameters and real buffers and inputs."""
    with parameters_on_meta():
        return build_model(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype=dtype,
            device="cpu",
            seed=seed,
        )
