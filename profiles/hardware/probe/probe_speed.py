"""Times of a machine whose speed changes, brought to one speed.

A virtual machine's cores are shared with others: within minutes the reference kernels took 1.8
times what they had taken (two cores, AMD EPYC, 2026-11-22). What was measured in a slow minute
would make one op dearer than another that is not. So each part of a profile is scaled to the middle
of all, by the reference kernels timed before and after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

# Which reference kernel an op of a family slows down with. Messages wait for two ranks and the
# system's own threads: they are left as they are.
_KERNEL_OF = {
    "matmul": "layers",
    "attention": "layers",
    "conv": "layers",
    "recurrence": "layers",
    "launch": "layers",
    "memory": "memory",
    "aten": "memory",
    "bandwidth": "memory",
}


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
    return {
        **parts[0],
        "samples": samples,
        "references": [
            {
                **reading,
                "time_s": middle[reading["kernel"]],
                "spread": max(
                    of["spread"]
                    for part in parts
                    for of in part["references"]
                    if of["kernel"] == reading["kernel"]
                ),
            }
            for reading in last["references"]
        ],
        "host": [{**point, "time_s": point["time_s"] * final} for point in last["host"]],
    }
