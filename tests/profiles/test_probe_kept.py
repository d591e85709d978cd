"""Long measurements in parts: an interrupted one is continued."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware.probe.cpu_clock import Sample
from profiles.hardware.probe.probe_answers import RankAnswer, in_parts
from profiles.hardware.probe.probe_cases import Case

CASES: Any = list(range(600))  # numbers in place of cases


class Interrupted(Exception):
    pass


def answer(part: Sequence[Any], rank: int = 0) -> RankAnswer:
    return RankAnswer(
        samples=tuple((Sample(wall_s=float(case), cpu_s=float(rank)),) for case in part)
    )


def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "partial.json"
    seen: list[int] = []

    def measure(part: Sequence[Case], begin: int) -> tuple[RankAnswer, ...]:
        if begin == 480 and not seen.count(-1):
            seen.append(-1)
            raise Interrupted
        seen.append(begin)
        return tuple(answer(part, rank) for rank in range(2))

    with pytest.raises(Interrupted):
        in_parts(CASES, measure, question="a", kept=kept)
    assert kept.is_file()
    parts = in_parts(CASES, measure, question="a", kept=kept)
    assert seen == [0, 240, -1, 480]
    for rank in range(2):
        found = [sample for part in parts for sample in part[rank].samples]
        assert found == [(Sample(wall_s=case, cpu_s=rank),) for case in CASES]
    # Processing the parts may fail: the file is kept until the caller removes it.
    assert in_parts(CASES, measure, question="a", kept=kept) == parts
    assert seen == [0, 240, -1, 480]


@pytest.mark.parametrize(
    "text",
    [
        '{"question": "other", "parts": [[{"samples": []}]]}',
        '{"question": "a", "parts": [[{"samples": [0]}]]}',
        "cut short",
    ],
)
def test_the_file_of_another_measurement_is_dropped(tmp_path: Path, text: str) -> None:
    kept = tmp_path / "partial.json"
    kept.write_text(text)
    seen: list[int] = []

    def measure(part: Sequence[Case], begin: int) -> tuple[RankAnswer, ...]:
        seen.append(begin)
        return (answer(part),)

    parts = in_parts(CASES, measure, question="a", kept=kept)
    assert [s.wall_s for (part,) in parts for (s,) in part.samples] == CASES
    assert seen == [0, 240, 480]
