"""The reports of `size`, of an answer that is kept as a file (tests/golden/size_answer.json)."""

import csv
import io
import itertools
import json
from html.parser import HTMLParser

import pytest

from profiles.errors import InputError
from shardwright.reports.brief.brief_figure import write_brief_figure
from shardwright.reports.brief.brief_html import brief_html
from shardwright.reports.brief.brief_markdown import brief_markdown
from shardwright.reports.brief.columns import dictionary_csv, ends_of, table_csv
from shardwright.reports.brief.size_brief import size_brief
from shardwright.reports.brief.size_charts import cost_parts, range_of, swings, value_of, waterfall
from shardwright.reports.brief.size_table import SIZE_COLUMNS, size_rows
from tests.shardwright.golden import FOLDER, check_golden

COMMAND = "shardwright size llama-3.1-70b --budget '300M$'"
HOSTILE = "<script>alert('x')</script>|`a`](http://x) [b\n# c"
HEADLINE = ("days", "usd", "kwh", "tco2e", "device_hours", "productive_time", "step_time_s")


@pytest.fixture
def data():
    return json.loads((FOLDER / "size_answer.json").read_text(encoding="utf-8"))


class Page(HTMLParser):
    """Tags, addresses and the visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self._hidden = ""
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self._hidden = tag if tag in ("style", "script") else ""
        for name, value in attrs:
            if name in ("src", "href", "srcset", "data", "action") or name.startswith("on"):
                self.addresses.append(f"{name}={value}")

    def handle_endtag(self, tag):
        self._hidden = ""

    def handle_data(self, found):
        if not self._hidden:
            self.words.append(found)


def test_the_page_stands_alone(data):
    page = brief_html(size_brief(data, command=COMMAND, version="1.0"))
    found = Page(page)
    assert found.addresses == []
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert "url(" not in page
    assert "@import" not in page
    assert len(page.encode()) < 3_000_000
    assert COMMAND in found.text


@pytest.mark.parametrize("writer", [brief_html, brief_markdown])
def test_every_number_of_the_headline_has_its_interval(data, writer):
    text = writer(size_brief(data))
    text = Page(text).text if writer is brief_html else text
    for name in HEADLINE:
        assert value_of(data, name) in text, name
        assert range_of(data, name) in text, name
    assert "91 %" in text  # probability of the deadline
    for run in (data, *data["alternatives"]):
        assert run["price"] in text


def test_a_hostile_name_stays_text(data):
    for key in ("model", "layout", "binds"):
        data[key] = HOSTILE
    data["assumptions"].append(HOSTILE)
    data["front"][0] |= {"layout": HOSTILE, "stack": HOSTILE}
    data["alternatives"][0]["device"] = HOSTILE
    data["versus"][0]["versus"] = HOSTILE
    page = brief_html(size_brief(data, command=HOSTILE))
    assert "<script" not in page
    assert Page(page).tags & {"script"} == set()
    assert "<script>alert('x')</script>" in Page(page).text
    markdown = brief_markdown(size_brief(data))
    assert "<script" not in markdown
    assert "](http" not in markdown.replace("\\]", "")
    assert not any(line.startswith("# c") for line in markdown.splitlines())
    heads = [line for line in markdown.splitlines() if line.startswith("| device |")]
    cells = [line for line in markdown.splitlines() if "alert" in line and line.startswith("| ")]
    assert heads
    assert cells
    wide = [line.replace("\\|", "").count("|") for line in cells if "2,048" in line]
    assert wide[0] == heads[0].count("|")


def test_parts_of_the_rent_add_up(data):
    parts = cost_parts(data)
    assert sum(part for _, part in parts) == pytest.approx(data["usd"])
    # Contingency c takes 1 - 1 / c of the days; of the rest each loss its simulated share.
    rest = data["usd"] / data["contingency"]["value"]
    assert dict(parts)["contingency of whole runs"] == pytest.approx(data["usd"] - rest)
    assert dict(parts)["lost: restart"] == pytest.approx(rest * data["lost"]["restart"])
    bars = waterfall(data).bars
    for before, after in itertools.pairwise(bars[:-1]):
        assert after.low == pytest.approx(before.high)
    assert bars[-1].high == pytest.approx(bars[-2].high)


def test_the_tornado_is_sorted_and_holds_the_answer(data):
    for of in ("days", "usd"):
        chart = swings(data, of)
        widths = [bar.high - bar.low for bar in chart.bars]
        assert widths == sorted(widths, reverse=True)
        for bar in chart.bars:
            assert bar.low <= chart.mark <= bar.high


def test_columns_of_the_table_are_those_of_the_dictionary(data):
    rows = list(csv.DictReader(io.StringIO(table_csv(SIZE_COLUMNS, size_rows(data)))))
    meanings = list(csv.DictReader(io.StringIO(dictionary_csv(SIZE_COLUMNS))))
    assert [row["column"] for row in meanings] == list(rows[0])
    assert all(row["meaning"] for row in meanings)
    assert [row["row"] for row in rows].count("chosen") == 1
    assert len(rows) == 1 + len(data["alternatives"]) + len(data["front"]) + len(data["refused"])
    for name in HEADLINE:
        low, high = ends_of(data, name)
        stem, end = (name[:-2], "_s") if name == "step_time_s" else (name, "")
        found = [float(rows[0][f"{stem}{side}{end}"]) for side in ("_low", "", "_high")]
        assert found == [low, data[name], high]


def test_a_cell_is_no_formula(data):
    data["model"] = "=HYPERLINK(0)"
    assert list(csv.reader(io.StringIO(table_csv(SIZE_COLUMNS, size_rows(data)))))[1][1][0] == "'"


def test_markdown_is_as_it_was(data):
    check_golden("size.md", brief_markdown(size_brief(data, command=COMMAND, version="1.0")))


def test_equal_answers_give_equal_figures(data, tmp_path):
    for name in ("a", "b"):
        write_brief_figure(tmp_path / f"{name}.pdf", size_brief(data))
    first = (tmp_path / "a.pdf").read_bytes()
    assert first == (tmp_path / "b.pdf").read_bytes()
    assert 20_000 < len(first) < 3_000_000


def test_nothing_found_is_reported_and_not_drawn(data, tmp_path):
    kept = ("schema", "model", "minimised", "flop", "flop_method", "thresholds", "considered")
    empty = dict.fromkeys(data) | {name: data[name] for name in kept}
    empty |= {"status": "infeasible", "alternatives": [], "front": [], "gains": [], "versus": None}
    empty |= {"refused": {"h100-sxm": "no number of its nodes keeps the limits"}, "assumptions": []}
    empty["relaxations"] = [
        {"change": "a deadline of 90 days", "flag": "--deadline 90d", "days": 88.0, "usd": None,
         "devices": 512, "device": "h100-sxm"}
    ]  # fmt: skip
    brief = size_brief(empty)
    text = Page(brief_html(brief)).text
    assert "None of the listed devices keeps the limits of llama-3.1-70b" in text
    assert "a deadline of 90 days" in text
    with pytest.raises(InputError, match="nothing to draw"):
        write_brief_figure(tmp_path / "a.pdf", brief)


def test_a_run_without_a_price_has_no_dollars(data):
    for run in (data, *data["alternatives"], *data["front"], *data["gains"]):
        run |= dict.fromkeys(("usd", "usd_low", "usd_high", "price", "usd_per_device_hour"))
    data["swings"] = [one | {"usd_low": None, "usd_high": None} for one in data["swings"]]
    del data["versus"], data["probability_of_budget"]
    text = Page(brief_html(size_brief(data))).text
    assert "no price of the device is known" in text
    assert "energy of the whole run" in text
