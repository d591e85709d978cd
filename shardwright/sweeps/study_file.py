"""A study: the questions of `shardwright sweep`, as a file of grids.

    schema = "shardwright/questions@1"

    [[grids]]                              # questions of `plan` (requests/questions.py)
    models = ["llama-3.1-8b", "llama-3.1-70b"]
    clusters = ["4x8xh100-sxm", "8x8xh200"]
    global_batches = [512, 1024]
    sequence_lengths = [4096, 8192]
    stacks = ["megatron-core", "torchtitan"]
    prices = ["on-demand", "spot", 1.99]
    pins = { tp = "1,2", schedule = "1f1b" }
    options = { optimizer_offload = "yes", local_steps = "1,50" }

    [[sizes]]                              # questions of `size` (`SizeGrid`)
    models = ["llama-3.1-70b"]
    on = ["h100-sxm", "b200"]
    tokens = ["2T", "15T"]
    deadlines = ["30d", "60d"]

Unknown names are reported with their line before anything is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from planner.batch.sweep import Question
from profiles.document import read_document
from profiles.errors import DocumentError, InputError, ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.model.loaders import resolve_model
from profiles.text_file import read_text
from shardwright.options.option import values_of
from shardwright.options.size_options import SizeOptions
from shardwright.requests.file_lines import with_lines
from shardwright.requests.named_model import import_from_here
from shardwright.requests.plan_choices import ANY_STACK
from shardwright.requests.price_request import given_price
from shardwright.requests.questions import Grid, questions_of
from shardwright.requests.sizing.size_flags import SizeFlags, devices_of, size_flags
from simulator.training_run.framework.framework import load_framework

QUESTIONS_SCHEMA = "shardwright/questions@1"
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
    """A grid of requests to `shardwright size`: all combinations of its lists. An empty list omits
    its flag.

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
    """The requests of a grid; raises InputError for an entry that its flag does not accept."""
    shared = SizeOptions(**{name: getattr(grid, name) for name in _SHARED})
    for entries in product(*(getattr(grid, name) or (None,) for name in _FLAGS)):
        texts = {
            name: str(entry)
            for name, entry in zip(_FLAGS.values(), entries, strict=True)
            if entry is not None
        }
        yield size_flags(replace(shared, **values_of(SizeOptions, texts)))


_MOST_FAULTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFile:
    """The content of a file: grids of requests to `plan`, and of requests to `size`."""

    grids: tuple[Grid, ...] = ()
    sizes: tuple[SizeGrid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The questions of a file, in its order."""

    plans: tuple[Question, ...]
    sizes: tuple[SizeFlags, ...]


def read_study(path: Path, *, local: Path | None = None, names: bool = True) -> Study:
    """The questions of a file.

    local  the file of this machine's profile
    names  also look up all names; without, a question with an unknown one fails when it is posed

    Raises DocumentError, with the line, for an unknown key, a wrong value, and (with `names`) an
    unknown model, device, framework or kind of price.
    """
    text = read_text(path)

    def located(fault: str) -> str:
        return with_lines(fault, path, text)

    try:
        file = read_document(path, StudyFile, schema=QUESTIONS_SCHEMA)
    except ShardwrightError as error:
        raise DocumentError(located(str(error))) from error
    if not file.grids and not file.sizes:
        raise DocumentError(
            f"{path} has neither [[grids]] nor [[sizes]], so there is nothing to answer"
        )
    faults = _unknown_names(file, local) if names else []
    plans: list[Question] = []
    sizes: list[SizeFlags] = []
    if not faults:
        for number, grid in enumerate(file.grids):
            with _noted(faults, f"grids[{number}]"):
                plans += questions_of(grid, local=local)
        for number, asked in enumerate(file.sizes):
            with _noted(faults, f"sizes[{number}]"):
                sizes += flags_of(asked)
    if faults:
        more = len(faults) - _MOST_FAULTS
        texts = [located(fault) for fault in faults[:_MOST_FAULTS]]
        raise DocumentError("\n".join([*texts, *([f"and {more} more"] if more > 0 else [])]))
    return Study(plans=tuple(plans), sizes=tuple(sizes))


def _unknown_names(file: StudyFile, local: Path | None) -> list[str]:
    """Error messages for unknown names, each with its place."""
    faults: list[str] = []

    def look(place: str, entries: tuple[object, ...], read: Callable[[str], object]) -> None:
        for entry in entries:
            with _noted(faults, place):
                read(str(entry))

    for number, grid in enumerate(file.grids):
        where = f"grids[{number}]"
        look(f"{where}.models", grid.models, _model)
        look(f"{where}.clusters", grid.clusters, lambda on: get_cluster(on, local=local))
        look(f"{where}.prices", grid.prices, given_price)
        look(f"{where}.stack", (grid.stack,) if grid.stack else (), load_framework)
        look(f"{where}.stacks", grid.stacks, load_framework)
    for number, asked in enumerate(file.sizes):
        where = f"sizes[{number}]"
        look(f"{where}.models", asked.models, _model)
        look(f"{where}.on", asked.on, _devices)
        look(f"{where}.prices", asked.prices, given_price)
        named = tuple(one for text in asked.stacks for one in text.split(",") if one)
        look(f"{where}.stacks", named, _framework)
    return faults


@contextmanager
def _noted(faults: list[str], place: str) -> Iterator[None]:
    """Context that adds an error to `faults`, with its place."""
    try:
        yield
    except ShardwrightError as error:
        faults.append(f"{place}: {error}")


def _model(name: str) -> None:
    import_from_here(name)
    resolve_model(name)


def _devices(text: str) -> None:
    for named in devices_of(text):
        get_device(named.name)


def _framework(name: str) -> None:
    if name.strip() != ANY_STACK:
        load_framework(name.strip())
