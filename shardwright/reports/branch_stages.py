"""Blocks of each stage of a plan; for models with branches also the tensors between stages."""

from __future__ import annotations

import re
from collections import Counter

from profiles.units import format_bytes
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction

_NUMBERED = re.compile(r"(.*?)(\d+)$")
_MOST = 6  # tensors named at a cut; a UNet has a skip per level


def branch_rows(plan: Plan, prediction: Prediction) -> tuple[tuple[str, str, str], ...]:
    """(stage, its blocks, what it receives) per stage; none where the blocks are a plain chain."""
    rows = []
    for stage, cut in zip(prediction.stages, plan.stages, strict=True):
        if stage.receives is None:
            return ()
        blocks = plan.block_entries[cut.first_block : cut.last_block]
        tensors = sorted(stage.receives, key=lambda t: -t.memory_bytes)
        said = [
            f"{t.made_by or 'start'} {format_bytes(t.memory_bytes)}"
            + ("" if set(t.used_by) & set(blocks) else " (handed on)")
            for t in tensors[:_MOST]
        ]
        if len(tensors) > _MOST:
            rest = sum(t.memory_bytes for t in tensors[_MOST:])
            said.append(f"{len(tensors) - _MOST} more {format_bytes(rest)}")
        rows.append((str(stage.stage), blocks_text(blocks), ", ".join(said)))
    return tuple(rows)


def stages_line(plan: Plan) -> str:
    """Number of blocks of each stage, and what is recomputed: `2 + 1 blocks; recompute: none 3`."""
    counts = " + ".join(str(stage.num_blocks) for stage in plan.stages)
    kinds = Counter(kind.value for stage in plan.stages for kind in stage.recompute)
    again = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{counts} blocks; recompute: {again}"


def blocks_text(entries: tuple[str, ...]) -> str:
    """Block names with runs of numbered ones joined.

    >>> blocks_text(("", "a.0", "a.1", "a.2", "b.head"))
    'start, a.0-2, b.head'
    """
    parts: list[tuple[str, int, int] | str] = []
    for entry in entries:
        found = _NUMBERED.fullmatch(entry)
        last = parts[-1] if parts else ""
        if found is None:
            parts.append(entry or "start")
        elif not isinstance(last, str) and last[0] == found[1] and last[2] + 1 == int(found[2]):
            parts[-1] = (last[0], last[1], int(found[2]))
        else:
            parts.append((found[1], int(found[2]), int(found[2])))
    return ", ".join(
        part
        if isinstance(part, str)
        else f"{part[0]}{part[1]}" + f"-{part[2]}" * (part[1] < part[2])
        for part in parts
    )
