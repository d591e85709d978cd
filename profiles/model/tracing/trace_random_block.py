"""Run one block of a model on random numbers on the CPU, and observe every call.

The whole model runs once on shapes; then each distinct block gets random weights and inputs. Linear
layers multiply with the product of two thin matrices instead of their weight, so that a block of
any width runs in milliseconds. Two runs of one block make the same calls in the same order, so that
a run on a rank's share can be compared with that of the whole block.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from profiles.errors import TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import is_transposed
from profiles.model.fake_tensors.trace_expected_shapes import expected_shapes
from profiles.model.fake_tensors.trace_fakes import as_in_real_runs, plain_kernels
from profiles.model.tracing.trace_block_boundaries import (
    Output,
    container_members,
    cut_candidates,
    other_forward,
    repeated,
)
from profiles.model.tracing.trace_errors import failure_text
from profiles.model.tracing.trace_scans import short_chunks
from profiles.model.tracing.trace_tensor_parallel import function_name

_SHORT = 12  # positions of a sequence, if the model accepts that length
_LONG = 256  # longer sequences are shortened per block if the model accepts only one length
_THIN = 8
_MOST_ELEMENTS = 2**27
_LARGE_MODULE = 2**24


@contextmanager
def small_runs() -> Iterator[None]:
    """Context for runs of small blocks: one thread is faster than several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with plain_kernels():
            yield
    finally:
        torch.set_num_threads(threads)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a nest of values."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Layers that may be split: nn.Linear with its original forward, or transformers' Conv1D."""
    return {path: child for path, child in module.named_modules() if path and _is_linear(child)}


def _is_linear(module: nn.Module) -> bool:
    linear = is_transposed(module) or type(module).forward is nn.Linear.forward
    return linear and "weight" in module._parameters  # not computed from others (weight_norm)


