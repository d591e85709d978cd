"""Lines with a label: broken between parts, or at words, under the first word."""

from __future__ import annotations

import io

from rich.console import Console

from shardwright.reports.labelled import WIDTH, labelled, one_line


def printed(width: int, label: str, *parts: str) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(labelled(label, *parts))
    return stream.getvalue().splitlines()


def test_a_line_breaks_between_its_parts() -> None:
    # 7 + 6 + 3 + 6 = 22 columns hold the first two parts, and no third.
    assert printed(30, "Range: ", "step 1", "peak 2", "cost of 3") == [
        "Range: step 1   peak 2",
        "       cost of 3",
    ]
    assert printed(60, "Range: ", "step 1", "peak 2") == ["Range: step 1   peak 2"]


def test_a_long_part_breaks_at_words_and_keeps_its_brackets() -> None:
    assert printed(28, "Limit: ", "memory of [rank] zero is nearly full") == [
        "Limit: memory of [rank] zero",
        "       is nearly full",
    ]


def test_a_line_is_cut_after_a_whole_number() -> None:
    words = f"{'x' * 70}, on-demand, 2026-05-25 to 2026-11-09 of all"
    assert one_line("Price   ", words).plain == f"Price   {'x' * 70}, on-demand ..."
    words = f"{'x' * 60}; this plan 1.96 M [1.39 M - 2.79 M]"
    assert one_line("Known   ", words).plain == f"Known   {'x' * 60}; this plan 1.96 M ..."
    assert len(one_line("Next    ", "y" * 200).plain) == WIDTH
