"""Flags of `size` as values; all errors are reported together."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from planner.sizing.size_question import MINIMISED
from profiles.errors import InputError, ShardwrightError, UnitError, UnknownNameError
from profiles.hardware.catalogue.catalog import NAME_START
from profiles.units import parse_probability, parse_quantity
from shardwright.options.size_options import SizeOptions

T = TypeVar("T")
OPTIMAL = "optimal"
_ON = re.compile(rf"^(?:(\d+)x)?({NAME_START}[\w.@/-]*)$")
_RANGE = re.compile(r"^(\d+)(?:\.\.(\d+))?$")
MOST_DEVICES = 32768
"""Largest number of devices to consider without a flag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """From the first to the last, inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDevice:
    """An entry of --on: `gb200`, or `8xgb200` for nodes of eight (0: the usual node); or the path
    of a cluster file."""

    name: str
    node_devices: int = 0

    def __str__(self) -> str:
        return f"{self.node_devices}x{self.name}" if self.node_devices else self.name

    @property
    def is_file(self) -> bool:
        """Whether it is the path of a cluster file."""
        return self.name.endswith((".toml", ".json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFlags:
    """The options of `size`, and the values of its texts.

    on                      () for the devices of most providers
    tokens                  None if unknown
    optimal_tokens          those of a scaling law
    deadline_s, budget_usd, nodes, devices  None if not given
    batches                 sequences per step; () for the usual one
    """

    options: SizeOptions
    on: tuple[NamedDevice, ...]
    tokens: float | None = None
    optimal_tokens: bool = False
    deadline_s: float | None = None
    budget_usd: float | None = None
    confidence: float = 0.5
    nodes: Range | None = None
    devices: Range | None = None
    minimise: str = ""
    batches: tuple[int, ...] = ()


class SeveralErrors(InputError):
    """All errors of a request; `said` lists them."""

    def __init__(self, said: Sequence[str]) -> None:
        super().__init__("; ".join(said))
        self.said = tuple(said)


class Faults:
    """Collects errors."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def read(self, read: Callable[[], T], otherwise: T) -> T:
        """The result of `read`, or `otherwise` if it raises an error, which is collected."""
        try:
            return read()
        except ShardwrightError as error:
            self.said.append(str(error))
            return otherwise

    def end(self) -> None:
        """Raises SeveralErrors with all collected errors."""
        if self.said:
            raise SeveralErrors(self.said)


def size_flags(options: SizeOptions) -> SizeFlags:
    """The values of the options.

    Raises SeveralErrors that names every wrong option and every contradiction.
    """
    faults = Faults()
    tokens, deadline, budget = options.tokens, options.deadline, options.budget
    read = SizeFlags(
        options=options,
        on=faults.read(lambda: devices_of(options.on), ()) if options.on else (),
        tokens=faults.read(lambda: _tokens(tokens), None),
        optimal_tokens=tokens == OPTIMAL,
        deadline_s=faults.read(lambda: _quantity(deadline, "time", "--deadline"), None),
        budget_usd=faults.read(lambda: _quantity(budget, "money", "--budget"), None),
        confidence=faults.read(lambda: parse_probability(options.sure, where="--sure"), 0.5),
        nodes=faults.read(lambda: range_of(options.nodes, "--nodes"), None),
        devices=faults.read(lambda: range_of(options.devices, "--devices"), None),
        minimise=faults.read(lambda: _minimised(options.minimise), ""),
        batches=faults.read(lambda: batches_of(options.global_batch), ()),
    )
    faults.said += contradictions(read)
    faults.end()
    return read


def contradictions(read: SizeFlags) -> list[str]:
    """Flags that contradict each other."""
    said, options = [], read.options
    tokens, limits = options.tokens, (options.deadline, options.budget)
    if phases_twice := options.phases is not None and bool(tokens):
        said.append("--tokens and --phases both say how many tokens; leave one out")
    if read.nodes is not None and read.devices is not None:
        said.append("--nodes and --devices both say how many; leave one out")
    unknown = not tokens and options.phases is None and not phases_twice
    if unknown and not any(limits):
        said.append(
            "tokens are unknown and nothing limits them: give --tokens (15T, or optimal), or "
            "--budget or --deadline"
        )
    if unknown and read.minimise:
        said.append(
            f"--minimise {read.minimise} without --tokens: as many tokens as the limits allow are "
            "sought; give --tokens, or leave --minimise out"
        )
    if options.lora < 0:
        said.append(f"--lora {options.lora}: the rank of adapters is 1 or more")
    if options.base_precision and not options.lora:
        said.append(
            f"--base-precision {options.base_precision}: only frozen weights are kept in few bits; "
            "give --lora RANK, or leave it out"
        )
    if options.pue is not None and not 1.0 <= options.pue <= 10.0:
        said.append(f"--pue {options.pue:g}: a site draws 1 to 10 times what its machines do")
    return said


def devices_of(text: str) -> tuple[NamedDevice, ...]:
    """`h100-sxm,8xgb200` as devices; raises InputError."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        if part.endswith((".toml", ".json")):
            found.append(NamedDevice(name=part))
            continue
        match = _ON.match(part)
        if match is None or match.group(1) == "0":
            raise InputError(
                f"--on {part!r} is not a type of device; write h100-sxm, or 8xgb200 for nodes "
                "of eight; their number is part of the answer (limit it with --nodes, --devices)"
            )
        found.append(NamedDevice(name=match.group(2), node_devices=int(match.group(1) or 0)))
    if not found:
        raise InputError("--on names no type of device; write h100-sxm,h200,b200")
    return tuple(dict.fromkeys(found))


def range_of(text: str, flag: str) -> Range | None:
    """`32`, or `16..2048`; None for ""; raises InputError."""
    if not text:
        return None
    match = _RANGE.match(text.replace(",", "").strip())
    if match is None:
        raise InputError(f"{flag} {text!r} is not a count or range; write 32, or 16..2048")
    first, last = int(match.group(1)), int(match.group(2) or match.group(1))
    if not 1 <= first <= last:
        raise InputError(f"{flag} {text}: a range starts at 1 or more and ascends, as 16..2048")
    return Range(first=first, last=last)


def batches_of(text: str) -> tuple[int, ...]:
    """`2048`, `1024,2048`, or `1024..4096` for the powers of two times 1024 between."""
    if not text:
        return ()
    if ".." in text:
        between = range_of(text, "--global-batch")
        assert between is not None
        found, each = [], between.first
        while each <= between.last:
            found.append(each)
            each *= 2
        return tuple(found)
    counts = [parse_quantity(part, "count", where="--global-batch") for part in text.split(",")]
    if any(count < 1 or count != int(count) for count in counts):
        raise UnitError(f"--global-batch {text!r}: must be whole numbers of 1 or more")
    return tuple(int(count) for count in counts)


def _tokens(text: str) -> float | None:
    if not text or text == OPTIMAL:
        return None
    try:
        found = parse_quantity(text, "count", where="--tokens")
    except UnitError as error:
        raise UnitError(f"{error} (tokens are counted: 15T, 300B, 1.5e12, or optimal)") from error
    if found < 1:
        raise UnitError(f"--tokens {text!r}: must be 1 token or more")
    return found


def _quantity(text: str, dimension: str, flag: str) -> float | None:
    return parse_quantity(text, dimension, where=flag, above_0=True) if text else None


def _minimised(text: str) -> str:
    if text and text not in MINIMISED:
        raise UnknownNameError("goal", text, MINIMISED, where="--minimise")
    return text
