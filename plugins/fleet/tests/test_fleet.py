"""`shardwright fleet` as a user types it, and its files with mistakes."""

from __future__ import annotations

import json
import re

import pytest
from shardwright_fleet.file import read_fleet
from shardwright_fleet.own_or_rent import own_or_rent
from shardwright_fleet.prices import step_task
from shardwright_fleet.reader import part_of
from typer.testing import CliRunner

from profiles.errors import DocumentError, InfeasibleError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.prices.owning import read_owning
from shardwright.cli import app
from shardwright.requests.solve_task import LayoutTask

HEAD = """schema = "shardwright/fleet@1"
start = "2026-12-01"

[[cluster]]
name = "east"
on = "2x8xh100-sxm"
price = "2.50$"
"""
JOB = """
[[job]]
name = "{name}"
model = "llama-3.1-8b"
tokens = "10B"
seq = 4096
global_batch = 256
"""
FIRST, SECOND = JOB.format(name="first"), JOB.format(name="second")


def typed(*arguments):
    done = CliRunner().invoke(app, ["fleet", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def written(folder, text):
    path = folder / "jobs.toml"
    path.write_text(text)
    return path


QUICK = ("--no-cache", "-q", "--workers", "1", "--time-limit", "20s")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    path = written(
        folder,
        HEAD
        + FIRST
        + 'deadline = "2026-12-06"\npriority = 2\n'
        + SECOND
        + 'deadline = "2d"\nlate = "500$"\n',
    )
    text = typed(path, "-o", folder / "out", *QUICK)
    return folder / "out", text


def test_the_report_is_narrow_and_says_who_when_and_what_it_costs(made):
    _, text = made
    assert max(map(len, text.splitlines())) <= 100
    for word in ("Fleet", "Proof", "proven", "first", "second", "east (2x8xh100-sxm)", "█", "Buy",
                 "1 more node of east", "device-hours", "given in the", "Assumed"):  # fmt: skip
        assert word in text, word


def test_the_file_holds_the_schedule_its_proof_and_its_costs(made):
    folder, _ = made
    data = json.loads((folder / "fleet.json").read_text())
    assert data["status"] == "optimal"
    assert data["gap"] <= 1e-4
    assert [level["name"] for level in data["levels"]] == ["lateness", "cost", "end"]
    phases = [phase for run in data["runs"] for phase in run["phases"]]
    for phase in phases:
        assert phase["devices"] == 8 * phase["nodes"]
        # Rounded up to whole hours: nothing ends before it is done.
        kept = phase["end_h"] - phase["begin_h"]
        assert phase["price"]["hours"] <= kept < phase["price"]["hours"] + 1
        assert phase["usd"] == pytest.approx(2.5 * phase["devices"] * phase["price"]["hours"])
    fines = sum(run["usd_late"] for run in data["runs"])
    assert data["usd"] == pytest.approx(sum(phase["usd"] for phase in phases) + fines)
    assert data["levels"][1]["value"] == pytest.approx(data["usd"])
    at = sorted((phase["begin_h"], phase["end_h"], phase["nodes"]) for phase in phases)
    if at[0][1] > at[1][0]:
        assert at[0][2] + at[1][2] <= 2


def test_the_page_is_self_contained(made):
    folder, _ = made
    page = (folder / "fleet.html").read_text()
    assert "<svg" in page
    assert page.count("<rect") >= 2
    assert not re.search(r"(src|href)=\"http", page)
    assert "<script" not in page
    assert len(page) < 3e6
    said = json.loads((folder / "fleet.json").read_text())["clusters"]
    assert all(use["price_words"] and use["price_words"] in page for use in said)


def test_a_step_is_what_plan_says(tmp_path):
    question, _ = read_fleet(written(tmp_path, HEAD + FIRST))
    (asked,) = step_task(question, 0, 0, 0, 2).questions
    answer = LayoutTask(question=asked).solve()
    text = typed(tmp_path / "jobs.toml", "--json", *QUICK)
    (phase,) = json.loads(text)["runs"][0]["phases"]
    if phase["nodes"] == 2:
        found = phase["price"]["step"]["step_s"]["value"]
        assert found == pytest.approx(answer.chosen.prediction.step_time_s.value)


def test_frozen_weights_and_states_of_few_bits_are_asked_of_every_layout(tmp_path):
    few = 'lora = 16\nbase_precision = "nf4"\noptimizer = "adamw8bit"\n'
    question, _ = read_fleet(written(tmp_path, HEAD + FIRST + few + SECOND))
    (asked,), (usual,) = (step_task(question, run, 0, 0, 2).questions for run in (0, 1))
    assert (asked.lora_rank, *asked.options.words) == (
        16,
        "--base-precision nf4",
        "--optimizer adamw8bit",
    )
    assert (usual.lora_rank, usual.options.words) == (0, ())


def test_hard_deadlines_that_cannot_be_kept_end_with_3_and_what_would_help(tmp_path, capsys):
    late = 'deadline = "20h"\nlate = "never"\n'
    path = written(tmp_path, HEAD + FIRST + late + SECOND + late)
    done = CliRunner().invoke(app, ["fleet", str(path), *QUICK])
    assert isinstance(done.exception, InfeasibleError)
    assert done.exception.exit_code == 3
    assert "Binds" in done.output
    assert "Would fit" in done.output
    assert "deadlines: " in done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD.replace('price = "2.50$"', 'price = "2.50"') + FIRST,
         r"line 7: cluster\[0\]\.price: '2\.50' has no unit"),
        (HEAD + FIRST.replace('"10B"', '"10"'), r"line 12: job\[0\]\.tokens: .*unit missing"),
        (HEAD + FIRST.replace('"10B"', '"10TB"'), r"line 12: job\[0\]\.tokens: '10TB'"),
        (HEAD + FIRST + 'clusters = ["west"]\n', r"unknown cluster 'west'.*line 15: job\[0\]"),
        (HEAD + FIRST + 'deadline = "2026-11-01"\n',
         r"line 15: job\[0\]\.deadline: 2026-11-01 is before the start"),
        (HEAD + FIRST + 'deadline = "2026-12-05"\nnot_before = "2026-12-09"\n',
         r"line 15: job\[0\]\.deadline: 2026-12-05 is not after 2026-12-09"),
        (HEAD + FIRST + 'deadline = "45"\n', r"line 15: job\[0\]\.deadline: '45' has no unit"),
        (HEAD + FIRST + 'base_precision = "nf4"\n',
         r"line 15: job\[0\]\.base_precision: 'nf4'; only frozen weights .* give lora = RANK"),
        (HEAD + FIRST + 'lora = 16\nbase_precision = "nf5"\n', r"unknown type of .*line 16"),
        (HEAD + FIRST + 'optimizer = "adamw9bit"\n', r"unknown optimizer 'adamw9bit'.*line 15"),
        (HEAD + FIRST + 'late = "never"\n', r"job\[0\]\.late: 'never' has no effect"),
        (HEAD + FIRST + 'prority = 3\n', r"unknown key 'prority'.*line 15.*mean 'priority'"),
        (HEAD + FIRST + FIRST, r"line 16|job\[1\]\.name: 'first' is there already"),
        (HEAD + FIRST + 'after = ["first"]\n', r"unknown job 'first'"),
        (HEAD + FIRST + 'after = ["second"]\n' + SECOND + 'after = ["first"]\n', "on itself"),
        (HEAD.replace("2026-12-01", "tomorrow") + FIRST, r"start: 'tomorrow' is not a date"),
        (HEAD.replace("h100-sxm", "h1000") + FIRST, r"line 6: cluster\[0\]\.on: .*h1000"),
        (HEAD + FIRST.replace("llama-3.1-8b", "llama-9"), r"line 11: job\[0\]\.model: "),
        (HEAD + FIRST + "nodes = ]\n", r"not valid TOML.*line 15"),
        (HEAD, r"'job' is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(tmp_path, text, said):
    with pytest.raises(DocumentError) as told:
        read_fleet(written(tmp_path, text))
    assert "jobs.toml" in str(told.value)
    assert re.search(said, str(told.value)), str(told.value)


def test_dates_may_be_dates_of_toml_and_days_end_at_midnight(tmp_path):
    text = HEAD.replace('"2026-12-01"', "2026-12-01") + FIRST + "deadline = 2026-12-03\n"
    question, _ = read_fleet(written(tmp_path, text + 'not_before = "2026-12-02T06:00"\n'))
    run = question.runs[0]
    assert (run.deadline_h, run.not_before_h) == (72.0, 30.0)


def test_nodes_of_a_cluster_file(tmp_path):
    whole = get_cluster("4x8xh100-sxm")
    part = part_of(whole, 2)
    assert (part.num_devices, part.levels[-1].domain_size) == (16, 16)
    assert part_of(whole, 4) is whole


def test_buying_a_cluster_against_renting_its_hours(tmp_path):
    """2 nodes of 8 for 100 hours: half of the 1,600 device-hours are used."""
    owning = tmp_path / "owning.toml"
    owning.write_text(
        'schema = "shardwright/owning@1"\npurchase_usd_per_device = 35040\nnetwork_share = 0.25\n'
        "staff_usd_per_device_year = 876\ndepreciation_years = 5\nresidual_share = 0.25\n"
        "hosting_usd_per_kw_month = 0\npower_usd_per_kwh = 0\n"
    )
    path = written(tmp_path, HEAD + FIRST)
    question, _ = read_fleet(path)
    (cluster,) = question.clusters
    found = own_or_rent(
        cluster,
        read_owning(owning),
        open_device_hours=1600.0,
        used_device_hours=800.0,
        offers=None,
    )
    # $0.80 of purchase and $0.10 of staff an hour, used or not, against $2.50 of rent.
    assert found.owned_usd.value == pytest.approx(1600 * 0.9)
    assert found.rented_usd is not None
    assert found.rented_usd.value == pytest.approx(800 * 2.5)
    assert found.purchase_usd.value == pytest.approx(16 * 35040 * 1.25)
    assert found.buy is True
    assert found.pays_from is not None
    assert found.pays_from.value == pytest.approx(0.9 / 2.5)
    text = typed(path, "--owning", owning, *QUICK)
    assert "Owning  east: buy (owned" in text
    assert "owning pays from 36 % use" in " ".join(text.split())
