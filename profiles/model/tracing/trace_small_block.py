"""One run of a model's block on random numbers, small enough for a CPU, recorded call by call.

The whole model runs once on shapes alone; then each distinct block gets random weights and inputs.
Weights of linear layers that are only multiplied with are kept as a product of two thin matrices,
so that a block of any width runs in milliseconds. `Watch` sees every torch function and linear
layer of a run. Two runs of one block make the same calls in the same order, so that a run on a
rank's share can be compared with the run of the whole block, call by call.
"""

from __future__ import annotations

import copy
import re
import warnings
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
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
from profiles.model.tracing.trace_cuts import Output, container_members, cut_candidates, repeated
from profiles.model.tracing.trace_failure import what_failed
from profiles.model.tracing.trace_tensor_parallel import function_name, integers


@contextmanager
def small_runs() -> Iterator[None]:
    """Around runs of small blocks: threads of torch's would cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with plain_kernels():
            yield
    finally:
        torch.set_num_threads(threads)


SHORT = 12
"""Positions of a sequence in the small run, where a model takes that many."""
_THIN = 8
_MOST_ELEMENTS = 2**27
_LONG = 256
_LARGE_MODULE = 2**24


@dataclass(frozen=True, slots=True)
class Call:
    """A block as the model calls it, on meta tensors.

    unused  positions of output tensors that reach no loss (attention weights that nobody reads)
    large   path of a module with too many weights to run (experts in one tensor) -> what it gives
    """

    path: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    unused: frozenset[int] = frozenset()
    large: Mapping[str, Output] = field(default_factory=dict)


def block_calls(built: BuiltModel) -> tuple[list[Call], dict[str, str]]:
    """The first call of every distinct block, and the path of each repeat -> that of its block.

    Raises TraceError where the model does not run on shapes alone.
    """
    candidates = cut_candidates(built.module)
    members = container_members(built.module, candidates)
    stands_for = repeated(built.module, candidates, trusted=True)
    stands_for = {p: model for p, model in stands_for.items() if {p, model} <= members}
    distinct = [p for p in candidates if p in members and p not in stands_for]
    return _called(built, distinct, stands_for), stands_for


def whole_model_call(built: BuiltModel) -> Call:
    """The model itself as one block."""
    return _called(built, [""], {})[0]


def linear_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Layers that may be split: nn.Linear, or transformers' Conv1D, with their own forward."""
    return {path: child for path, child in module.named_modules() if path and is_linear(child)}


def is_linear(module: nn.Module) -> bool:
    """Whether a module is a linear layer that may be split."""
    return is_transposed(module) or type(module).forward is nn.Linear.forward


def _called(built: BuiltModel, paths: list[str], stands_for: dict[str, str]) -> list[Call]:
    """On short sequences where the model takes them; repeats give what their block gave."""
    short = _shortened(built)
    try:
        return _run(short, paths, stands_for)
    except TraceError:
        if short is built:
            raise
        return _run(built, paths, stands_for)


