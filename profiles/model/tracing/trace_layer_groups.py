"""Which linear layers of a block may be split together, told from what flows between them.

Cut at its linear layers, a block falls into regions: what query, key and value give meets in the
attention and ends in the output projection; gate and up meet in a product that down reads. A region
that holds neither an input nor an output of the block may work on a share of its features: the
layers that make it are split by columns, those that read it by rows (Megatron-LM, arXiv 1909.08053,
section 3). Whether it can is found by trying (trace_split_trial.py).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise, product

from torch import Tensor

from profiles.model.tracing.trace_split_watch import Event

_MOST_PARTS = 8
_MOST_CHOICES = 12


@dataclass(frozen=True, slots=True)
class Group:
    """Layers to split together, by path, and for each the parts that its weight may have."""

    columns: Mapping[str, tuple[tuple[int, ...], ...]]
    rows: Mapping[str, tuple[tuple[int, ...], ...]]

    @property
    def layers(self) -> frozenset[str]:
        """All of them."""
        return frozenset((*self.columns, *self.rows))

    @property
    def key(self) -> frozenset[str]:
        """Equal for groups that differ in numbers alone: the experts of a list."""
        return frozenset(starred(path) for path in self.layers)

    def choices(self) -> list[dict[str, tuple[str, tuple[int, ...]]]]:
        """The roles to try, plain splits first; layers of one starred path have the same parts."""
        listed = [("column", path, parts) for path, parts in self.columns.items()]
        listed += [("row", path, parts) for path, parts in self.rows.items()]
        found = []
        for chosen in product(*(parts for _, _, parts in listed)):
            found.append(
                {path: (side, own) for (side, path, _), own in zip(listed, chosen, strict=True)}
            )
        return sorted(found, key=lambda r: sum(len(p) > 1 for _, p in r.values()))[:_MOST_CHOICES]


def starred(path: str) -> str:
    """A path with `*` for every number in it."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def layer_groups(
    events: Iterable[Event], inputs: Iterable[Tensor], outputs: Iterable[Tensor]
) -> list[Group]:
    """The groups of a block's run, those with the widest layers first; no layer is in two."""
    events = list(events)
    regions = _Regions()
    made: dict[str, list[Tensor]] = defaultdict(list)
    read: dict[str, list[Tensor]] = defaultdict(list)
    leaves = {id(x) for event in events for x in event.inputs if x.is_leaf}
    for event in events:
        if event.layer:
            made[event.layer] += event.outputs
            read[event.layer] += event.inputs
            continue
        flowing = [x for x in (*event.inputs, *event.outputs) if x.requires_grad]
        regions.join([id(x) for x in flowing if id(x) not in leaves])
    for tensors in (*made.values(), *read.values()):
        regions.join([id(x) for x in tensors])
    barred = {regions.of(id(x)) for x in (*inputs, *outputs) if x.requires_grad}
    ends: dict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, table in enumerate((made, read)):
        for path, tensors in table.items():
            ends[regions.of(id(tensors[0]))][side].append(path)
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


class _Regions:
    """Sets of tensors that flow into each other."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def of(self, key: int) -> int:
        """The same number for all of a region."""
        while self._above.get(key, key) != key:
            key = self._above[key]
        return key

    def join(self, keys: list[int]) -> None:
        """These flow into each other."""
        for key in keys[1:]:
            self._above[self.of(key)] = self.of(keys[0])


Hints = dict[int, tuple[tuple[int, ...], ...]]


def _parts_by_size(events: Iterable[Event]) -> tuple[Hints, Hints]:
    """Of a last dimension of this size: how calls cut it into parts, and join it from parts."""
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


def _note(found: dict[tuple[int, ...], None], size: int, sizes: list[int]) -> None:
    if sum(sizes) == size and 2 <= len(sizes) <= _MOST_PARTS and all(sizes):
        unit = math.gcd(*sizes)
        found[tuple(n // unit for n in sizes)] = None
