"""Derive the rules of sequence parallelism from the calls of a model's blocks, and verify them.

Between the layers that tensor parallelism splits, each rank has a share of the tokens (Korthikanti
et al., arXiv 2205.05198, section 4.2.2). This is valid for a block if all calls outside of split
layers work on each token separately: norms, residual sums, activations. To verify it, a block runs
on the last rank's share of its tokens, with values of the whole block in place of exchanges between
ranks. The result of every call must be the rank's share of its result in the whole block.

If a module reads the number of tokens from its input, the tokens are gathered before that module
instead of before its linear layers. The deepest module that works is used.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import product as combinations
from typing import Any

import torch
from torch import Tensor

from profiles.errors import TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import GATHER, JOIN, SPLIT, Rule
from profiles.model.tracing.trace_block_boundaries import (
    container_members,
    cut_candidates,
    repeated,
)
from profiles.model.tracing.trace_derive_tensor_parallel import (
    SEED,
    Derived,
    DerivedBlock,
    starred_rules,
)
from profiles.model.tracing.trace_random_block import (
    Watch,
    product,
    small_block,
    small_runs,
    tensors,
)
from profiles.model.tracing.trace_split_layers import token_shares
from profiles.model.tracing.trace_tensor_parallel_check import (
    NotSplit,
    Recording,
    first_line,
    made_by,
    same,
)

_RANKS = 2
_MOST_LEVELS = 3  # of modules above a linear layer


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The rules of sequence parallelism, or the reason why there are none."""

    rules: tuple[Rule, ...] = ()
    why_not: str = ""


def shared_tokens(built: BuiltModel, derived: Derived) -> SharedTokens:
    """The rules of a model on meta with these rules of tensor parallelism."""
    if not derived.rules:
        return SharedTokens(why_not=derived.why_not(1))
    candidates = cut_candidates(built.module)
    members = container_members(built.module, candidates)
    chain = [path for path in candidates if path in members]
    lists = dict.fromkeys(path.rpartition(".")[0] for path in chain)
    if len(lists) != 1:
        return SharedTokens(why_not=f"its blocks are in {len(lists)} lists ({', '.join(lists)})")
    alike = repeated(built.module, candidates, trusted=True)
    blocks = {block.call.path: block for block in derived.blocks}
    kinds: dict[str, list[str]] = defaultdict(list)
    summed: dict[str, list[str]] = defaultdict(list)
    found: dict[str, _Tokens] = {}
    try:
        for path in chain:
            model = alike.get(path, path)
            if model not in blocks:
                raise NotSplit(f"{path} is never called")
            if model not in found:
                found[model] = _verified(blocks[model])
            for module, argument in found[model].gathers.items():
                kinds[f"{path}.{module}"].append(f"{GATHER} {argument}")
            for name in sorted(found[model].summed):
                summed[f"{path}.{name}"].append("sum_gradient")
    except (NotSplit, TraceError) as error:
        return SharedTokens(why_not=str(error))
    first, last = chain[0], chain[-1]
    ends = ((first, f"{SPLIT} {found[alike.get(first, first)].argument}"), (last, f"{JOIN} 0"))
    modules = [path for path, _ in built.module.named_modules()]
    parameters = [name for name, _ in built.module.named_parameters()]
    gathers = starred_rules(kinds, modules)
    return SharedTokens((*ends, *gathers, *starred_rules(summed, parameters)))


@dataclass(slots=True)
class _Tokens:
    """A block's shares of tokens; paths are relative to the block.

    argument  the block's argument that is a share
    gathers   module -> its argument that is gathered
    summed    parameters whose gradients come from the rank's tokens only
    """

    argument: str
    gathers: dict[str, str] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)


