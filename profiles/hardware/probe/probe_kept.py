"""A long measurement in parts, each kept at once: one that is interrupted goes on where it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
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
    begins = range(0, len(cases), _CASES) if kept is not None else (0,)
    size = _CASES if kept is not None else len(cases)
    for number, begin in enumerate(begins):
        if number < len(parts):
            continue
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
