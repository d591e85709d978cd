"""Tables of a brief on a terminal of 100 columns."""

from __future__ import annotations

from rich.console import Console, RenderableType

from shardwright.reports.brief.brief import Table
from shardwright.reports.brief.brief_terminal import printed_table

HEADS = ("framework", "plan", ">step", ">MFU", ">peak", "why not first")
PLAN = "tp1 pp16 dp128 ep8, 1f1b, micro-batch 1, ZeRO 1, recompute full (3 layers per stage), fp8"
ROWS = (
    ("megatron-core", PLAN, "25.1 s\n[18 to 34 s]", "18 %", "57 GiB", "chosen"),
    ("torch", "tp8 pp2", "9.5 s\n[7 to 12 s]", "7 %", "5 GiB", "6.1% slower: compute +1.08 s"),
)


def _lines(printed: RenderableType) -> list[str]:
    console = Console(width=100, record=True, force_terminal=False)
    with console.capture() as held:
        console.print(printed)
    return [line.rstrip() for line in held.get().splitlines()]


def test_the_texts_of_a_wide_table_stand_above_its_numbers() -> None:
    assert _lines(printed_table(Table(heads=HEADS, rows=ROWS))) == [
        "plan",
        "  framework              step   MFU    peak  why not first",
        PLAN,
        "  megatron-core        25.1 s  18 %  57 GiB  chosen",
        "                 [18 to 34 s]",
        "tp8 pp2",
        "  torch                 9.5 s   7 %   5 GiB  6.1% slower: compute +1.08 s",
        "                  [7 to 12 s]",
    ]


def test_texts_that_do_not_fit_on_one_line_take_another() -> None:
    why = "6.1% slower: compute +1.08 s, bubble +1 s, messages between stages +1 s"
    rows = tuple((*row[:5], why) for row in ROWS)
    assert _lines(printed_table(Table(heads=HEADS, rows=rows)))[2:4] == [PLAN, f"  {why}"]


def test_a_table_that_fits_keeps_one_line_per_row() -> None:
    rows = tuple((stack, "tp8", "1 s", mfu, peak, "") for stack, _, _, mfu, peak, _ in ROWS)
    assert _lines(printed_table(Table(heads=HEADS, rows=rows))) == [
        "framework      plan  step   MFU    peak  why not first",
        "megatron-core  tp8    1 s  18 %  57 GiB",
        "torch          tp8    1 s   7 %   5 GiB",
    ]