def _verified(block: DerivedBlock) -> _Tokens:
    """The shares of a block's tokens. Raises NotSplit with the call that needs tokens of other
    ranks."""
    place = block.call.path
    with small_runs():
        small = block.small or small_block(block.call, SEED, thin=False)
        whole = Recording(small)
        groups: list[list[str]] = [[]]
        for event in whole.events:
            if block.roles.get(event.layer, ("",))[0] == "row":
                groups.append([])
            elif event.layer in block.roles:
                groups[-1].append(event.layer)
        choices = [_modules_above(layers) for layers in groups if layers]
        calls, why = -1, f"the block {place} calls its split layers itself, not in a module"
        for chosen in combinations(*choices):
            run = _ShareOfTokens(whole, block, chosen)
            try:
                return run.verified()
            except NotSplit as error:
                reason = str(error)
            except Exception as error:  # the model's code does not accept a share
                reason = f"{place} fails on a share of its tokens: {first_line(error)}"
            if run.position > calls:
                calls, why = run.position, reason
    raise NotSplit(why)


def _modules_above(layers: list[str]) -> list[str]:
    """The deepest module with all of these layers, and those above it, without the block."""
    parts = [path.split(".") for path in dict.fromkeys(layers)]
    common = 0
    while common < min(map(len, parts)) and len({p[common] for p in parts}) == 1:
        common += 1
    above = [".".join(parts[0][:n]) for n in range(common, 0, -1)]
    return above[:_MOST_LEVELS]


