"""One tensor-parallel rank's part of a model: its weights, and the sizes in the model's code.

A column-split linear layer has a share of the output features, a row-split one of the input
features (Megatron-LM, arXiv 1909.08053, section 3). If query, key and value share one weight, a
rank has a part of each: features are reordered to [rank, part, feature] and then split evenly. Of
embedding and head, a rank has the rows of its part of the vocabulary.

`q.view(batch, length, self.num_heads, self.head_dim)` uses the number of all heads, but a rank has
only some of them. In modules with `local_sizes` rules, such numbers are divided by tp during the
call, so that the model's code runs on local shapes. `trace_pass.py` adds the all-reduces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from profiles.errors import TraceError
from profiles.model.building.tensor_parallel_rules import (
    HEAD,
    TABLE,
    LocalSizes,
    Rule,
    UnevenSizeError,
    is_transposed,
    local_sizes_of,
    matches,
    shares_tokens,
    split_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """The parts of a model that are split over tensor-parallel ranks.

    rules    path of a split module -> `column`, `row`, TABLE or HEAD
    splits   name of a split parameter -> dimension, and proportions of adjacent parts in it
    padding  padding index of a split embedding: the token without a gradient
    tokens   path of a module that gathers or produces shares of the tokens -> the rule's kind
    summed   parameters whose gradients are summed over the ranks
    """

    tp: int
    summed: set[str] = field(default_factory=set)
    tokens: list[tuple[str, str]] = field(default_factory=list)
    padding: dict[str, int | None] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    splits: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)

    def rule_of(self, path: str) -> str:
        """`column`, `row`, TABLE, HEAD or ""."""
        return self.rules.get(path, "")

    @property
    def splits_logits(self) -> bool:
        """Whether a rank has only the logits of its part of the vocabulary."""
        return HEAD in self.rules.values()

    def full_shape(self, name: str, local: tuple[int, ...]) -> tuple[int, ...]:
        """The shape over the whole tp group."""
        dim = self.splits[name][0] if name in self.splits else None
        return tuple(n * self.tp if i == dim else n for i, n in enumerate(local))

    def share(self, whole: Tensor, name: str, rank: int) -> Tensor:
        """A rank's share of a parameter, or of its gradient."""
        if name not in self.splits:
            return whole
        dim, parts = self.splits[name]
        return share_of(whole, parts, self.tp, rank, dim)


def shard(model: nn.Module, rules: Iterable[Rule], tp: int) -> Sharding:
    """Replace the weights of split layers, as far as the model has them, by empty tensors with the
    size of one rank's share.

    Raises TraceError for features that tp does not divide.
    """
    made = Sharding(tp=tp)
    if tp == 1:
        return made
    rules = tuple(rules)
    for path, module in model.named_modules():
        for pattern, kind in rules:
            side, parts = split_of(kind)
            if side and matches(pattern, path) and module._parameters.get("weight") is not None:
                made.rules[path] = side
                _shard_layer(path, module, side, parts, made)
            if shares_tokens(kind) and matches(pattern, path):
                made.tokens.append((path, kind))
    sums = [pattern for pattern, kind in rules if kind == "sum_gradient"]
    for name, _ in model.named_parameters() if sums else ():
        if any(matches(pattern, name) for pattern in sums):
            made.summed.add(name)
    _shard_vocabulary(model, rules, made)
    use_local_sizes(model, rules, tp)
    return made


def _shard_layer(
    path: str, module: nn.Module, side: str, parts: tuple[int, ...], made: Sharding
) -> None:
    transposed, columns = is_transposed(module), side == "column"
    split = {"weight": split_dim(side, transposed), **({"bias": 0} if columns else {})}
    for key, dim in split.items():
        whole = module._parameters.get(key)
        if whole is None:
            continue
        try:
            part_sizes(whole.shape[dim], parts, made.tp)
        except UnevenSizeError as error:
            raise TraceError(f"{path}.{key}, dimension {dim}: {error}") from error
        shape = list(whole.shape)
        shape[dim] //= made.tp
        module._parameters[key] = _empty(whole, tuple(shape))
        made.splits[f"{path}.{key}"] = dim, parts
    names = ("nx", "nf") if transposed else ("in_features", "out_features")
    setattr(module, names[columns], module.get_parameter("weight").shape[split["weight"]])


