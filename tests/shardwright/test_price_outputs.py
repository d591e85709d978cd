"""No output shows a dollar without whose price it is, of which kind and of which date."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.hardware.prices.price_table import device_price
from shardwright.analysis.plan_diff import diff_plans
from shardwright.cli import app
from shardwright.reports.brief.brief_markdown import section_markdown
from shardwright.reports.brief.brief_terminal import brief_report, section_report
from shardwright.reports.brief.comparison_section import diff_section
from shardwright.reports.brief.plan_answers import answer_brief
from shardwright.reports.brief.plan_page import report_html
from shardwright.reports.terminal_console import console
from simulator.values.plan_file import PlanFile
from tests.shardwright.fixed_pair import answer, fixed_roofline

ASKED = ("plan", "llama-3.1-8b", "--on", "2x8xh200-sxm", "--global-batch", "64", "--seq", "4096")
PINS = ("--tp", "2", "--pp", "1", "--cp", "1", "--recompute", "none")
NANOTRON = (*ASKED, *PINS, "--stack", "nanotron")
DOLLARS = re.compile(r"\$\s?\d")
RESTS_ON = re.compile(
    r"per device-hour: (given as --price|.{3,80}?, (on-demand|spot|(reserved|committed)-[13]y), "
    r"20\d\d-\d\d-\d\d)"
)
DATES = re.compile(r"20\d\d-\d\d-\d\d")
ROOT = Path(__file__).parents[2]
PRICE = device_price("h200")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def typed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def explained(text: str) -> str:
    """The text in one line, once it is checked that its dollars have providers, kind and date."""
    flat = " ".join(text.split())
    assert DOLLARS.search(flat), "no dollars, so nothing was checked"
    assert RESTS_ON.search(flat), flat
    return flat


def test_every_report_that_formats_dollars_says_what_they_rest_on() -> None:
    """A file that prints dollars prints whose they are too: by `price_words` or `DevicePrice`.

    Not those that make parts of a page, which says it once (the tests of pages in brief/ and
    test_fleet.py look for it), nor the message of --fail-over, which stands under an answer.
    """
    said = ("price_words", "price.words", ".range_words")
    pages = ("reports/brief", "reports/fleet", "analysis/size_change.py")
    for path in sorted((ROOT / "shardwright").rglob("*.py")):
        if any(page in str(path) for page in pages):
            continue
        source = path.read_text(encoding="utf-8")
        if "format_usd" in source:
            assert any(words in source for words in said), path


def test_a_layout_on_the_terminal_in_json_and_as_a_page(tmp_path: Path) -> None:
    assert PRICE is not None
    path, page = tmp_path / "layout.json", tmp_path / "layout.html"
    text = typed(*NANOTRON, "--explain", "-o", str(path))
    assert max(map(len, text.splitlines())) <= 100
    assert PRICE.words in explained(text)
    assert "W per board and 28% for hosts and network" in explained(text)
    shown = typed("predict", str(path), "--html", str(page))
    assert PRICE.words in explained(shown)
    assert PRICE.words in explained(page.read_text(encoding="utf-8"))
    data = json.loads(typed(*NANOTRON, "--json"))
    assert data["price_usd_per_hour"]["value"] == PRICE.usd_per_hour
    assert PRICE.words in data["price_usd_per_hour"]["source"]
    assert json.loads(typed("predict", str(path), "--json"))["price_usd_per_hour"]["date"]
    diff = typed("compare", str(path), str(path), "--markdown", "-")
    assert "$" not in diff  # equal plans: no numbers
    typed(*NANOTRON, "--price", "2.5", "-o", str(tmp_path / "other.json"))
    diff = typed("compare", str(path), str(tmp_path / "other.json"), "--markdown", "-")
    assert PRICE.words in explained(diff)
    assert "Price after: $2.50 per device-hour: given as --price" in diff


def test_frameworks_fronts_and_own_executor() -> None:
    assert PRICE is not None
    explained(typed(*ASKED, *PINS, "--stack", "nanotron,megatron-core"))
    front = typed(*NANOTRON, "--pareto", "memory")
    assert PRICE.words in explained(front)
    point = json.loads(typed(*NANOTRON, "--pareto", "memory", "--json"))["front"][0]
    assert PRICE.words in point["price_usd_per_hour"]["source"]
    assert PRICE.words in explained(typed(*ASKED, "--tp", "1", "--pp", "1"))


def test_plans_and_their_differences() -> None:
    different = diff_section(diff_plans(answer(), slower()))
    for report in (brief_report(answer_brief(answer()), short=True), section_report(different)):
        made = console()
        with made.capture() as caught:
            made.print(report)
        explained(caught.get())
    explained(section_markdown(different))
    explained(report_html(answer(), None, roofline=fixed_roofline()))


def slower() -> PlanFile:
    found = answer()
    prediction = found.prediction
    assert prediction is not None
    step = prediction.step_time_s.scaled(2)
    parts = tuple(replace(part, time_s=2 * part.time_s) for part in prediction.components)
    return replace(found, prediction=replace(prediction, step_time_s=step, components=parts))


def test_a_sweep_and_its_table(tmp_path: Path) -> None:
    assert PRICE is not None
    folder = tmp_path / "answers"
    text = typed(
        *ASKED, *PINS, "--stack", "nanotron", "--price", "on-demand,spot", "-o", str(folder)
    )
    explained(text)
    rows = list(csv.DictReader(io.StringIO((folder / "summary.csv").read_text())))
    by_kind = {row["price_asked"]: row for row in rows}
    assert PRICE.words in by_kind["on-demand"]["price"]
    assert by_kind["on-demand"]["price_date"] == PRICE.date
    assert ", spot, " in by_kind["spot"]["price"]
    # What a sweep writes must not depend on the day on which it is run.
    assert "older than" not in (folder / "summary.csv").read_text()


def test_the_catalogue() -> None:
    assert PRICE is not None
    assert PRICE.words in explained(typed("catalog", "show", "h200"))
    for text in (typed("catalog"), typed("catalog", "prices")):
        assert DOLLARS.search(text)
        assert "median over providers" in " ".join(text.split())
        assert "on-demand" in text
        assert DATES.search(text)
    shown = json.loads(typed("catalog", "show", "h200", "--json"))["prices"][0]
    assert {offer["provider"] for offer in shown["offers"]} == set(PRICE.providers)


def test_no_offer_no_dollars_and_that_is_said(tmp_path: Path) -> None:
    text = " ".join(typed(*NANOTRON, "--price", "reserved-3y").split())
    assert not DOLLARS.search(text)
    assert "no dollars: no reserved-3y offer of h200-sxm is known" in text
    assert "there are offers of the kinds on-demand, spot, reserved-1y" in text


def test_a_price_file_and_an_old_price(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'schema = "shardwright/prices@1"\n[[offers]]\nprovider = "our contract"\n'
        'device = "h200"\nprice_per_device_hour = 2.0\ndate = "2026-01-15"\n',
        encoding="utf-8",
    )
    text = explained(typed(*NANOTRON, "--prices", str(path)))
    assert "$2.00 per device-hour: our contract, on-demand, 2026-01-15" in text
    assert "1 of 1 are older than 90 days" in text
    notes = json.loads(typed(*NANOTRON, "--prices", str(path), "--json"))["price_notes"]
    assert len(notes) == 1
    shown = typed("catalog", "show", "h200", "--prices", str(path))
    assert "our contract, on-demand, 2026-01-15" in shown


def test_a_catalogue_of_skypilot_becomes_a_price_file(tmp_path: Path) -> None:
    (tmp_path / "v8" / "cloudy").mkdir(parents=True)
    (tmp_path / "v8" / "cloudy" / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region,GpuInfo,SpotPrice\n"
        "x,H200,8,16,north,,8\n",
        encoding="utf-8",
    )
    path = tmp_path / "prices.toml"
    typed("catalog", "import-prices", str(tmp_path / "v8"), "--date", "2026-11-20", "-o", str(path))
    text = explained(typed(*NANOTRON, "--prices", str(path)))
    assert "$2.00 per device-hour: cloudy, on-demand, 2026-11-20" in text


def test_owning_against_renting(tmp_path: Path) -> None:
    path = tmp_path / "owning.toml"
    path.write_text(
        'schema = "shardwright/owning@1"\npurchase_usd_per_device = 31000\n'
        "network_share = 0.12\nstaff_usd_per_device_year = 600\n",
        encoding="utf-8",
    )
    text = explained(typed("catalog", "show", "h200", "--owning", str(path)))
    assert "per hour used, 80 % of the time" in text
    assert "Assumed: hosting_usd_per_kw_month 184.06: CBRE" in text
    data = json.loads(typed("catalog", "show", "h200", "--owning", str(path), "--json"))["owned"]
    assert data["capital_usd"]["value"] == pytest.approx(31000 * 1.12 / (5.5 * 8760))