# --- the blocks of a model, on shapes -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a block on meta tensors.

    unused  indices of outputs that do not affect the loss (unused attention weights)
    large   path of a module with too many weights to run (experts in one tensor) -> its output
    part    fraction of the model's image that this call uses
    """

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    unused: frozenset[int] = frozenset()
    large: Mapping[str, Output] = field(default_factory=dict)
    part: float = 1.0


def block_calls(built: BuiltModel) -> tuple[list[Call], dict[str, str]]:
    """The first call of every distinct block, and the path of each repeat -> that of its block.

    Raises TraceError if the model does not run on shapes.
    """
    candidates = cut_candidates(built.module)
    members = container_members(built.module, candidates)
    traced_as = repeated(built.module, candidates, trusted=True)
    traced_as = {p: model for p, model in traced_as.items() if {p, model} <= members}
    distinct = [p for p in candidates if p in members and p not in traced_as]
    return _called(built, distinct, traced_as), traced_as


def whole_model_call(built: BuiltModel) -> Call:
    """The model itself as one block."""
    return _called(built, [""], {})[0]


def _called(built: BuiltModel, paths: list[str], traced_as: dict[str, str]) -> list[Call]:
    """The calls of the blocks, on short sequences if the model accepts them. Repeats return outputs
    like those of their block."""
    short = _shortened(built)
    try:
        return _run(short, paths, traced_as)
    except TraceError:
        if short is built:
            raise
        return _run(built, paths, traced_as)


def _shortened(built: BuiltModel) -> BuiltModel:
    """The model with shorter sequences in its inputs and targets."""
    sequences = [x for x in built.args if x.dim() == 2 or (x.dim() == 3 and x.is_floating_point())]
    long = {x.shape[1] for x in sequences if x.shape[1] > _SHORT}
    if not long:
        return built

    def cut(x: Tensor) -> Tensor:
        return x[:, :_SHORT] if x.dim() > 1 and x.shape[1] in long else x

    targets = tree_map_only(Tensor, cut, built.targets)
    return replace(built, args=tuple(map(cut, built.args)), targets=targets)


def _run(built: BuiltModel, paths: list[str], traced_as: dict[str, str]) -> list[Call]:
    found: dict[str, Call] = {}
    recipes: dict[str, Output] = {}
    outputs: dict[str, list[Tensor]] = {}
    large: dict[str, dict[str, Output]] = defaultdict(dict)

    def note(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        found.setdefault(path, Call(path, module, args, kwargs))
        recipes.setdefault(path, Output(path, args, kwargs, output))
        # New tensors: their consumers are after the block.
        output = tree_map_only(Tensor, lambda x: x.view_as(x), output)
        outputs.setdefault(path, tensors(output))
        return output

    def note_large(path: str, inner: str, _: Any, args: Any, kwargs: Any, output: Any) -> None:
        large[path].setdefault(inner, Output(inner, args, kwargs, output))

    def repeat(original: Any, path: str, model: str, *args: Any, **kwargs: Any) -> Any:
        recipe = recipes.get(model)
        if recipe is None or not recipe.fits(path, args, kwargs):
            return original(*args, **kwargs)
        return recipe.make(args, kwargs)

    with ExitStack() as stack:
        for path in paths:
            module = built.module.get_submodule(path)
            hooks = [(module, partial(note, path))]
            for inner, child in module.named_modules():
                if inner and _is_large(child):
                    hooks.append((child, partial(note_large, path, inner)))
            for child, hook in hooks:
                stack.callback(child.register_forward_hook(hook, with_kwargs=True).remove)
        for path, model in traced_as.items():
            module = built.module.get_submodule(path)
            stack.enter_context(other_forward(module, partial(repeat, module.forward, path, model)))
        stack.enter_context(torch.device("meta"))  # for the tensors of stubs
        stack.enter_context(as_in_real_runs(built.module))
        stack.enter_context(expected_shapes(unknown=True))
        stack.enter_context(plain_kernels())
        try:
            loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
        except Exception as error:
            raise TraceError(f"it does not run on shapes alone: {failure_text(error)}") from error
        unused = {path: _unused(loss, made) for path, made in outputs.items()}
        calls = [
            replace(found[path], unused=unused[path], large=large[path])
            for path in paths
            if path in found
        ]
        return [_short_call(call) for call in calls]


def _short_call(call: Call) -> Call:
    """The call on a short sequence, for a block that accepts one although the model does not."""
    given = tensors((call.args, call.kwargs))
    length = max((x.shape[1] for x in given if x.dim() == 3 and x.is_floating_point()), default=0)
    if length <= _LONG or call.large or not call.path:
        return call

    def cut(x: Tensor) -> Tensor:
        for dim in range(x.dim() - (x.dim() == 3)):  # not the width of [batch, length, width]
            if x.shape[dim] == length:
                x = x.narrow(dim, 0, _SHORT)
        return x

    args, kwargs = tree_map_only(Tensor, cut, (call.args, call.kwargs))
    try:
        call.module(*args, **kwargs)
    except Exception:
        return call  # its code accepts only this length
    return replace(call, args=args, kwargs=kwargs)


def _is_large(module: nn.Module) -> bool:
    own = sum(p.numel() for p in module.parameters(recurse=False))
    return own > _LARGE_MODULE and not _is_linear(module)


def _unused(loss: Tensor, outputs: list[Tensor]) -> frozenset[int]:
    flowing = {i: x for i, x in enumerate(outputs) if x.requires_grad}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gradients = torch.autograd.grad(
                loss, list(flowing.values()), retain_graph=True, allow_unused=True
            )
    except RuntimeError:
        return frozenset()
    return frozenset(i for i, g in zip(flowing, gradients, strict=True) if g is None)


# --- a block with values --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SmallBlock:
    """A block with random values. Its linear layers have the parameters `outer` [out, thin],
    `inner` [in, thin] and `offset`; their weight is outer @ inner.T."""

    call: Call
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def fresh(self) -> SmallBlock:
        """A copy with separate gradients."""
        memo: dict[int, Any] = {}
        module = copy.deepcopy(self.module, memo)

        def leaf(x: Tensor) -> Tensor:
            if id(x) not in memo:
                memo[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
            found: Tensor = memo[id(x)]
            return found

        args, kwargs = tree_map_only(Tensor, leaf, (self.args, self.kwargs))
        return SmallBlock(self.call, module, args, kwargs)


def small_block(call: Call, seed: int, *, thin: bool = True) -> SmallBlock:
    """Random values for a block and its inputs; raises TraceError if they need too much memory.

    thin    linear layers have no weight; not possible if code reads it outside their forward
    """
    generator = torch.Generator().manual_seed(seed)
    layers = linear_layers(call.module)

    def draw(*shape: int, scale: float = 1.0) -> nn.Parameter:
        return nn.Parameter(torch.randn(shape, generator=generator) * scale)

    thin_weights: dict[str, dict[str, nn.Parameter | None]] = {}
    for path, layer in layers.items():
        weight = layer.get_parameter("weight")
        wide, deep = weight.shape[::-1] if is_transposed(layer) else weight.shape
        own: dict[str, nn.Parameter | None] = {"outer": draw(wide, _THIN, scale=_THIN**-0.5)}
        own["inner"] = draw(deep, _THIN, scale=deep**-0.5)
        own["offset"] = None if layer._parameters.get("bias") is None else draw(wide)
        thin_weights[path] = own
    spared = {id(p) for layer in layers.values() for p in layer.parameters()} if thin else set()
    for path in call.large:
        spared |= {id(p) for p in call.module.get_submodule(path).parameters()}
    owned = list(call.module.parameters()) + list(call.module.buffers())
    for child in call.module.modules():
        owned += [x for x in vars(child).values() if isinstance(x, Tensor)]
    given = tensors((call.args, call.kwargs))
    real = {id(x): x for x in (*owned, *given) if x.is_meta and id(x) not in spared}
    size = sum(x.numel() for x in real.values())
    if size > _MOST_ELEMENTS:
        raise TraceError(
            f"{type(call.module).__name__} has {size / 1e9:.2f} G weights and inputs without its "
            "linear layers: its split cannot be verified here"
        )
    values: dict[int, Any] = {key: _value(x, generator) for key, x in real.items()}
    if not any(x.requires_grad for x in given):
        first = next((x for x in given if x.is_floating_point() and id(x) in values), None)
        if first is not None:
            values[id(first)].requires_grad_()
    module = copy.deepcopy(call.module, dict(values))
    for path, own in thin_weights.items():  # in addition to weight and bias without values
        module.get_submodule(path)._parameters.update(own)
    args, kwargs = tree_map_only(Tensor, lambda x: values.get(id(x), x), (call.args, call.kwargs))
    return SmallBlock(call, module, args, kwargs)


def _value(x: Tensor, generator: torch.Generator) -> Tensor:
    """Values for a meta tensor: normal numbers, True with probability 1/2, integers 0 or 1 (a mask
    of zeros would hide everything)."""
    if x.is_complex():
        made = torch.view_as_complex(torch.randn((*x.shape, 2), generator=generator)).to(x.dtype)
    elif x.is_floating_point():
        matrix = isinstance(x, nn.Parameter) and x.requires_grad and x.dim() > 1
        scale = x.shape[-1] ** -0.5 if matrix else 1.0
        made = (torch.randn(x.shape, generator=generator) * scale).to(x.dtype)
    elif x.dtype is torch.bool:
        made = torch.rand(x.shape, generator=generator) < 0.5
    else:
        made = torch.randint(2, x.shape, generator=generator).to(x.dtype)
    if isinstance(x, nn.Parameter):
        return nn.Parameter(made, requires_grad=x.requires_grad)
    return made.requires_grad_(x.requires_grad)


class Watch(TorchFunctionMode):
    """One run of a copy of a block without dropout: `called` receives every torch function called
    by the modules, `layered` every linear layer."""

    def __init__(self, block: SmallBlock) -> None:
        super().__init__()
        self.original, self.block = block, block.fresh()
        self.module = self.block.module
        layers: dict[str, Any] = linear_layers(self.module)
        self.layers = {p: layer for p, layer in layers.items() if "outer" in layer._parameters}
        given = {id(x): x for x in tensors((self.block.args, self.block.kwargs))}
        self.inputs = {
            f"input {i}": x for i, x in enumerate(given.values()) if x.requires_grad and x.is_leaf
        }
        self._paused = False
        self._stack: list[tuple[str, Counter[str]]] = [("", Counter())]
        for path, child in self.module.named_modules():
            if path in self.layers:
                child.forward = self._layer(path, child)
            if path in block.call.large:
                child.forward = self._large(path, block.call.large[path])
            child.register_forward_pre_hook(self._enter(path))
            child.register_forward_hook(self._leave, always_call=True)

    def run(self) -> list[Tensor]:
        """Call the block; returns the output tensors that affect the loss."""
        copies: dict[int, Tensor] = {}

        def own(x: Tensor) -> Tensor:  # models may change their inputs in place
            return copies.setdefault(id(x), x.clone())

        self.given = copies.values()
        with self, short_chunks(self.module):
            with self.paused():
                args, kwargs = tree_map_only(Tensor, own, (self.block.args, self.block.kwargs))
            output = self.module(*args, **kwargs)
        return [x for i, x in enumerate(tensors(output)) if i not in self.block.call.unused]

    def backward(self, outputs: list[Tensor]) -> dict[str, Tensor | None]:
        """The gradients of inputs and parameters for random gradients of the outputs."""
        generator = torch.Generator().manual_seed(1)
        roots = [x for x in outputs if x.requires_grad]
        seeds = [torch.randn(x.shape, generator=generator).to(x.dtype) for x in roots]
        if roots:
            torch.autograd.backward(roots, seeds)
        named = {n: p for n, p in self.module.named_parameters() if not p.is_meta}
        return {name: x.grad for name, x in (self.inputs | named).items()}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within the context, calls are not observed."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Make the call, the `number`th of this function in this forward of the module."""
        return func(*args, **kwargs)

    def given_whole(self, path: str, inputs: list[Tensor]) -> None:
        """Called before a module that stays whole, with its inputs."""

    def layered(self, path: str, layer: Any, x: Tensor) -> Tensor:
        """Run a linear layer that has values."""
        return product(x, layer)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._paused:
            return func(*args, **(kwargs or {}))
        path, counts = self._stack[-1]
        name = function_name(func)
        number = counts[name]
        counts[name] += 1
        kwargs = dict(kwargs or {})
        if name.rstrip("_").endswith("dropout"):  # would differ between runs
            return args[0] if args else kwargs["input"]
        if kwargs.get("dropout_p"):
            kwargs["dropout_p"] = 0.0
        with self.paused():
            return self.called(func, name, path, number, args, kwargs)

    def _layer(self, path: str, layer: nn.Module) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with self.paused():
                return self.layered(path, layer, x)

        return forward

    def _large(self, path: str, recipe: Output) -> Callable[..., Any]:
        """The forward of a module with too many weights: random numbers of the right shapes, times
        a number that depends on all inputs."""
        generator = torch.Generator().manual_seed(1)
        shapes = [leaf[1] for leaf in recipe.leaves if leaf[0] == "new"]
        drawn = [torch.randn(shape, generator=generator).to(dtype) for shape, _, dtype in shapes]

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.paused():
                given = tensors((args, kwargs))
                self.given_whole(path, given)
                factor = torch.stack([x.double().mean() for x in given]).sum().tanh() + 2
                return recipe.filled(args, kwargs, (x * factor.float() for x in drawn))

        return forward

    def _enter(self, path: str) -> Callable[..., None]:
        return lambda *args: self._stack.append((path, Counter()))

    def _leave(self, *args: Any) -> None:
        self._stack.pop()


def product(x: Tensor, layer: Any) -> Tensor:
    """The output of a linear layer of a small block."""
    y: Tensor = x @ layer.inner @ layer.outer.T
    return y if layer.offset is None else y + layer.offset
