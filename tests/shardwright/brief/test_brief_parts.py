"""Charts and values of reports: hand-made examples."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from profiles.errors import InputError
from profiles.units import format_usd
from shardwright.reports.brief.brief import Bar, BarChart, Table, between
from shardwright.reports.brief.brief_html import bars_of, ticks_of
from shardwright.reports.brief.columns import with_interval
from shardwright.reports.brief.scatter import HEIGHT, WIDTH, AxisWords, Point, scatter

AXIS = AxisWords(name="days", written="{:.3g}".format)


def chart(*ends):
    bars = tuple(Bar(name="a", low=low, high=high, words="") for low, high in ends)
    return BarChart(title="t", unit="days", bars=bars)


def test_bars_are_per_cent_of_the_axis():
    # From 0 to 40: 10 to 20 begins at a quarter and is a quarter long.
    found = bars_of(chart((10.0, 20.0), (40.0, 0.0)))
    assert (found[0]["left"], found[0]["width"]) == (25.0, 25.0)
    assert (found[1]["left"], found[1]["width"]) == (0.0, 100.0)


@given(some.lists(some.tuples(some.floats(-1e9, 1e9), some.floats(-1e9, 1e9)), max_size=8))
@example([(0.0, 5e-324)])
@example([(0.0, 3e-308)])
def test_no_bar_and_no_tick_leaves_the_axis(ends):
    drawn = chart(*ends)
    for bar in bars_of(drawn):
        assert -0.01 <= bar["left"] <= bar["left"] + bar["width"] <= 100.02
    for at, _ in ticks_of(drawn):
        assert -0.01 <= at <= 100.01


@given(
    some.lists(
        some.tuples(some.floats(0.1, 1e4), some.floats(1e3, 1e10), some.booleans()),
        min_size=1,
        max_size=30,
    )
)
def test_marks_and_labels_stay_in_the_picture(points):
    made = [Point(x=x, y=y, group=str(g), label="16,384") for x, y, g in points]
    picture = scatter("front", made, AXIS, AxisWords(name="dollars", written=format_usd))
    for path in picture.paths:
        for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.data):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
    texts = [label for label in picture.labels if label.text == "16,384"]
    boxes = [(label.y, label.x, label.anchor) for label in texts]
    assert len(set(boxes)) == len(boxes)
    # Ticks on both axes.
    assert len(picture.grid) >= 2


def test_a_unit_stands_once():
    assert between(28.8, 64.7, "{:.3g} days".format) == "28.8 to 64.7 days"
    assert between(5e6, 7e7, format_usd) == "$5.00 M to $70.0 M"
    assert between(1.0, 2.0, str) == "1.0 to 2.0"


def test_names_of_intervals():
    names = [column.name for column in with_interval("step_time_s", "s", "")]
    assert names == ["step_time_s", "step_time_low_s", "step_time_high_s"]
    assert [column.name for column in with_interval("usd", "", "")][1:] == ["usd_low", "usd_high"]


def test_a_row_that_is_too_short_is_refused():
    with pytest.raises(InputError, match="a row has 1 cells, its table 2 columns"):
        Table(heads=("a", "b"), rows=(("1",),))