def _run(built: BuiltModel, paths: list[str], stands_for: dict[str, str]) -> list[Call]:
    found: dict[str, Call] = {}
    recipes: dict[str, Output] = {}
    outputs: dict[str, list[Tensor]] = {}
    large: dict[str, dict[str, Output]] = defaultdict(dict)

    def note_large(path: str, inner: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            large[path].setdefault(inner, Output(args, kwargs, output))

        return hook

    def note(path: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            found.setdefault(path, Call(path, module, args, kwargs))
            recipes.setdefault(path, Output(args, kwargs, output))
            # Other tensors than those inside the block: what uses them is behind it.
            output = tree_map_only(Tensor, lambda x: x.view_as(x), output)
            outputs.setdefault(path, [x for x in tree_leaves(output) if isinstance(x, Tensor)])
            return output

        return hook

    def repeat(module: nn.Module, model: str) -> None:
        original, own = module.forward, "forward" in vars(module)

        def forward(*args: Any, **kwargs: Any) -> Any:
            recipe = recipes.get(model)
            if recipe is None or not recipe.fits(args, kwargs):
                return original(*args, **kwargs)
            return recipe.make(args, kwargs)

        module.forward = forward
        if own:
            stack.callback(setattr, module, "forward", original)
        else:
            stack.callback(vars(module).pop, "forward")

    with ExitStack() as stack:
        for path in paths:
            module = built.module.get_submodule(path)
            stack.callback(module.register_forward_hook(note(path), with_kwargs=True).remove)
            for inner, child in module.named_modules():
                if inner and _is_large(child):
                    hook = note_large(path, inner)
                    stack.callback(child.register_forward_hook(hook, with_kwargs=True).remove)
        for path, model in stands_for.items():
            repeat(built.module.get_submodule(path), model)
        stack.enter_context(torch.device("meta"))  # where stubs make their tensors
        stack.enter_context(as_in_real_runs(built.module))
        stack.enter_context(expected_shapes(unknown=True))
        stack.enter_context(plain_kernels())
        try:
            loss = built.loss_fn(built.call(built.module, *built.args), built.targets)
        except Exception as error:
            raise TraceError(f"it does not run on shapes alone: {what_failed(error)}") from error
        unused = {path: _unused(loss, made) for path, made in outputs.items()}
        calls = [
            replace(found[path], unused=unused[path], large=large[path])
            for path in paths
            if path in found
        ]
        return [_short_call(call) for call in calls]


def _short_call(call: Call) -> Call:
    """On a short sequence where the block takes one and the model does not."""
    given = [x for x in tree_leaves((call.args, call.kwargs)) if isinstance(x, Tensor)]
    length = max((x.shape[1] for x in given if x.dim() == 3 and x.is_floating_point()), default=0)
    if length <= _LONG or call.large or not call.path:
        return call

    def cut(x: Tensor) -> Tensor:
        for dim in range(x.dim() - (x.dim() == 3)):  # of [batch, length, width] not the width
            if x.shape[dim] == length:
                x = x.narrow(dim, 0, SHORT)
        return x

    short = replace(
        call,
        args=tree_map_only(Tensor, cut, call.args),
        kwargs=tree_map_only(Tensor, cut, call.kwargs),
    )
    try:
        short.module(*short.args, **short.kwargs)
    except Exception:
        return call  # its code takes no other length, and says so in its own way
    return short


def _is_large(module: nn.Module) -> bool:
    own = sum(p.numel() for p in module.parameters(recurse=False))
    return own > _LARGE_MODULE and not is_linear(module)


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


def _shortened(built: BuiltModel) -> BuiltModel:
    """With shorter sequences in its inputs and targets."""
    lengths = {
        x.shape[1] for x in built.args if x.dim() == 2 or (x.dim() == 3 and x.is_floating_point())
    }
    long = {n for n in lengths if n > SHORT}
    if not long:
        return built

    def cut(x: Tensor) -> Tensor:
        return x[:, :SHORT] if x.dim() > 1 and x.shape[1] in long else x

    return replace(
        built,
        args=tuple(cut(x) for x in built.args),
        targets=tree_map_only(Tensor, cut, built.targets),
    )


@dataclass(frozen=True, slots=True)
class ThinWeight:
    """A linear layer with weight outer @ inner.T: [out, thin] and [in, thin]."""

    outer: Tensor
    inner: Tensor
    bias: Tensor | None

    def leaves(self) -> ThinWeight:
        """The same values as new leaves."""
        return ThinWeight(
            _leaf(self.outer), _leaf(self.inner), None if self.bias is None else _leaf(self.bias)
        )


@dataclass(frozen=True, slots=True)
class SmallBlock:
    """A block with values: `fresh` gives copies that share no gradient."""

    call: Call
    thin: dict[str, ThinWeight]
    values: dict[int, Tensor] = field(default_factory=dict)

    def fresh(self) -> FreshBlock:
        """A copy to run."""
        memo: dict[int, Any] = {key: _leaf(x) for key, x in self.values.items()}
        module = copy.deepcopy(self.call.module, dict(memo))
        leaves = tree_leaves((self.call.args, self.call.kwargs))
        inputs: dict[int, Tensor] = {id(x): memo[id(x)] for x in leaves if id(x) in memo}
        # Of its own in the block: models change what they are given in place.
        given = {key: x.clone() for key, x in inputs.items()}

        def real(x: Tensor) -> Tensor:
            return given.get(id(x), x)

        return FreshBlock(
            module=module,
            args=tree_map_only(Tensor, real, self.call.args),
            kwargs=tree_map_only(Tensor, real, self.call.kwargs),
            inputs=[x for x in inputs.values() if x.requires_grad],
            thin={path: weight.leaves() for path, weight in self.thin.items()},
            parameters={n: p for n, p in module.named_parameters() if not p.is_meta},
            unused=self.call.unused,
            large=self.call.large,
        )


@dataclass(frozen=True, slots=True)
class FreshBlock:
    """A copy of a block to run once.

    inputs      the tensors that it is called on and whose gradients it makes
    parameters  those that are no thin weight's
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Tensor]
    thin: dict[str, ThinWeight]
    parameters: dict[str, Tensor]
    unused: frozenset[int]
    large: Mapping[str, Output]

    def run(self) -> list[Tensor]:
        """Call it; the tensors of its output that are used."""
        output = self.module(*self.args, **self.kwargs)
        made = [x for x in tree_leaves(output) if isinstance(x, Tensor)]
        return [x for i, x in enumerate(made) if i not in self.unused]


def small_block(call: Call, seed: int, *, thin: bool = True, counts: int = 1) -> SmallBlock:
    """Random values for a block and its inputs; raises TraceError where that takes too much memory.

    thin    keep the linear layers' weights as thin products: not where code beside their own
            forward reads them
    counts  whole numbers are drawn below this: 2 for masks, of which one would hide everything, 1
            for numbers that must not be more than 0
    """
    generator = torch.Generator().manual_seed(seed)
    layers = linear_layers(call.module)
    weights: dict[str, ThinWeight] = {}
    values: dict[int, Tensor] = {}

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    for path, layer in layers.items():
        weight, bias = layer.get_parameter("weight"), layer._parameters.get("bias")
        wide, deep = weight.shape[::-1] if is_transposed(layer) else weight.shape
        weights[path] = ThinWeight(
            draw(wide, _THIN, scale=_THIN**-0.5).requires_grad_(),
            draw(deep, _THIN, scale=deep**-0.5).requires_grad_(),
            None if bias is None else draw(wide).requires_grad_(),
        )
    spared = {id(p) for layer in layers.values() for p in layer.parameters()} if thin else set()
    for path in call.large:
        spared |= {id(p) for p in call.module.get_submodule(path).parameters()}
    owned = list(call.module.parameters()) + list(call.module.buffers())
    for child in call.module.modules():
        owned += [x for x in vars(child).values() if isinstance(x, Tensor)]
    given = [x for x in tree_leaves((call.args, call.kwargs)) if isinstance(x, Tensor)]
    real = {id(x): x for x in (*owned, *given) if x.is_meta and id(x) not in spared}
    size = sum(x.numel() for x in real.values())
    if size > _MOST_ELEMENTS:
        raise TraceError(
            f"{type(call.module).__name__} has {size / 1e9:.2f} G weights and inputs beside its "
            "linear layers: its split cannot be verified here"
        )
    for key, x in real.items():
        values[key] = _value(x, generator, counts)
    if not any(x.requires_grad for x in given):
        first = next((x for x in given if x.is_floating_point() and id(x) in values), None)
        if first is not None:
            values[id(first)].requires_grad_()
    return SmallBlock(call, weights, values)


def _value(x: Tensor, generator: torch.Generator, counts: int) -> Tensor:
    """Of a meta tensor: normal numbers, True with probability a half, whole numbers below
    `counts`."""
    if x.is_complex():
        made = torch.view_as_complex(torch.randn((*x.shape, 2), generator=generator)).to(x.dtype)
    elif x.is_floating_point():
        scale = x.shape[-1] ** -0.5 if x.requires_grad and x.dim() > 1 else 1.0
        scale = 1.0 if not isinstance(x, nn.Parameter) else scale
        made = (torch.randn(x.shape, generator=generator) * scale).to(x.dtype)
    elif x.dtype is torch.bool:
        made = torch.rand(x.shape, generator=generator) < 0.5
    else:
        made = torch.randint(counts, x.shape, generator=generator).to(x.dtype)
    if isinstance(x, nn.Parameter):
        return nn.Parameter(made, requires_grad=x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def _leaf(x: Tensor) -> Tensor:
    made = x.detach().clone()
    if isinstance(x, nn.Parameter):
        return nn.Parameter(made, requires_grad=x.requires_grad)
    return made.requires_grad_(x.requires_grad)


_PRODUCTS = {"linear", "matmul", "__matmul__", "mm", "bmm", "einsum", "_grouped_mm", "grouped_mm"}


@dataclass(slots=True)
class Event:
    """A call of the whole block; `layer` is the path of a linear layer, else "".

    values  of the tensors that it makes or changes;  given  of a linear layer: its input
    inputs, outputs  the tensors, to follow the flow
    """

    name: str
    values: list[Tensor]
    layer: str = ""
    given: Tensor | None = None
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    @property
    def work_flop(self) -> float:
        """Of products with weights and of matrices; 0 for what else there is."""
        if self.layer or self.name in _PRODUCTS:
            return 2.0 * self.values[0].numel() * self.inputs[0].shape[-1]
        if self.name.startswith("conv") and len(self.inputs) > 1:
            weight = self.inputs[1]
            return 2.0 * self.values[0].numel() * weight.numel() / weight.shape[0]
        return 0.0


class Watch(TorchFunctionMode, ABC):
    """Around one run of a fresh block: `called` sees every torch function that is a module's own,
    `layered` every linear layer."""

    def __init__(self, block: FreshBlock) -> None:
        super().__init__()
        self.pauses = 0
        self._stack: list[tuple[str, Counter[str]]] = [("", Counter())]
        for path, child in block.module.named_modules():
            if path in block.thin:
                child.forward = self._layer(path, block.thin[path])
            if path in block.large:
                child.forward = self._large(path, block.large[path])
            child.register_forward_pre_hook(self._enter(path))
            child.register_forward_hook(self._leave, always_call=True)

    @contextmanager
    def paused(self) -> Any:
        """Inside it nothing is seen."""
        self.pauses += 1
        try:
            yield
        finally:
            self.pauses -= 1

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Make the call, the `number`th of this function in this forward of the module."""
        return func(*args, **kwargs)

    def given_whole(self, path: str, inputs: list[Tensor]) -> None:
        """A module begins that stays whole."""

    @abstractmethod
    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        """Run a linear layer."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pauses:
            return func(*args, **(kwargs or {}))
        path, counts = self._stack[-1]
        name = function_name(func)
        number = counts[name]
        counts[name] += 1
        kwargs = dict(kwargs or {})
        if name.rstrip("_").endswith("dropout"):  # another draw in every run
            return args[0] if args else kwargs["input"]
        if kwargs.get("dropout_p"):
            kwargs["dropout_p"] = 0.0
        with self.paused():
            return self.called(func, name, path, number, args, kwargs)

    def _layer(self, path: str, weight: ThinWeight) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with self.paused():
                return self.layered(path, weight, x)

        return forward

    def _large(self, path: str, recipe: Output) -> Callable[..., Any]:
        """In the place of a module with too many weights: random numbers of the right shapes, times
        a number that depends on all of its inputs."""
        generator = torch.Generator().manual_seed(1)
        shapes = [leaf[1] for leaf in recipe.leaves if leaf[0] == "new"]
        drawn = [torch.randn(shape, generator=generator).to(dtype) for shape, dtype, _ in shapes]

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


class Recording(Watch):
    """The run of the whole block: `events` in order."""

    def __init__(self, block: FreshBlock) -> None:
        super().__init__(block)
        self.events: list[Event] = []

    def called(
        self, func: Any, name: str, path: str, number: int, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        out = func(*args, **kwargs)
        made = made_by(name, args, out)
        if made:
            self.events.append(
                Event(
                    name,
                    [x.detach().clone() for x in made],
                    inputs=tensors((args, kwargs)),
                    outputs=made,
                    numbers=integers(args, kwargs),
                )
            )
        return out

    def layered(self, path: str, weight: ThinWeight, x: Tensor) -> Tensor:
        y = product(x, weight)
        event = Event("linear", [y.detach().clone()], path, x.detach().clone(), [x], [y])
        self.events.append(event)
        return y


def product(x: Tensor, weight: ThinWeight) -> Tensor:
    """What a linear layer gives."""
    y = x @ weight.inner @ weight.outer.T
    return y if weight.bias is None else y + weight.bias


_CHANGING = re.compile(
    r"__(setitem|iadd|isub|imul|itruediv|ifloordiv|imod|ipow|imatmul|iand|ior|ixor)__|.*[^_]_"
)


def in_place(name: str) -> bool:
    """Whether a call changes its first argument."""
    return _CHANGING.fullmatch(name) is not None


def made_by(name: str, args: Any, out: Any) -> list[Tensor]:
    """The tensors that a call makes or changes."""
    found = tensors(args[:1]) if in_place(name) else []
    return [*found, *(x for x in tensors(out) if all(x is not y for y in found))]


def tensors(tree: Any) -> list[Tensor]:
    """Those of a nest of values."""
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def recorded(block: FreshBlock) -> tuple[Recording, list[Tensor]]:
    """The run of a whole block, and its outputs."""
    watch = Recording(block)
    with torch.enable_grad(), watch:
        outputs = block.run()
    return watch, outputs