def _shard_vocabulary(model: nn.Module, rules: tuple[Rule, ...], made: Sharding) -> None:
    """Split embeddings and head by the vocabulary, if tp divides its size. Parameters that they
    share with each other or with other modules stay shared."""
    shares: dict[nn.Parameter, nn.Parameter] = {}
    for path, module in model.named_modules():
        kinds = [kind for pattern, kind in rules if kind in (TABLE, HEAD) and path == pattern]
        weight = module._parameters.get("weight")
        if not kinds or weight is None or weight.shape[0] % made.tp:
            continue
        words = weight.shape[0]
        made.rules[path] = kinds[0]
        for whole in module.parameters(recurse=False):
            if whole not in shares and whole.shape[0] == words:
                shares[whole] = _empty(whole, (words // made.tp, *whole.shape[1:]))
        if isinstance(module, nn.Embedding):
            made.padding[path] = module.padding_idx
            module.num_embeddings, module.padding_idx = words // made.tp, None
        else:
            module.out_features = words // made.tp
    for path, module in model.named_modules():
        for key, p in module._parameters.items():
            if p in shares:
                module._parameters[key] = shares[p]
                made.splits[f"{path}.{key}" if path else key] = 0, (1,)


def _empty(like: torch.Tensor, shape: tuple[int, ...]) -> nn.Parameter:
    made = torch.empty(shape, dtype=like.dtype, device=like.device)
    return nn.Parameter(made, requires_grad=like.requires_grad)


def part_sizes(size: int, parts: tuple[int, ...], tp: int) -> list[int]:
    """Features of each part; raises UnevenSizeError if they or their shares are uneven."""
    unit, rest = divmod(size, sum(parts))
    sizes = [unit * part for part in parts]
    if rest or any(n % tp for n in sizes):
        of = f" {len(parts)} parts of" if len(parts) > 1 else ""
        raise UnevenSizeError(f"tp={tp} does not divide{of} {size}")
    return sizes


def _order(x: Tensor, parts: tuple[int, ...], tp: int, dim: int) -> Tensor:
    """Indices of the features of `dim` in the order [rank, part, feature].

    Raises UnevenSizeError if the ranks' shares are uneven.
    """
    size = x.shape[dim]
    own = torch.arange(size, device=x.device).split(part_sizes(size, parts, tp))
    return torch.cat([part.chunk(tp)[rank] for rank in range(tp) for part in own])


def share_of(x: Tensor, parts: tuple[int, ...], tp: int, rank: int, dim: int) -> Tensor:
    """A rank's share of dimension `dim`."""
    return x.index_select(dim, _order(x, parts, tp, dim).chunk(tp)[rank])


def split_dim(side: str, transposed: bool) -> int:
    """The dimension of the weight that a `column` or `row` layer splits."""
    return int((side == "column") == transposed)


def use_local_sizes(model: nn.Module, rules: tuple[Rule, ...], tp: int) -> None:
    """Let every module with `local_sizes` rules run on one rank's sizes."""
    for path, module in list(model.named_modules()):
        sizes = local_sizes_of(path, rules)
        if sizes:
            _wrap(path, module, sizes, tp)


def _wrap(path: str, module: nn.Module, sizes: LocalSizes, tp: int) -> None:
    original = module.forward
    mode: _Divided | None = None

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal mode
        mode = _Divided(path, sizes, tp)
        with mode:
            return original(*args, **kwargs)

    def enter(*args: Any) -> None:
        if mode is not None:
            mode.depth += 1

    def leave(*args: Any) -> None:
        if mode is not None:
            mode.depth -= 1

    for child in module.modules():
        if child is not module:  # calls of its children do not count
            child.register_forward_pre_hook(enter)
            child.register_forward_hook(leave, always_call=True)
    module.forward = forward


class _Divided(TorchFunctionMode):
    """Divides sizes during one forward of a module; `depth` is the number of running children."""

    def __init__(self, path: str, sizes: LocalSizes, tp: int) -> None:
        super().__init__()
        self.depth = 0
        self._path = path
        self._sizes, self._tp = sizes, tp
        self._counts: Counter[str] = Counter()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not self.depth:
            name = function_name(func)
            number = self._counts[name]
            self._counts[name] += 1
            positions = self._sizes.get((name, number))
            if positions is not None:
                try:
                    args, kwargs = divided(args, kwargs or {}, positions, self._tp)
                except UnevenSizeError as error:
                    place = self._path or "the model"
                    raise UnevenSizeError(f"{error}, a size in `{name}` of {place}") from error
        return func(*args, **(kwargs or {}))


def function_name(func: Any) -> str:
    """The name of a torch function, without spaces."""
    return str(getattr(func, "__name__", func)).replace(" ", "_")


def integers(args: Any, kwargs: Any) -> list[int]:
    """The integers in a call's arguments in order, including those in lists and slices."""
    found: list[int] = []

    def note(value: int) -> int:
        found.append(value)
        return value

    _mapped((args, kwargs), note)
    return found


def divided(args: Any, kwargs: Any, positions: tuple[int, ...], tp: int) -> tuple[Any, Any]:
    """The arguments with the integers at these positions divided by tp; raises UnevenSizeError if
    one is not divisible."""
    places = count()

    def divide(value: int) -> int:
        if next(places) not in positions:
            return value
        if value % tp:
            raise UnevenSizeError(f"tp={tp} does not divide {value}")
        return value // tp

    made: tuple[Any, Any] = _mapped((args, kwargs), divide)
    return made


def _mapped(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, int):
        return change(value)
    if isinstance(value, dict):
        return {key: _mapped(x, change) for key, x in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(x, change) for x in (value.start, value.stop, value.step)))
    if type(value) in (tuple, list, torch.Size):
        made = [_mapped(x, change) for x in value]
        return made if isinstance(value, list) else tuple(made)
    return value
