"""`SizeGrid`: questions of `size` as lists of what its flags take; every combination is one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from profiles.errors import InputError
from shardwright.options.option import values_of
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.size_flags import SizeFlags, size_flags

# Lists of a grid, with the option of `size` that takes one of their entries; the first outermost.
_FLAGS = {
    "models": "model",
    "on": "on",
    "tokens": "tokens",
    "deadlines": "deadline",
    "budgets": "budget",
    "nodes": "nodes",
    "devices": "devices",
    "stacks": "stack",
    "global_batches": "global_batch",
    "sequence_lengths": "seq",
    "precisions": "precision",
    "prices": "price",
}
_SHARED = ("sure", "minimise", "lora", "pue", "region", "network")
_NEEDED = ("models", "on")


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeGrid:
    """Every combination of the lists is a question of `shardwright size`; an empty list leaves its
    flag out.

    on      types of devices, each entry as --on takes it (`h100-sxm`, `h100-sxm,b200`)
    nodes, devices   counts and ranges (`64`, `16..2048`)
    prices  kinds of the price table, or US dollars per device-hour
    sure    probability with which every limit must be kept
    """

    models: tuple[str, ...]
    on: tuple[str, ...]
    tokens: tuple[str | int | float, ...] = ()
    deadlines: tuple[str, ...] = ()
    budgets: tuple[str, ...] = ()
    nodes: tuple[str | int, ...] = ()
    devices: tuple[str | int, ...] = ()
    stacks: tuple[str, ...] = ("",)
    global_batches: tuple[str | int, ...] = ()
    sequence_lengths: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    prices: tuple[str | float, ...] = ("on-demand",)
    sure: str = "50%"
    minimise: str = ""
    lora: int = 0
    pue: float | None = None
    region: str = ""
    network: str = ""

    def __post_init__(self) -> None:
        for name in _NEEDED:
            if not getattr(self, name):
                raise InputError(f"{name} is empty: a grid needs one entry at least")


def flags_of(grid: SizeGrid) -> Iterator[SizeFlags]:
    """The questions of a grid; raises InputError for an entry that its flag does not take."""
    shared = SizeOptions(**{name: getattr(grid, name) for name in _SHARED})
    for entries in product(*(getattr(grid, name) or (None,) for name in _FLAGS)):
        texts = {
            name: str(entry)
            for name, entry in zip(_FLAGS.values(), entries, strict=True)
            if entry is not None
        }
        yield size_flags(replace(shared, **values_of(SizeOptions, texts)))
