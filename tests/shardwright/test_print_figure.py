"""The page for print: what it draws, in which formats, and equal bytes for equal inputs."""

from pathlib import Path

import pytest

from profiles.errors import InputError
from shardwright.api import report
from shardwright.reports.print_figure import FORMATS, print_figure, write_print_figure
from tests.shardwright.fixed_pair import answer as fixed_plan_file
from tests.shardwright.fixed_pair import run as fixed_measurement


@pytest.mark.parametrize("ending", FORMATS)
def test_equal_inputs_give_equal_bytes(ending, tmp_path):
    answer, measured = fixed_plan_file(), fixed_measurement()
    first, second = tmp_path / f"a{ending}", tmp_path / f"b{ending}"
    write_print_figure(first, answer, measured)
    write_print_figure(second, answer, measured)
    assert first.read_bytes() == second.read_bytes()
    assert report(answer, tmp_path / f"c{ending}", run=measured).read_bytes() == first.read_bytes()
    assert first.stat().st_size > 5_000


def test_bars_add_up_to_the_predicted_peaks():
    answer = fixed_plan_file()
    figure = print_figure(answer)
    memory = figure.axes[2]
    tops = {}
    for bar in memory.patches:
        x = round(bar.get_x(), 3)
        tops[x] = max(tops.get(x, 0.0), bar.get_y() + bar.get_height())
    peaks = [rank.peak_bytes / 2**30 for rank in answer.prediction.ranks]
    assert sorted(tops.values()) == pytest.approx(sorted(peaks))


def test_a_measured_run_has_lanes_of_its_own():
    alone = print_figure(fixed_plan_file()).axes[0].get_yticklabels()
    beside = print_figure(fixed_plan_file(), fixed_measurement()).axes[0].get_yticklabels()
    assert len(beside) == 2 * len(alone)


def test_another_ending_is_refused():
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        write_print_figure(Path("step.gif"), fixed_plan_file())
