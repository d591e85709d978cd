"""Derive tensor-parallel rules from the calls of a model, and verify them.

If the data flow of a block is cut at its linear layers, it has several connected regions: the
outputs of query, key and value meet in the attention, whose result the output projection reads;
gate and up meet in a product that down reads. A region without an input or output of the block may
work on a share of its features: layers that write to it are split by columns, layers that read it
by rows (Megatron-LM, arXiv 1909.08053, section 3). Every such group of layers is tried and verified
(trace_tensor_parallel_check.py), independent of the names of layers and classes.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise, product

from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from profiles.errors import TraceError
from profiles.model.activity import doing
from profiles.model.building.build import BuiltModel
from profiles.model.building.tensor_parallel_rules import Rule, fused, matches
from profiles.model.tracing.trace_random_block import (
    Call,
    SmallBlock,
    block_calls,
    linear_layers,
    small_block,
    small_runs,
    tensors,
    whole_model_call,
)
from profiles.model.tracing.trace_tensor_parallel_check import (
    Event,
    NotSplit,
    Recording,
    check_split,
    first_line,
    local_sizes,
)
from profiles.model.tracing.trace_vocabulary import VocabularyWatch

Parts = tuple[int, ...]
_DERIVED_FOR = 2
SEED = 11
_REASONS = 2
_SMALL_MODEL = 2**26
_LEAST_SIDE = 4  # of a part of an image, in pixels
_LEAST_SHARE = 0.1
"""Minimum share of the blocks' work in split layers: below it, ranks mostly repeat each other."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The rules of a model, () if none is valid.

    whole    reasons for the layers that stay whole on every rank
    blocks   verified splits, to verify them for further degrees
    """

    rules: tuple[Rule, ...]
    whole: tuple[str, ...]
    blocks: tuple[DerivedBlock, ...] = ()

    def why_not(self, tp: int) -> str:
        """Why the model cannot be split over `tp` ranks (1: over any number), or ""."""
        if not self.rules:
            return "; ".join(self.whole[:_REASONS]) or "no linear layer feeds another in its blocks"
        try:
            for block in self.blocks if tp not in (1, _DERIVED_FOR) else ():
                if block.small is not None and block.roles:
                    with small_runs():
                        check_split(Recording(block.small), block.roles, block.sizes, tp)
        except NotSplit as error:
            why = str(error)
            return why if why.startswith("tp=") else f"tp={tp} does not work: {why}"
        return ""


@dataclass(slots=True)
class DerivedBlock:
    """The split of one distinct block; paths are relative to the block.

    sizes       its `local_sizes` rules
    summed      parameters with gradients summed over the ranks
    called      linear layers that ran
    work_flop, split_flop   FLOPs of a forward of the block, and of its split layers
    """

    call: Call
    small: SmallBlock | None = None
    roles: dict[str, tuple[str, Parts]] = field(default_factory=dict)
    sizes: tuple[Rule, ...] = ()
    summed: tuple[str, ...] = ()
    called: frozenset[str] = frozenset()
    work_flop: float = 0.0
    split_flop: float = 0.0
    why_whole: list[str] = field(default_factory=list)


def derive_rules(built: BuiltModel) -> Derived:
    """The rules of a model on meta."""
    try:
        with VocabularyWatch.of(built) as vocabulary:
            calls, traced_as = block_calls(vocabulary.noting)
        layered = [call for call in calls if len(linear_layers(call.module)) > 1]
        blocks = [_derived(_on_part_of_image(call)) for call in layered]
        if any(block.roles for block in blocks):
            blocks += [_unsplit(call) for call in calls if call not in layered]
        size = sum(p.numel() for p in built.module.parameters())
        few = not layered and len(linear_layers(built.module)) > 1
        if few and size <= _SMALL_MODEL:
            traced_as = {}
            blocks.append(_derived(whole_model_call(built)))
    except TraceError as error:
        return Derived((), (str(error),))
    reasons = tuple(dict.fromkeys(why for block in blocks for why in block.why_whole))
    repeats = Counter(traced_as.values())
    work = sum(block.work_flop * (1 + repeats[block.call.path]) for block in blocks)
    split = sum(block.split_flop * (1 + repeats[block.call.path]) for block in blocks)
    if split and split < _LEAST_SHARE * work:
        share = f"the linear layers that can be split do {split / work:.0%} of its blocks' work"
        return Derived((), (share, *reasons))
    rules = _rules(built.module, blocks, traced_as)
    return Derived((*rules, *vocabulary.rules()) if rules else (), reasons, tuple(blocks))


def _derived(call: Call) -> DerivedBlock:
    why = ""
    with small_runs(), doing(lambda: f"tensor parallelism of {call.path or 'the model'}"):
        for thin in (True, False):  # not thin: weights that other code reads must have values
            try:
                return _split(small_block(call, SEED, thin=thin))
            except Exception as error:  # an error of the model's code means no tensor parallelism
                known = isinstance(error, (NotSplit, TraceError))
                why = why or (str(error) if known else f"{type(error).__name__}: {error}")
    return DerivedBlock(call, why_whole=[why.partition("\n")[0]])


def _unsplit(call: Call) -> DerivedBlock:
    """A block with fewer than two linear layers, which cannot be split; FLOPs from shapes."""
    try:
        return DerivedBlock(call, work_flop=sum(flop for _, flop in _works(call)))
    except Exception:
        return DerivedBlock(call)


def _works(call: Call) -> list[tuple[str, float]]:
    """The name and FLOPs of all functions that a block calls, from shapes."""
    whole = Recording(SmallBlock(call, call.module, call.args, call.kwargs))
    return [(event.name, event.work_flop) for event in whole.events]


def _on_part_of_image(call: Call) -> Call:
    """The call on smaller images [batch, channels, height, width], for speed. The call itself, if
    the block then calls other functions or their FLOPs are not proportional."""
    sizes = {tuple(x.shape[2:]) for x in tensors((call.args, call.kwargs)) if x.requires_grad}
    (whole,) = sizes if len(sizes) == 1 else ((),)
    own = [next(n for n in (*range(_LEAST_SIDE, size, 2), size) if size % n == 0) for size in whole]
    if len(own) != 2 or call.large or not call.path:
        return call
    part = math.prod(own) / math.prod(whole)

    def cut(x: Tensor) -> Tensor:
        return x[..., : own[0], : own[1]] if x.shape[2:] == whole else x

    args, kwargs = tree_map_only(Tensor, cut, (call.args, call.kwargs))
    smaller = replace(call, args=args, kwargs=kwargs, part=part)
    try:
        pairs = zip(_works(smaller), _works(call), strict=True)
        alike = all(a == b and math.isclose(x, part * y) for (a, x), (b, y) in pairs)
    except Exception:  # its code accepts only this size
        return call
    return smaller if alike else call


def _split(small: SmallBlock) -> DerivedBlock:
    """The block with as many split groups of layers as possible."""
    path = small.call.path
    try:
        whole = Recording(small)
    except Exception as error:
        raise NotSplit(f"{path or 'the model'} does not run alone: {first_line(error)}") from error
    outputs = whole.outputs
    if not all(bool(x.isfinite().any()) for x in outputs if x.is_floating_point() and x.numel()):
        raise NotSplit(f"{path} has no finite output on random numbers")
    # Layers whose weights are read outside their forward stay whole.
    read = {id(x) for event in whole.events if not event.layer for x in event.inputs}
    layers = linear_layers(whole.module).items()
    shared = {name for name, layer in layers if any(id(p) in read for p in layer.parameters())}
    found = DerivedBlock(small.call, called=frozenset(event.layer for event in whole.events))
    works = [(event.layer, event.work_flop) for event in whole.events]
    alike: dict[frozenset[str], list[Group]] = defaultdict(list)
    for group in layer_groups(whole.events, whole.given, outputs):
        if not group.layers & shared:
            alike[group.key].append(group)
    for groups in alike.values():
        calls, why = -1, ""
        for chosen in zip(*(group.choices() for group in groups), strict=False):
            roles = found.roles | dict(item for own in chosen for item in own.items())
            try:
                sizes = local_sizes(whole, roles, _DERIVED_FOR)
                found.summed = check_split(whole, roles, sizes, _DERIVED_FOR)
                found.small, found.roles, found.sizes = small, roles, sizes
                break
            except NotSplit as error:
                worked = error.calls or len(whole.events)
                if worked >= calls:
                    calls, why = worked, f"in {path}: {error}" if path else str(error)
        else:
            found.why_whole.append(why)
    found.work_flop = sum(flop for _, flop in works) / small.call.part
    found.split_flop = sum(f for layer, f in works if layer in found.roles) / small.call.part
    return found


# --- rules of the model ---------------------------------------------------------------------------


def _rules(
    module: nn.Module, blocks: list[DerivedBlock], traced_as: dict[str, str]
) -> tuple[Rule, ...]:
    """The rules of all blocks and their repeats, with `*` for numbers if that is equivalent."""
    layers: dict[str, list[str]] = defaultdict(list)
    summed: dict[str, list[str]] = defaultdict(list)
    for found in blocks:
        top = found.call.path
        for member in (top, *(path for path, model in traced_as.items() if model == top)):
            for path, (side, parts) in _with_siblings(found).items():
                layers[_join(member, path)].append(fused(side, parts))
            for path, kind in found.sizes:
                layers[_join(member, path)].append(kind)
            for name in found.summed:
                summed[_join(member, name)].append("sum_gradient")
    modules = [path for path, _ in module.named_modules()]
    parameters = [name for name, _ in module.named_parameters()]
    return (*starred_rules(layers, modules), *starred_rules(summed, parameters))


def starred_rules(kinds: dict[str, list[str]], every: list[str]) -> list[Rule]:
    """The rules of these paths among `every` path, with `*` for numbers if that is equivalent."""
    rules: dict[Rule, None] = {}
    patterns = {starred(path) for path in kinds}
    others: dict[str, list[list[str]]] = defaultdict(list)
    for path in every:
        for pattern in patterns if starred(path) not in patterns else (starred(path),):
            if matches(pattern, path):
                others[pattern].append(kinds.get(path, []))
    for path, own in kinds.items():
        pattern = starred(path)
        alike = all(other == own for other in others[pattern])
        for kind in own:
            rules[pattern if alike else path, kind] = None
    return list(rules)


def _with_siblings(block: DerivedBlock) -> dict[str, tuple[str, Parts]]:
    """The roles, extended to linear layers that were not called: experts are split like the called
    experts of their list."""
    layers = linear_layers(block.call.module)
    roles = dict(block.roles)
    for path in set(layers) - block.called:
        for model, role in block.roles.items():
            if _siblings(path, model) and layers[path].weight.shape == layers[model].weight.shape:
                roles[path] = role
    return roles


def _siblings(path: str, other: str) -> bool:
    """Whether two paths differ in one number: the same layer of two experts of a list."""
    pairs = zip(path.split("."), other.split("."), strict=False)
    return starred(path) == starred(other) and sum(a != b for a, b in pairs) == 1


def _join(above: str, path: str) -> str:
    return f"{above}.{path}" if above and path else above or path


def starred(path: str) -> str:
    """A path with `*` for every number in it."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


