"""Owning against renting, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.hardware.energy.power_draw import power_draw
from profiles.hardware.prices.owning import Owning, OwningFile, owning_of, read_owning
from profiles.hardware.prices.storage_price import StoragePrice, usual_storage
from profiles.sourced import given as said
from simulator.money import RunStorage
from simulator.ownership import OwnedCost, break_even, owned_cost
from simulator.values.prediction import Interval

FILE = """\
schema = "shardwright/owning@1"
purchase_usd_per_device = 35040
network_share = 0.25
staff_usd_per_device_year = 876
depreciation_years = 5
"""


def exactly(value: float) -> Interval:
    return Interval(value=value, low=value, high=value)


def plain(**changes: float) -> Owning:
    numbers = {
        "purchase_usd": 35040.0,
        "network_share": 0.25,
        "depreciation_years": 5.0,
        "hosting_usd_per_kw_month": 146.0,
        "power_usd_per_kwh": 0.1,
        "staff_usd_per_year": 876.0,
        "residual_share": 0.0,
    }
    return Owning(**{name: said(value, "here") for name, value in {**numbers, **changes}.items()})


def test_an_owned_hour_by_hand() -> None:
    cost = owned_cost(plain(), "h100")
    # 35,040 x 1.25 over 5 x 8,760 hours; 876 over 8,760.
    assert cost.capital_usd.value == pytest.approx(1.0)
    assert cost.staff_usd.value == pytest.approx(0.1)
    # Sold for a quarter of the purchase: 35,040 x (1.25 - 0.25) over the same hours.
    sold = owned_cost(plain(residual_share=0.25), "h100")
    assert sold.capital_usd.value == pytest.approx(0.8)
    # 0.896 kW (700 W and 28 %) at $146 a month, twelve months over 8,760 hours: $0.2 per kW-hour.
    assert cost.hosting_usd.value == pytest.approx(0.896 * 0.2)
    assert cost.power_usd.value == pytest.approx(0.0896 * power_draw().pue.value)
    assert cost.idle_power_usd.value == pytest.approx(
        cost.power_usd.value * power_draw().rest_share.value
    )
    fixed = 1.1 + 0.1792
    assert cost.fixed_usd.value == pytest.approx(fixed)
    assert cost.usd_per_used_hour(1.0).value == pytest.approx(fixed + cost.power_usd.value)
    half = fixed + (cost.power_usd.value + cost.idle_power_usd.value) / 2
    assert cost.usd_per_used_hour(0.5).value == pytest.approx(2 * half)
    with pytest.raises(InputError, match="above 0 and at most 1"):
        cost.usd_per_used_hour(0.0)


def round_cost() -> OwnedCost:
    return OwnedCost(
        capital_usd=exactly(1.0),
        hosting_usd=exactly(0.2),
        staff_usd=exactly(0.1),
        power_usd=exactly(0.2),
        idle_power_usd=exactly(0.1),
    )


def test_break_even_by_hand() -> None:
    # (1.3 + 0.1) / (2.9 - (0.2 - 0.1)) = 1.4 / 2.8: half of the calendar, of 5 x 8,760 hours.
    found = break_even(round_cost(), exactly(2.9), years=5)
    assert found.use.value == pytest.approx(0.5)
    assert found.device_hours.value == pytest.approx(21900)
    assert found.ever
    # A rent of $0.8 is cheaper than owning however much it is used: 1.4 / 0.7.
    never = break_even(round_cost(), exactly(0.8), years=5)
    assert never.use.value == pytest.approx(2.0)
    assert not never.ever
    with pytest.raises(InputError, match="no use makes owning cheaper"):
        break_even(round_cost(), exactly(0.1), years=5)


def test_dear_rents_pay_sooner() -> None:
    rent = Interval(value=2.9, low=1.5, high=5.7)
    found = break_even(round_cost(), rent, years=5)
    assert found.use.low == pytest.approx(1.4 / 5.6)
    assert found.use.high == pytest.approx(1.4 / 1.4)


@given(st.floats(0.5, 20), st.floats(0.05, 1))
def test_at_break_even_both_cost_the_same(rent: float, share: float) -> None:
    cost = round_cost()
    found = break_even(cost, exactly(rent), years=4)
    if found.use.value <= 1:
        assert cost.usd_per_used_hour(found.use.value).value == pytest.approx(rent)
        more = min(1.0, found.use.value * (1 + share))
        assert cost.usd_per_used_hour(more).value <= rent * (1 + 1e-9)


def test_a_file_takes_usual_values_with_their_ranges(tmp_path: Path) -> None:
    path = tmp_path / "owning.toml"
    path.write_text(FILE, encoding="utf-8")
    found = read_owning(path)
    assert found.depreciation_years.value == 5
    assert found.power_usd_per_kwh.low < found.power_usd_per_kwh.value
    assert "eia.gov" in found.power_usd_per_kwh.source
    assert "cbre.com" in found.hosting_usd_per_kw_month.source
    cost = owned_cost(found, "h100")
    assert cost.capital_usd.low == cost.capital_usd.value == pytest.approx(1.0)
    assert cost.hosting_usd.low < cost.hosting_usd.value < cost.hosting_usd.high


@pytest.mark.parametrize(
    ("line", "into", "message"),
    [
        ("purchase_usd_per_device = 35040\n", "", "the key 'purchase_usd_per_device' is missing"),
        ("network_share = 0.25\n", "", "the key 'network_share' is missing"),
        ("depreciation_years = 5", "depreciation_years = 0", "must be above 0"),
        ("= 35040", "= -1", "purchase_usd must not be negative"),
        ("network_share", "netwerk_share", "Did you mean 'network_share'"),
    ],
)
def test_what_a_file_lacks_is_named(tmp_path: Path, line: str, into: str, message: str) -> None:
    path = tmp_path / "owning.toml"
    path.write_text(FILE.replace(line, into), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_owning(path)


def test_only_the_unsaid_is_usual() -> None:
    file = OwningFile(
        purchase_usd_per_device=1.0,
        network_share=0.0,
        staff_usd_per_device_year=0.0,
        depreciation_years=4.0,
        hosting_usd_per_kw_month=0.0,
        power_usd_per_kwh=0.05,
    )
    found = owning_of(file, "mine")
    assert {getattr(found, name).source for name in Owning.__slots__} == {"mine"}


def stored(**changes: float) -> RunStorage:
    price = StoragePrice(
        usd_per_gib_month=said(0.02, "own list"),
        egress_usd_per_gib=said(0.05, "own list"),
        words="",
    )
    numbers = {"dataset_bytes": 2.0**40, "checkpoint_bytes": 0.0, "checkpoints": 0.0}
    return RunStorage(price=price, **{**numbers, "sent_bytes": 2.0**40, **changes})


def test_storage_by_hand() -> None:
    # 1 TiB for 73 days: 1,024 GiB x 2.4 months.
    assert stored().storage_usd(exactly(73 * 24)).value == pytest.approx(1024 * 0.02 * 2.4)
    assert stored().egress_usd.value == pytest.approx(51.2)
    both = stored(checkpoint_bytes=2.0**39, checkpoints=2.0)
    assert both.usd_per_hour.value == pytest.approx(2 * stored().usd_per_hour.value)
    with pytest.raises(InputError, match="dataset_bytes"):
        stored(dataset_bytes=-1.0)
    with pytest.raises(InputError, match="negative"):
        StoragePrice(
            usd_per_gib_month=said(-1, "x"), egress_usd_per_gib=said(0, "x"), words="own list"
        )


def test_usual_storage_has_a_range_and_its_sources() -> None:
    price = usual_storage()
    for found in (price.usd_per_gib_month, price.egress_usd_per_gib):
        assert found.low < found.value < found.high
        assert found.source
    assert "2026" in price.words
