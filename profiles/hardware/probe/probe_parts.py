"""A long measurement in parts: each is kept at once, and all are scaled to one machine speed.

An interrupted measurement continues with the first missing part. A virtual machine shares its
cores: within minutes the reference kernels took 1.8 times as long (two cores, AMD EPYC,
2026-11-22). So each part is scaled to the median of all by the reference kernels timed before and
after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from profiles.document import read_mapping, to_json, write_text
from profiles.errors import ShardwrightError
from profiles.hardware.probe.probe_cases import Case

Answers = tuple[dict[str, Any], ...]
# Workers start anew for each part (about 4 s): a full probe of 2,400 visits has ten parts.
_CASES = 240


def in_parts(
    cases: Sequence[Case],
    measure: Callable[[Sequence[Case], int], Answers],
    *,
    question: str,
    kept: Path | None,
) -> list[Answers]:
    """The answers of every rank, part by part.

    measure   measures some cases, of which so many went before
    question  identifies cases, effort and machine: what was kept of another is dropped
    kept      the file of parts, for the caller to remove once what it makes of them is kept; None
              keeps nothing
    """
    parts = _read(kept, question)
    size = len(cases) if kept is None else _CASES
    for begin in range(len(parts) * size, len(cases), size):
        parts.append(measure(cases[begin : begin + size], begin))
        if kept is not None:
            write_text(kept, to_json({"question": question, "parts": parts}))
    return parts


def _read(kept: Path | None, question: str) -> list[Answers]:
    if kept is None or not kept.is_file():
        return []
    try:
        found = read_mapping(kept)
    except ShardwrightError:
        return []
    return [tuple(part) for part in found["parts"]] if found.get("question") == question else []


# Which reference kernel an op of a family slows down with. Messages wait for two ranks and the
# system's own threads: they are left as they are.
_KERNEL_OF = dict.fromkeys(("matmul", "attention", "conv", "recurrence", "launch"), "layers")
_KERNEL_OF |= dict.fromkeys(("memory", "aten", "bandwidth"), "memory")


def at_one_speed(parts: Sequence[Mapping[str, Any]], families: Sequence[str]) -> dict[str, Any]:
    """The answer of one rank to all cases, from its answers to the parts in their order.

    parts     each with `samples` (of a case: [wall_s, cpu_s, delay_s] each), reference kernels
              `before` them and behind them (`references`) and `host`, measured at the end; of a GPU
              these are empty and nothing is scaled
    families  of the cases, in their order

    References are the middle of all parts', host times the last part's at that speed.
    """
    times = [
        {
            r["kernel"]: (float(b["time_s"]) + float(r["time_s"])) / 2
            for b, r in zip(part["before"], part["references"], strict=True)
        }
        for part in parts
    ]
    middle = {kernel: median(t[kernel] for t in times) for kernel in times[0]}
    samples: list[Any] = []
    for own, part in zip(times, parts, strict=True):
        factors = {kernel: time_s / own[kernel] for kernel, time_s in middle.items()}
        for case in part["samples"]:
            factor = factors.get(_KERNEL_OF.get(families[len(samples)], ""), 1.0)
            samples.append([[None if x is None else x * factor for x in s] for s in case])
    last = parts[-1]
    at_end = {r["kernel"]: float(r["time_s"]) for r in last["references"]}
    final = middle["layers"] / at_end["layers"] if middle else 1.0
    spreads = [{r["kernel"]: r["spread"] for r in part["references"]} for part in parts]
    return {
        **parts[0],
        "samples": samples,
        "references": [
            {**reading, "time_s": middle[kernel], "spread": max(s[kernel] for s in spreads)}
            for reading in last["references"]
            for kernel in (reading["kernel"],)
        ],
        "host": [{**point, "time_s": point["time_s"] * final} for point in last["host"]],
    }
