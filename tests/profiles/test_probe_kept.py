"""Long measurements in parts: what an interrupted one has is not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware.probe.probe_cases import Case
from profiles.hardware.probe.probe_parts import in_parts

CASES: Any = list(range(600))  # what a case is does not matter here


class Interrupted(Exception):
    pass


def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "partial.json"
    seen: list[int] = []

    def measure(part: Sequence[Case], begin: int) -> tuple[dict[str, Any], ...]:
        if begin == 480 and not seen.count(-1):
            seen.append(-1)
            raise Interrupted
        seen.append(begin)
        return tuple(
            {
                "samples": [[rank, case] for case in part],
                "references": [begin],
                "host": [],
                "machine": {},
            }
            for rank in range(2)
        )

    with pytest.raises(Interrupted):
        in_parts(CASES, measure, question="a", kept=kept)
    assert kept.is_file()
    parts = in_parts(CASES, measure, question="a", kept=kept)
    assert seen == [0, 240, -1, 480]
    for rank in range(2):
        found = [sample for part in parts for sample in part[rank]["samples"]]
        assert found == [[rank, case] for case in CASES]
    # What is made of the parts may fail: they are kept until the caller removes them.
    assert in_parts(CASES, measure, question="a", kept=kept) == parts
    assert seen == [0, 240, -1, 480]


def test_what_was_kept_of_another_question_is_dropped(tmp_path: Path) -> None:
    kept = tmp_path / "partial.json"
    kept.write_text('{"question": "other", "parts": [[{"samples": [0]}]]}')
    seen: list[int] = []

    def measure(part: Sequence[Case], begin: int) -> tuple[dict[str, Any], ...]:
        seen.append(begin)
        return ({"samples": list(part), "references": [], "host": [], "machine": {}},)

    parts = in_parts(CASES, measure, question="a", kept=kept)
    assert [case for (part,) in parts for case in part["samples"]] == CASES
    assert seen == [0, 240, 480]
