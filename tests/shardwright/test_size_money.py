"""What a sized run costs beside its devices, and what buying them or using one's own changes."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiles.document import encode, to_json
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.hardware.prices.owning import read_owning
from shardwright.analysis.size_json import size_json
from shardwright.cli import app
from shardwright.options.size_options import SizeOptions
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.size_brief import size_brief
from shardwright.reports.brief.size_charts import cost_parts, waterfall
from shardwright.reports.terminal_console import console
from shardwright.requests.sizing.owned import compare_owned
from shardwright.requests.sizing.purchase import purchase_of
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import Detail, Sized, SizeSolver
from simulator.goodput.reliability_inputs import DEFAULT
from tests.shardwright.golden import FOLDER

PRICES = """\
schema = "shardwright/prices@1"

[storage]
provider = "our store"
usd_per_gib_month = 0.5
egress_usd_per_gib = 2.0
date = "2026-11-01"
dataset_gib = 1000
checkpoints_kept = 3
egress_gib = 10
"""
OWNING = """\
schema = "shardwright/owning@1"
purchase_usd_per_device = 31000
network_share = 0.12
staff_usd_per_device_year = 600
"""
GIVEN = SizeOptions(
    model="llama-3.1-8b",
    on="h100-sxm",
    tokens="2B",
    nodes="1",
    stack="megatron-core",
    global_batch="256",
)


def solved(**flags: object) -> Sized:
    solver = SizeSolver(
        clock=time.monotonic, today="2026-11-22", limit_s=60.0, runs=200, detail=Detail.BEST
    )
    return solver.solve(size_flags(replace(GIVEN, **flags)))


@pytest.fixture(scope="module")
def plain() -> Sized:
    return solved()


def text_of(shown: object) -> str:
    made = console()
    with made.capture() as captured:
        made.print(shown)
    return " ".join(captured.get().split())


def test_dollars_are_rent_storage_and_egress(plain: Sized, tmp_path: Path) -> None:
    """A terabyte-scale data set and three checkpoints of 14 bytes a parameter at $0.5 per GiB and
    month, 10 GiB sent at $2."""
    path = tmp_path / "prices.toml"
    path.write_text(PRICES)
    own = solved(prices=path).answer.best
    usual = plain.answer.best
    assert own is not None
    assert usual is not None
    kept = 1000 + 3 * DEFAULT.checkpoint_bytes_per_parameter * 8.03e9 / 2**30
    months = own.days.value / (365 / 12)
    assert own.storage_usd.value == pytest.approx(kept * 0.5 * months, rel=1e-3)
    assert own.egress_usd.value == pytest.approx(20.0)
    for found in (own, usual):
        parts = (found.rent_usd, found.storage_usd, found.egress_usd)
        assert found.usd.value == pytest.approx(sum(part.value for part in parts))
    assert own.rent_usd == usual.rent_usd
    # What the search counts is what is shown, but for the median of the simulated time.
    assert own.run.usd - usual.run.usd == pytest.approx(own.usd.value - usual.usd.value, rel=0.05)


def test_outputs_name_whose_prices_of_storage(plain: Sized) -> None:
    data = size_json(plain.question, plain.answer)
    assert data["usd"] == pytest.approx(data["rent_usd"] + data["storage_usd"] + data["egress_usd"])
    words = plain.question.storage.price.words
    assert data["storage_price"] == words
    assert words in text_of(brief_report(size_brief(data)))
    chart = waterfall(data)
    assert words in chart.note
    assert {"storage of data and checkpoints", "egress"} <= {bar.name for bar in chart.bars}
    assert sum(part for _, part in cost_parts(data)) == pytest.approx(data["usd"])
    # Unknown tokens have no data set, and it is said.
    open_ended = solved(tokens="", budget="50000$")
    assert open_ended.question.storage is None
    assert any(
        "storage and egress are not counted" in said for said in open_ended.answer.assumptions
    )


def test_a_wrong_storage_price(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    for wrong, why in (
        (PRICES.replace('date = "2026-11-01"', 'date = ""'), "their day"),
        (PRICES.replace("checkpoints_kept = 3", "checkpoints_kept = -3"), "checkpoints_kept"),
        (PRICES.replace("egress_gib", "egres_gib"), "egres_gib"),
    ):
        path.write_text(wrong)
        with pytest.raises((DocumentError, UnknownNameError), match=why):
            solved(prices=path)


def test_buying_beside_renting(plain: Sized, tmp_path: Path) -> None:
    path = tmp_path / "owning.toml"
    path.write_text(OWNING)
    found = purchase_of(read_owning(path), plain)
    best = plain.answer.best
    assert found is not None
    assert best is not None
    assert found.purchase_usd.value == pytest.approx(8 * 31000 * 1.12)
    assert found.run_usd.value == pytest.approx(
        best.device_hours.value * found.usd_per_hour.value, rel=0.02
    )
    # Runs that pay: hours of use at break-even over those of one run.
    hours = found.use.value * found.years * 8760 * 8
    assert found.runs == pytest.approx(hours / best.device_hours.value, rel=1e-6)
    price = best.run.choice.price_words
    data = size_json(plain.question, plain.answer) | {"owning": encode(found)}
    (section,) = (one for one in size_brief(data).sections if one.title.startswith("Bought"))
    assert price in section.note


@pytest.mark.parametrize(("rent_usd", "told"), [(1e9, False), (1e3, True), (None, False)])
def test_a_brief_says_where_owning_never_pays(rent_usd: float | None, told: bool) -> None:
    data = json.loads((FOLDER / "size_answer.json").read_text(encoding="utf-8"))
    figure = {"value": 1e6, "low": 1e6, "high": 1e6}
    data["owning"] = {
        "purchase_usd": figure,
        "usd_per_hour": figure,
        "run_usd": figure,
        "years": 4.0,
        "rent_usd": rent_usd,
        "use": None if told else figure,
        "words": ["a source"],
        "runs": None if told or rent_usd is None else 2.0,
    }
    (section,) = (one for one in size_brief(data).sections if one.title.startswith("Bought"))
    assert ("in 4 years no use is cheaper than that rent" in section.note) is told


def test_a_rent_whose_cheapest_provider_is_below_the_power(plain: Sized, tmp_path: Path) -> None:
    """At that end no use pays: JSON has no infinity."""
    path = tmp_path / "owning.toml"
    path.write_text(OWNING)
    best = plain.answer.best
    assert best is not None
    rent = replace(best.run.choice.usd_per_hour, low=0.01)
    run = replace(best.run, choice=replace(best.run.choice, usd_per_hour=rent))
    cheap = replace(plain, answer=replace(plain.answer, best=replace(best, run=run)))
    found = purchase_of(read_owning(path), cheap)
    assert found.use.high is None
    assert found.use.low <= found.use.value
    assert to_json(encode(found))


def test_files_of_owning_are_read_before_the_search(tmp_path: Path) -> None:
    asked = ("size", "llama-3.1-8b", "--on", "h100-sxm", "--tokens", "2B", "--quiet")
    cases = (
        (("--owning", str(tmp_path / "missing.toml")), "missing.toml"),
        (("--owned", "a100-sxm"), "write number and type"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SizeSolver, "solve", lambda *_, **__: pytest.fail("searched"))
        for flags, said in cases:
            with pytest.raises((DocumentError, InputError), match=said):
                CliRunner().invoke(app, [*asked, *flags], catch_exceptions=False)


def test_owned_devices_in_the_same_job_or_beside_it(plain: Sized) -> None:
    """Eight A100s and eight H100s: a job on each trains on the sum of both; one job on both on more
    than the faster alone, and on no more than the sum."""
    found = compare_owned("8xa100-sxm-80gb", plain, clock=time.monotonic)
    assert found is not None
    rented, owned, pair, mixed = found.options
    assert pair.tokens_per_day == pytest.approx(rented.tokens_per_day + owned.tokens_per_day)
    assert rented.tokens_per_day < mixed.tokens_per_day <= pair.tokens_per_day * 1.001
    assert mixed.days < rented.days < owned.days
    ended = compare_owned("8xa100-sxm-80gb", plain, clock=time.monotonic, limit_s=0.0)
    assert ended is not None
    assert ended.options[-1].days is None


def test_frozen_weights_and_states_of_few_bits() -> None:
    with pytest.raises(InputError, match="give --lora RANK"):
        size_flags(replace(GIVEN, tokens="1B", base_precision="nf4"))
    tuned = {"tokens": "50M", "stack": "transformers", "lora": 16, "global_batch": "16"}
    wide, few = (solved(**tuned, base_precision=kind) for kind in ("", "nf4"))
    memory = [one.answer.best.run.layout.memory.needed_bytes for one in (wide, few)]
    assert few.answer.best.run.layout.run.frozen_type == "nf4"
    same = replace(few.answer.best.run.layout.run, frozen_type="")
    if same == wide.answer.best.run.layout.run:
        assert memory[1] < memory[0]
    # Adapters alone are kept and sent.
    assert few.question.storage.sent_bytes < 0.01 * 2 * 8.03e9
