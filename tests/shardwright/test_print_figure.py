"""The figures for print of a plan: in which formats, and equal bytes for equal inputs."""

from pathlib import Path

import pytest

from profiles.errors import InputError
from shardwright.api import report
from shardwright.reports.brief.brief_figure import FORMATS, write_brief_figure
from shardwright.reports.brief.plan_page import plan_page
from tests.shardwright.fixed_pair import answer as fixed_plan_file
from tests.shardwright.fixed_pair import fixed_roofline
from tests.shardwright.fixed_pair import run as fixed_measurement


@pytest.mark.parametrize("ending", FORMATS)
def test_equal_inputs_give_equal_bytes(ending, tmp_path):
    answer, measured = fixed_plan_file(), fixed_measurement()
    written = tmp_path / f"a{ending}"
    write_brief_figure(written, plan_page(answer, measured))
    made = report(answer, tmp_path / f"b{ending}", run=measured)
    assert made.read_bytes() == written.read_bytes()
    assert written.stat().st_size > 5_000


def test_a_roofline_is_drawn_and_gives_equal_bytes(tmp_path):
    answer, measured = fixed_plan_file(), fixed_measurement()
    page = plan_page(answer, measured, roofline=fixed_roofline())
    first, second, without = (tmp_path / f"{name}.svg" for name in "abc")
    for path in (first, second):
        write_brief_figure(path, page)
    write_brief_figure(without, plan_page(answer, measured))
    assert first.read_bytes() == second.read_bytes() != without.read_bytes()


def test_bars_add_up_to_the_predicted_peak():
    answer = fixed_plan_file()
    charts = [chart for section in plan_page(answer).sections for chart in section.bars]
    (memory,) = [chart for chart in charts if chart.unit == "GiB"]
    *parts, peak = memory.bars
    full = answer.prediction.fullest
    assert peak.low <= full.peak_bytes / 2**30 <= peak.high
    assert parts[-1].high == pytest.approx(full.limiting_bytes / 2**30)


def test_another_ending_is_refused():
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        write_brief_figure(Path("step.gif"), plan_page(fixed_plan_file()))