# --- groups of layers -----------------------------------------------------------------------------

_MOST_PARTS = 8
_MOST_CHOICES = 12


@dataclass(frozen=True, slots=True)
class Group:
    """Layers to split together, by path, with the candidate parts of each weight."""

    columns: Mapping[str, tuple[Parts, ...]]
    rows: Mapping[str, tuple[Parts, ...]]

    @property
    def layers(self) -> frozenset[str]:
        """All layers of the group."""
        return frozenset((*self.columns, *self.rows))

    @property
    def key(self) -> frozenset[str]:
        """A key, equal for groups that differ only in numbers, such as the experts of a list."""
        return frozenset(starred(path) for path in self.layers)

    def choices(self) -> list[dict[str, tuple[str, Parts]]]:
        """Candidate roles, plain splits first."""
        columns = [[(path, ("column", own)) for own in ps] for path, ps in self.columns.items()]
        rows = [[(path, ("row", own)) for own in ps] for path, ps in self.rows.items()]
        found = [dict(chosen) for chosen in product(*columns, *rows)]
        return sorted(found, key=lambda r: sum(len(p) > 1 for _, p in r.values()))[:_MOST_CHOICES]


def layer_groups(
    events: Iterable[Event], inputs: Iterable[Tensor], outputs: Iterable[Tensor]
) -> list[Group]:
    """Disjoint groups of a block's layers, widest layers first."""
    import networkx as nx

    events = list(events)
    regions = nx.Graph()  # of ids of tensors; a connected component is a region
    made: dict[str, list[Tensor]] = defaultdict(list)
    read: dict[str, list[Tensor]] = defaultdict(list)
    leaves = {id(x) for event in events for x in event.inputs if x.is_leaf}
    for event in events:
        if event.layer:
            made[event.layer] += event.outputs
            read[event.layer] += event.inputs
            continue
        flowing = [x for x in (*event.inputs, *event.outputs) if x.requires_grad]
        nx.add_path(regions, [id(x) for x in flowing if id(x) not in leaves])
    for own in (*made.values(), *read.values()):
        nx.add_path(regions, [id(x) for x in own])
    region_of = {key: n for n, keys in enumerate(nx.connected_components(regions)) for key in keys}
    barred = {region_of.get(id(x)) for x in (*inputs, *outputs) if x.requires_grad}
    ends: dict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, table in enumerate((made, read)):
        for path, own in table.items():
            ends[region_of[id(own[0])]][side].append(path)
    sizes = {e.layer: e.outputs[0].shape[-1] for e in events if e.layer}
    widths = {e.layer: e.inputs[0].shape[-1] for e in events if e.layer}
    hints = _parts_by_size(events)
    groups = [
        Group(
            {path: ((1,), *hints[0].get(sizes[path], ())) for path in columns},
            {path: ((1,), *hints[1].get(widths[path], ())) for path in rows},
        )
        for region, (columns, rows) in ends.items()
        if columns and rows and region not in barred and not set(columns) & set(rows)
    ]

    def weight(group: Group) -> int:
        return sum(sizes[path] * widths[path] for path in group.layers)

    taken: set[str] = set()
    kept = []
    for group in sorted(groups, key=weight, reverse=True):
        if not taken & group.layers:
            taken |= group.layers
            kept.append(group)
    return kept


