"""Stages: a range of a model's blocks, run by replaying the model's own forward.

Modules outside the stage hold no weights. In a replay the calls of earlier blocks return
placeholders of the right shape, the call that opens the stage takes the received tensors instead,
and the call that opens the next stage ends the replay and gives its tensors as the stage's output.
Any Python between blocks runs as it is. What crosses a cut is known from `stage_layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from executor.replay.draws import Draws
from executor.replay.uses_beside import Replaced
from executor.split_backward import SplitBackward
from executor.stage_layout import Layout
from profiles.model.building.build import BuiltModel


class StopReplay(Exception):
    """Ends a replay; carries the tensors that cross the cut."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors


# Where torch keeps a module's forward hooks (2.11 to 2.13).
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


class Absent(nn.Module):
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

    @property  # type: ignore[misc] # what isinstance asks; never assigned
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
        self.draws: Draws | None = None  # where the model draws at random
        self.micro_batch = 0  # that runs next, of the global batch
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
                self._replace(path, Absent(self, path, modules[path]))
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

    def use_draws(self, draws: Draws) -> None:
        """Draw at random as the whole model does."""
        self.draws = draws
        modules = dict(self.model.named_modules())
        own = [path for path in self._layout.units if path]
        draws.watch(self.model, [p for p in own if not isinstance(modules[p], Absent)])

    @contextmanager
    def _replaying(self, *modes: AbstractContextManager[Any]) -> Iterator[None]:
        """Around a replay. Of two modes the one entered last is asked first: what draws, then what
        stands for something else, then products."""
        with ExitStack() as stack:
            if self.split:
                stack.enter_context(self.split.watching())
            for mode in modes:
                stack.enter_context(mode)
            if self.draws:
                stack.enter_context(self.draws.forward(self.micro_batch))
            yield

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
            with self._replaying(*([Replaced(self._replaced)] if beside else [])):
                output = self._built.call(self.model, *args)
                loss = self._built.loss_fn(output, targets)
        except StopReplay as stop:
            return stop.tensors
        finally:
            self._replaced, self._received = {}, ()
        return loss.reshape(1)

    def given(self, model_args: Mapping[str, Tensor]) -> tuple[list[Tensor], Any]:
        """The model's inputs and the targets of a micro-batch (see model_arguments)."""
        args = [model_args[f"arg{i}"] for i in range(len(self._built.args))]
        self.device = args[0].device
        leaves, spec = tree_flatten(self._built.targets)
        own = [x.to(self.device) if isinstance(x, Tensor) else x for x in leaves]
        found = [model_args.get(f"target{i}", x) for i, x in enumerate(own)]
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
                raise StopReplay(tuple(changed[p] for p in positions))
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


def model_arguments(
    args: Sequence[Tensor], targets: Any, constants: frozenset[int] = frozenset()
) -> dict[str, Tensor]:
    """Inputs as arg0, arg1, ..., and the targets' tensors as target0, target1, ..., in the order in
    which they stand in their tuple or dictionary; without constants of the loss, by their number,
    which every stage has itself."""
    given = {f"arg{i}": x for i, x in enumerate(args)}
    leaves = enumerate(tree_leaves(targets))
    return given | {
        f"target{i}": x for i, x in leaves if isinstance(x, Tensor) and i not in constants
    }


def constants_of(build: Callable[..., BuiltModel], of: BuiltModel) -> frozenset[int]:
    """Numbers of the targets' tensors that are no part of the batch (weights of classes): the same
    where the model is built for a sample more."""
    leaves = tree_leaves(of.targets)
    if not any(isinstance(x, Tensor) for x in leaves):
        return frozenset()
    larger = tree_leaves(build(micro_batch=of.args[0].shape[0] + 1).targets)
    pairs = enumerate(zip(leaves, larger, strict=True))
    return frozenset(i for i, (a, b) in pairs if isinstance(a, Tensor) and a.shape == b.shape)


def part_of_targets(
    targets: Any, constants: frozenset[int], take: Callable[[Tensor], Tensor]
) -> Any:
    """The targets with `take` done to what is part of the batch."""
    leaves, spec = tree_flatten(targets)
    made = [
        take(x) if isinstance(x, Tensor) and i not in constants else x for i, x in enumerate(leaves)
    ]
    return tree_unflatten(made, spec)