class _ShareOfTokens(Watch):
    """The run of the last rank on its tokens. `position` is the number of calls that succeeded.

    gathering  modules that gather their tokens
    """

    def __init__(self, whole: Recording, block: DerivedBlock, gathering: tuple[str, ...]) -> None:
        self._place, self._roles = block.call.path, block.roles
        original = whole.original
        given = {str(i): x for i, x in enumerate(original.args)} | original.kwargs
        flowing = {k: x for k, x in given.items() if isinstance(x, Tensor) and x.requires_grad}
        nested = [x for x in tensors(list(given.values())) if x.requires_grad]
        if len(flowing) != 1 or len(nested) != 1:
            raise NotSplit(f"{self._place} takes {len(nested)} outputs of other blocks, not one")
        ((self._argument, hidden),) = flowing.items()
        if hidden.dim() != 3 or hidden.shape[1] % _RANKS:
            raise NotSplit(f"the input of {self._place} is not [batch, tokens, features]")
        own = _own(hidden).detach().clone().requires_grad_()
        args = tuple(own if x is hidden else x for x in original.args)
        kwargs = {k: own if x is hidden else x for k, x in original.kwargs.items()}
        super().__init__(replace(original, args=args, kwargs=kwargs))
        self.position = 0
        self._events, self._hidden = whole.events, hidden.detach()
        self._shares: dict[int, tuple[Tensor, Tensor]] = {}  # id -> (share, whole)
        self._gathered: dict[int, Tensor] = {}
        self._found = _Tokens(self._argument)
        self._on_whole: set[str] = set()
        named = self.module.named_parameters(remove_duplicate=False)
        # id of a weight, or of a tensor that is computed from some -> (it, names)
        self._weights: dict[int, tuple[Tensor, frozenset[str]]] = {
            id(p): (p, frozenset([name])) for name, p in named
        }
        for path in gathering:
            child = self.module.get_submodule(path)
            child.forward = self._gathering(path, child.forward)

    def verified(self) -> _Tokens:
        """Run the block; raises NotSplit."""
        made: list[Any] = []
        self.module.register_forward_hook(lambda module, args, output: made.append(output))
        with torch.enable_grad():
            outputs = self.run()
        (raw,) = made
        first = raw if isinstance(raw, Tensor) else next(iter(raw), None)
        if len(outputs) != 1 or outputs[0] is not first or self._whole_of(outputs[0]) is None:
            raise NotSplit(f"{self._place} returns something other than its tokens")
        if both := sorted(self._found.summed & self._on_whole):
            raise NotSplit(
                f"{self._place}.{both[0]} is called with a share of the tokens and with all"
            )
        return self._found

    def _whole_of(self, x: Tensor) -> Tensor | None:
        """The whole tensor of a share; None for other tensors."""
        if x.requires_grad and any(x is each for each in self.given):
            return self._hidden
        return self._shares.get(id(x), (x, None))[1]

    def _gathering(self, path: str, forward: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            given = {str(i): x for i, x in enumerate(args)} | kwargs
            for key, x in given.items():
                whole = self._whole_of(x) if isinstance(x, Tensor) else None
                if whole is None:
                    continue
                if self._found.gathers.setdefault(path, key) != key:
                    raise NotSplit(f"{self._place}.{path} takes tokens in several arguments")
                with self.paused():
                    full = whole.clone().requires_grad_()
                self._gathered[id(full)] = given[key] = full
            args = tuple(given[str(i)] for i in range(len(args)))
            return forward(*args, **{key: given[key] for key in kwargs})

        return run

    def _next(self, name: str, path: str) -> list[Tensor]:
        """The values of the whole block's call at this position."""
        here = self.position
        if here == len(self._events) or self._events[here].name != name:
            raise NotSplit(f"on a share of the tokens, {path} calls another function (`{name}`)")
        self.position += 1
        return self._events[here].values

    def _note(self, made: list[Tensor], values: list[Tensor], name: str, path: str) -> None:
        """Record results of a call on shares, each a share itself."""
        for x, whole in zip(made, values, strict=True):
            if whole.dim() > 1 and whole.shape[1] % _RANKS == 0 and same(x, _own(whole)):
                self._shares[id(x)] = x, whole
            elif not same(x, whole):
                raise NotSplit(
                    f"`{name}` of {path} needs other tokens than the rank's, and is outside of the "
                    "layers that tensor parallelism splits"
                )

    def called(self, func: Any, name: str, path: str, number: int, args: Any, kwargs: Any) -> Any:
        given = tensors((args, kwargs))
        place = f"{self._place}.{path}" if path else self._place
        on_share = any(self._whole_of(x) is not None for x in given)
        read = [self._weights[id(x)][1] for x in given if id(x) in self._weights]
        weights: frozenset[str] = frozenset().union(*read)
        out = func(*args, **kwargs)
        made = made_by(name, args, out)
        if on_share:
            self._found.summed |= weights
        else:
            self._weights |= {id(x): (x, weights) for x in made}
            self._on_whole |= weights if len(read) < len(given) else set()
        if not made:
            return out
        values = self._next(name, place)
        if on_share:
            self._note(made, values, name, place)
            return out
        pairs = zip(made, values, strict=True)
        if "empty" not in name and not all(same(x, value) for x, value in pairs):
            raise NotSplit(
                f"`{name}` of {place} uses the number of tokens of a rank's share as that of all"
            )
        if any(id(x) in self._gathered for x in given):
            for x in made:
                if x._base is None or not any(x._base is each for each in self._gathered.values()):
                    raise NotSplit(f"`{name}` of {place} reads all tokens, and is not split")
                self._gathered[id(x)] = x
        return out

    def layered(self, path: str, layer: Any, x: Tensor) -> Tensor:
        place = f"{self._place}.{path}"
        (value,) = self._next("linear", place)
        side, shared = self._roles.get(path, ("",))[0], self._whole_of(x) is not None
        if shared and side:
            raise NotSplit(f"{place} is split, and reads a share of the tokens")
        if side == "row":
            own = _own(value).clone()
            self._shares[id(own)] = own, value
            return own
        if side == "column":
            return value.clone().requires_grad_()
        if id(x) in self._gathered:
            raise NotSplit(f"{place} reads all tokens, and is not split")
        y = product(x, layer)
        if shared:
            self._note([y], [value], "linear", place)
            held = [key for key in ("weight", "bias") if layer._parameters.get(key) is not None]
            self._found.summed |= {f"{path}.{key}" for key in held}
        return y

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not self._paused and name.rstrip("_").endswith("dropout"):
            given: tuple[Any, ...] = (*args, *(kwargs or {}).values())
            if self._whole_of(given[0]) is not None and any(0 < p < 1 for p in given[1:2]):
                raise NotSplit(
                    f"dropout of {self._place} draws other numbers for a share of the tokens than "
                    "for all; set its probability to 0"
                )
        return super().__torch_function__(func, types, args, kwargs)


def _own(whole: Tensor) -> Tensor:
    return token_shares(whole, _RANKS)[-1]
