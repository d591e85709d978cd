"""--html, --markdown, --csv and --figure of `size` and `plan`, as a user types them."""

import csv
import json

import pytest
from typer.testing import CliRunner

from planner.layout.layout_answer import LayoutFile
from profiles.errors import DocumentError, InputError
from shardwright.cli import app
from shardwright.console.report_files import write_plan_reports
from shardwright.reports.brief.plan_answers import planned_layouts, planned_plan
from shardwright.reports.brief.plan_brief import Planned, plan_brief
from shardwright.reports.brief.plan_table import PLAN_COLUMNS
from shardwright.reports.brief.size_table import SIZE_COLUMNS
from shardwright.requests.plan_request import ReportPaths
from simulator.values.plan_file import Infeasibility, Relaxation
from tests.shardwright.brief.test_size_brief import Page
from tests.shardwright.fixed_pair import answer as fixed_plan_file

SIZE = ("size", "llama-3.1-8b", "--seq", "4096", "--global-batch", "256", "--workers", "1", "-q",
        "--stack", "megatron-core", "--tokens", "300B", "--on", "h100-sxm", "--nodes", "8",
        "--price-kind", "3")  # fmt: skip
PLAN = ("plan", "llama-3.1-8b", "--global-batch", "64", "--seq", "4096", "-q", "--no-cache")


def written(folder, *arguments):
    """The rows and the page that a command writes."""
    files = {name: folder / f"out.{name}" for name in ("html", "md", "csv", "pdf")}
    flags = ("--html", files["html"], "--markdown", files["md"], "--csv", files["csv"])
    given = [str(one) for one in (*arguments, *flags, "--figure", files["pdf"])]
    done = CliRunner().invoke(app, given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert files["pdf"].stat().st_size > 5_000
    assert files["md"].read_text(encoding="utf-8").startswith("### Training llama-3.1-8b")
    with files["csv"].open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    with (folder / "out.columns.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["column"] for row in csv.DictReader(stream)] == list(rows[0])
    return rows, Page(files["html"].read_text(encoding="utf-8")).text


def test_losses_of_money_add_up_and_none_is_negative():
    """2 % of the time are lost in all, 1.5 % and 1 % by cause: medians do not add up."""
    row = {"row": "chosen", "cluster": "c", "stack": "f", "layout": "l", "step_time_s": 1.0,
           "usd_per_million": 0.98, "productive_time": 0.98, "counted_in": "tokens"}  # fmt: skip
    planned = Planned(
        model="m",
        cluster="c",
        rows=[row],
        parts={"compute": 1.0},
        lost={"checkpoint": 0.015, "restart": 0.01},
    )
    (money,) = [one for one in plan_brief(planned).sections if one.title == "Cost by part"]
    widths = {bar.name: bar.high - bar.low for bar in money.bars[0].bars}
    assert widths["lost: checkpoint"] == pytest.approx(0.02 * 0.6)
    assert widths["lost: restart"] == pytest.approx(0.02 * 0.4)
    assert "lost: other" not in widths
    assert widths["total"] == pytest.approx(1.0)


def test_reports_of_size_agree_with_its_json(tmp_path):
    answer = tmp_path / "answer.json"
    rows, page = written(tmp_path, *SIZE, "-o", answer)
    data = json.loads(answer.read_text(encoding="utf-8"))
    assert list(rows[0]) == [column.name for column in SIZE_COLUMNS]
    for name in ("days", "days_low", "usd", "usd_high", "kwh", "productive_time_low"):
        assert float(rows[0][name]) == data[name]
    days = data["completion"]["days"]
    assert days == sorted(days)
    # The distribution is the simulation that the interval is of.
    assert days[4] == pytest.approx(data["days_low"], rel=0.02)
    assert days[49] == pytest.approx(data["days"], rel=0.02)
    assert days[94] == pytest.approx(data["days_high"], rel=0.02)
    assert sum(size for _, size in data["memory"]["parts"]) == pytest.approx(
        data["memory"]["required_bytes"], rel=2e-3
    )
    assert sum(data["step_parts"].values()) == pytest.approx(data["step_time_s"], rel=1e-6)
    assert "arXiv 2407.21783" in page
    assert "--reliability" in page


def test_reports_of_a_frameworks_layout(tmp_path):
    rows, page = written(tmp_path, *PLAN, "--on", "2x8xh100-sxm", "--stack", "megatron-core")
    assert list(rows[0]) == [column.name for column in PLAN_COLUMNS]
    assert rows[0]["row"] == "chosen"
    assert float(rows[0]["step_time_low_s"]) <= float(rows[0]["step_time_s"])
    assert rows[0]["layout"] in page
    assert "on-demand" in page
    assert "twice the devices" in page  # what would change the answer


def test_reports_of_several_frameworks_and_of_a_front(tmp_path):
    on = ("--on", "8xh100-sxm", "--time-limit", "10s")
    rows, _ = written(tmp_path, *PLAN, *on, "--stack", "megatron-core,nanotron", "--tp", "1,2")
    assert {row["stack"] for row in rows} == {"megatron-core", "nanotron"}
    front, _ = written(tmp_path, *PLAN, *on, "--stack", "megatron-core", "--pareto", "memory")
    assert {row["row"] for row in front} == {"front"}


def test_a_plan_of_our_own_executor():
    found = fixed_plan_file()
    planned = planned_plan(found, "toy", "2xtoy")
    brief = plan_brief(planned)
    assert planned.rows[0]["step_time_s"] == found.step_time_s
    assert sum(planned.parts.values()) == pytest.approx(found.step_time_s)
    assert "which plan" in brief.title
    assert any(section.bars for section in brief.sections)


def test_what_does_not_fit_is_reported(tmp_path):
    why = Infeasibility(
        nearest="tp8 pp1 dp1",
        rank=0,
        term="optimizer states",
        needed_bytes=400 * 2**30,
        capacity_bytes=80 * 2**30,
        relaxations=(
            Relaxation(change="128 devices", flag="--on", layout="tp8", step_time_s=48.4),
        ),
    )
    answer = LayoutFile(
        status="infeasible", model="m", cluster="8xa", stack="s", objective="step time",
        search_time_s=1.0, considered=1, too_big=1, pruned=0, refined=0, infeasibility=why,
    )  # fmt: skip
    files = ReportPaths(html=tmp_path / "page.html", figure=tmp_path / "a.pdf")
    write_plan_reports(files, lambda: planned_layouts([answer], {}))
    text = Page(files.html.read_text(encoding="utf-8")).text
    assert "No plan of m fits on 8xa" in text
    assert "needs 400 GiB of 80.0 GiB, mostly for optimizer states" in text
    assert "128 devices --on 48.4 s" in text
    assert not files.figure.exists()


def test_files_are_refused_before_anything_is_searched(tmp_path):
    with pytest.raises(InputError, match=r"\.pdf, \.png, \.svg"):
        CliRunner().invoke(app, [*SIZE, "--figure", "a.gif"], catch_exceptions=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DocumentError):
        CliRunner().invoke(
            app, [*SIZE, "--html", str(tmp_path / "file" / "a.html")], catch_exceptions=False
        )