Hints = dict[int, tuple[tuple[int, ...], ...]]


def _parts_by_size(events: Iterable[Event]) -> tuple[Hints, Hints]:
    """Size of a last dimension -> how calls split it into parts, and how they join it from
    parts."""
    cut: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
    joined: dict[int, dict[tuple[int, ...], None]] = defaultdict(dict)
    borders: dict[int, set[int]] = defaultdict(set)
    for event in events:
        if event.layer or not event.inputs or not event.outputs or not event.inputs[0].dim():
            continue
        size, made = event.inputs[0].shape[-1], [x.shape for x in event.outputs]
        if event.name in ("split", "chunk", "tensor_split", "split_with_sizes", "unsafe_chunk"):
            _note(cut[size], size, [shape[-1] for shape in made])
        elif event.name in ("view", "reshape", "unflatten"):
            for part in made[0][-4:]:
                if 2 <= part <= _MOST_PARTS and math.prod(made[0][-4:]) >= size:
                    _note(cut[size], size, [size // part] * part)
        elif event.name == "__getitem__" and made[0] and made[0][-1] < size:
            borders[size] |= {n for n in event.numbers if 0 < n < size}
        elif event.name in ("cat", "concat") and made[0]:
            _note(joined[made[0][-1]], made[0][-1], [x.shape[-1] for x in event.inputs])
    for size, found in borders.items():
        ends = [0, *sorted(found), size]
        _note(cut[size], size, [b - a for a, b in pairwise(ends)])
    return (
        {size: tuple(parts) for size, parts in cut.items()},
        {size: tuple(parts) for size, parts in joined.items()},
    )


def _note(splits: dict[tuple[int, ...], None], size: int, sizes: list[int]) -> None:
    if sum(sizes) == size and 2 <= len(sizes) <= _MOST_PARTS and all(sizes):
        unit = math.gcd(*sizes)
        splits[tuple(n // unit for n in sizes)] = None
