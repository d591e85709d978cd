"""Job and answer of one rank, and long measurements in parts that can be resumed.

Each part is written to disk at once; an interrupted measurement continues with the first missing
part. A virtual machine shares its cores: within minutes the reference kernels took 1.8 times as
long (two cores, AMD EPYC, 2026-11-22). So each part is scaled to the median speed of all parts, by
the reference kernels timed before and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from profiles.document import decode, encode, read_mapping, to_json, write_text
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.device import HostPoint, ReferencePoint
from profiles.hardware.probe.cpu_clock import Sample
from profiles.hardware.probe.probe_cases import Case
from profiles.hardware.probe.probe_timing import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """The cases for every rank, and their effort."""

    cases: tuple[Case, ...]
    effort: Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Memory of a rank's device; name and power limit of an NVIDIA GPU, otherwise "" and None.

    reserved_bytes  in use before any tensor is made
    memory_bytes    0 on a CPU, whose devices share the machine's memory
    """

    reserved_bytes: int = 0
    memory_bytes: int = 0
    name: str = ""
    power_w: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAnswer:
    """The measurements of one rank.

    samples     per case, in the order of the cases; none for a case without this rank
    before, references   reference kernels before and after the cases; none on a GPU
    rounds      [windows][rounds] seconds of a reference kernel; all ranks begin a round together
    """

    samples: tuple[tuple[Sample, ...], ...]
    machine: DeviceFacts = DeviceFacts()
    before: tuple[ReferencePoint, ...] = ()
    references: tuple[ReferencePoint, ...] = ()
    rounds: tuple[tuple[float, ...], ...] = ()
    host: tuple[HostPoint, ...] = ()


Answers = tuple[RankAnswer, ...]
# Workers start anew for each part (about 4 s): a full probe of 2,400 visits has ten parts.
_CASES_PER_PART = 240


def in_parts(
    cases: Sequence[Case],
    measure: Callable[[Sequence[Case], int], Answers],
    *,
    question: str,
    kept: Path | None,
) -> list[Answers]:
    """The answers of all ranks, part by part.

    measure   measures some cases; the number is the index of the first
    question  hash of cases, effort and machine: a file with another hash is ignored
    kept      file of the finished parts, deleted by the caller; None writes no file
    """
    parts = _read(kept, question)
    size = len(cases) if kept is None else _CASES_PER_PART
    for begin in range(len(parts) * size, len(cases), size):
        parts.append(measure(cases[begin : begin + size], begin))
        if kept is not None:
            write_text(kept, to_json({"question": question, "parts": encode(parts)}))
    return parts


def _read(kept: Path | None, question: str) -> list[Answers]:
    if kept is None or not kept.is_file():
        return []
    try:
        found = read_mapping(kept)
        same = found.get("question") == question
        return list(decode(tuple[Answers, ...], found["parts"], where=str(kept))) if same else []
    except ShardwrightError:
        return []


# The reference kernel that slows down like the ops of a family. Messages depend on two ranks and on
# the system's threads: they are not scaled.
_KERNEL_OF = dict.fromkeys(("matmul", "attention", "conv", "recurrence", "launch"), "layers")
_KERNEL_OF |= dict.fromkeys(("memory", "aten", "bandwidth"), "memory")


def at_one_speed(parts: Sequence[RankAnswer], families: Sequence[str]) -> RankAnswer:
    """The answer of one rank to all cases, scaled to one machine speed.

    parts     its answers to the parts, in their order; those of a GPU have no references and are
              not scaled
    families  of the cases, in their order

    References are the median over the parts; host times are those of the last part, scaled.
    """
    times = [
        {r.kernel: (b.time_s + r.time_s) / 2 for b, r in zip(p.before, p.references, strict=True)}
        for p in parts
    ]
    middle = {kernel: median(t[kernel] for t in times) for kernel in times[0]}
    samples: list[tuple[Sample, ...]] = []
    for own, part in zip(times, parts, strict=True):
        factors = {kernel: time_s / own[kernel] for kernel, time_s in middle.items()}
        for case in part.samples:
            factor = factors.get(_KERNEL_OF.get(families[len(samples)], ""), 1.0)
            samples.append(tuple(sample.scaled(factor) for sample in case))
    last = parts[-1]
    at_end = {r.kernel: r.time_s for r in last.references}
    final = middle["layers"] / at_end["layers"] if middle else 1.0
    spreads = [{r.kernel: r.spread for r in part.references} for part in parts]
    return replace(
        parts[0],
        samples=tuple(samples),
        references=tuple(
            replace(r, time_s=middle[r.kernel], spread=max(s[r.kernel] for s in spreads))
            for r in last.references
        ),
        host=tuple(replace(point, time_s=point.time_s * final) for point in last.host),
    )
