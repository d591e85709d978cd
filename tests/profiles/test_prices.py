"""Prices of devices: the shipped offers against their table, and the median by hand."""

from __future__ import annotations

import csv
import random
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import base_of, device_names
from profiles.hardware.prices.offer import KINDS, Offer, shipped_offers
from profiles.hardware.prices.price_table import (
    SAME_CHIP,
    device_price,
    kinds_of,
    price_or_relatives,
    with_own,
)
from tools.derive_prices import current

TABLE = Path(__file__).parents[3] / "shared" / "hardware" / "prices.csv"


def offer(provider: str, usd: float, **changes: str) -> Offer:
    made = Offer(
        provider=provider,
        region="r1",
        kind="on-demand",
        device="h200-sxm",
        usd_per_device_hour=usd,
        date="2026-10-08",
        address="a price list",
    )
    return replace(made, **changes)


def table() -> list[dict[str, str]]:
    if not TABLE.is_file():
        pytest.skip("the table prices.csv is not beside the checkout")
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def resolved(name: str) -> str:
    try:
        return base_of(name)
    except UnknownNameError:
        return ""


# --- the median -----------------------------------------------------------------------------------


def test_each_provider_counts_once_at_its_cheapest_region() -> None:
    offers = [
        offer("wide", 9.0, region="a"),
        offer("wide", 8.0, region="b"),
        offer("wide", 12.0, region="c"),
        offer("wide", 11.0, region="d"),
        offer("small", 3.0, date="2026-09-20"),
        offer("middle", 4.0),
        offer("spotty", 1.0, kind="spot"),
        offer("other", 1.0, device="h100-sxm-80gb"),
    ]
    found = device_price("h200", offers=offers)
    assert found is not None
    assert (found.usd_per_hour, found.low, found.high) == (4.0, 3.0, 8.0)
    assert found.providers == ("middle", "small", "wide")
    assert [each.region for each in found.offers] == ["r1", "r1", "b"]
    assert (found.oldest_date, found.date) == ("2026-09-20", "2026-10-08")
    assert found.words == (
        "median of 3 providers (middle, small, wide), on-demand, 2026-09-20 to 2026-10-08"
    )
    assert found.range_words == "$3.00 (small) to $8.00 (wide)"
    # Quartiles of 3, 4, 8: 3.5 and 6.
    assert found.half_spread == pytest.approx(2.5 / 2 / 4)
    assert found.sourced().source == f"{found.words}; {found.range_words}"


def test_one_provider_is_named_and_many_are_counted() -> None:
    alone = device_price("h200", offers=[offer("small", 3.0)])
    assert alone is not None
    assert alone.words == "small, on-demand, 2026-10-08"
    assert alone.half_spread == 0
    many = device_price("h200", offers=[offer(f"p{i}", 1.0 + i) for i in range(4)])
    assert many is not None
    assert many.usd_per_hour == 2.5
    assert many.words == "median of 4 providers, on-demand, 2026-10-08"


def test_no_offer_is_none_and_a_relative_is_said() -> None:
    h100 = [offer("small", 3.0, device="h100-sxm-80gb")]
    assert device_price("h200", offers=h100) is None
    assert device_price("h800", offers=h100) is None
    lent = price_or_relatives("h800", offers=h100)
    assert lent is not None
    assert (lent.device, lent.borrowed_from) == ("h800-sxm-80gb", "h100-sxm-80gb")
    assert "offers of h100-sxm-80gb" in lent.words
    half = price_or_relatives("h800-sxm-80gb/2", offers=h100)
    assert half is not None
    assert half.usd_per_hour == 1.5
    assert price_or_relatives("mi355x", offers=h100) is None
    with pytest.raises(UnknownNameError, match="on-demand"):
        device_price("h100", "on demand")
    with pytest.raises(UnknownNameError, match="h101"):
        device_price("h101")


def test_a_variant_costs_what_its_device_costs() -> None:
    limited, usual = price_or_relatives("h100-sxm@500w"), price_or_relatives("h100-sxm-80gb")
    assert limited is not None
    assert usual is not None
    assert limited.usd_per_hour == usual.usd_per_hour


def test_a_share_costs_its_part() -> None:
    offers = [offer("small", 3.0), offer("large", 5.0)]
    whole, part = device_price("h200", offers=offers), device_price("H200/4", offers=offers)
    assert whole is not None
    assert part is not None
    assert (part.usd_per_hour, part.low, part.high) == (1.0, 0.75, 1.25)
    assert part.half_spread == whole.half_spread
    assert "1 of 4 parts of a device" in part.words


def test_offers_older_than_90_days_are_found() -> None:
    price = device_price(
        "h200", offers=[offer("old", 1.0, date="2026-07-10"), offer("new", 2.0, date="2026-07-11")]
    )
    assert price is not None
    # 90 days before 2026-10-09 is 2026-07-11.
    assert [each.provider for each in price.stale_offers("2026-10-09")] == ["old"]
    assert [each.provider for each in price.stale_offers("2026-10-10")] == ["old", "new"]
    assert price.stale_offers("2026-08-01") == ()


PRICES = st.dictionaries(
    st.sampled_from([f"p{i}" for i in range(6)]),
    st.lists(st.floats(0.1, 50), min_size=1, max_size=4),
    min_size=1,
)


@given(PRICES, st.randoms(use_true_random=False))
def test_the_price_is_the_median_of_the_least(by_provider, shuffler) -> None:
    offers = [
        offer(name, usd, region=f"r{i}")
        for name, every in by_provider.items()
        for i, usd in enumerate(every)
    ]
    expected = statistics.median(min(every) for every in by_provider.values())
    found = device_price("h200", offers=offers)
    assert found is not None
    assert found.usd_per_hour == pytest.approx(expected)
    assert found.low <= found.usd_per_hour <= found.high
    # Neither their order nor one more dear region changes it.
    shuffler.shuffle(offers)
    offers.append(offer(min(by_provider), 60.0, region="dear"))
    again = device_price("h200", offers=offers)
    assert again is not None
    assert again.usd_per_hour == found.usd_per_hour
    assert [o.usd_per_device_hour for o in again.offers] == [
        o.usd_per_device_hour for o in found.offers
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"date": "yesterday"}, "2026-10-08"),
        ({"date": ""}, "has the date ''"),
        ({"address": " "}, "has no address"),
        ({"provider": ""}, "has no provider"),
        ({"kind": "reserved"}, "reserved-1y"),
        ({"usd_per_device_hour": 0.0}, "more than 0"),
        ({"usd_per_device_hour": float("nan")}, "more than 0"),
    ],
)
def test_an_offer_that_cannot_be_is_refused(changes, said) -> None:
    with pytest.raises(InputError, match=said):
        replace(offer("small", 1.0), **changes)


def test_own_offers_replace_ours_of_the_same_device_and_kind() -> None:
    mine = (offer("mine", 2.0),)
    both = with_own(mine)
    h200, h100 = device_price("h200", offers=both), device_price("h100", offers=both)
    assert h200 is not None
    assert h200.providers == ("mine",)
    assert h100 == device_price("h100")
    spot = device_price("h200", "spot", both)
    assert spot == device_price("h200", "spot")


# --- what we ship ---------------------------------------------------------------------------------


def test_enough_current_offers_of_enough_providers() -> None:
    offers = shipped_offers()
    assert len(offers) >= 250
    assert len({each.provider for each in offers}) >= 12
    assert {each.date[:4] for each in offers} == {"2026"}
    assert {each.device for each in offers} <= set(device_names())
    assert {each.kind for each in offers} <= set(KINDS)
    assert len({(o.provider, o.region, o.device, o.kind) for o in offers}) == len(offers)


def test_vendors_are_not_ranked_by_the_regions_of_one_cloud() -> None:
    """Weighted by regions a GB200 was $33.26 and an H100 $11.96."""
    found = {name: device_price(name) for name in ("h100", "h200", "b200", "gb200", "mi300x")}
    dollars = {name: each.usd_per_hour for name, each in found.items() if each is not None}
    assert len(dollars) == 5
    assert 3 < dollars["h100"] < 4.5
    assert dollars["h100"] < dollars["h200"] < dollars["b200"] < dollars["gb200"] < 12
    assert dollars["mi300x"] < dollars["h200"]


def test_every_relative_is_in_the_catalogue_and_the_same_chip() -> None:
    for device, lender in SAME_CHIP.items():
        assert (base_of(device), base_of(lender)) == (device, lender)
        assert kinds_of(device)


def test_the_shipped_offers_are_those_of_the_table() -> None:
    """All that tools/derive_prices.py takes of the table, and nothing else."""
    expected = [
        (r["provider"], r["region"], r["device"], r["kind"], float(r["usd_per_device_hour"]))
        for r in current(table())
    ]
    ours = [
        (o.provider, o.region, o.device, o.kind, o.usd_per_device_hour) for o in shipped_offers()
    ]
    assert ours == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ten_offers_drawn_at_random_stand_in_the_table(seed: int) -> None:
    rows = table()
    for drawn in random.Random(seed).sample(shipped_offers(), 10):
        alike = [
            row
            for row in rows
            if (row["provider"], row["region"], row["instance"], row["kind"], row["date"])
            == (drawn.provider, drawn.region, drawn.instance, drawn.kind, drawn.date)
            and resolved(row["device"]) == drawn.device
        ]
        assert len(alike) >= 1, drawn
        assert drawn.address in {row["source"] for row in alike}
        assert drawn.usd_per_device_hour in {float(row["usd_per_device_hour"]) for row in alike}


def test_each_number_is_the_median_of_the_table_by_another_way() -> None:
    """From the table itself: newest row per region and instance, least per provider, median."""
    newest: dict[tuple[str, ...], dict[str, str]] = {}
    for row in table():
        if row["date"].startswith("2026-"):
            key = tuple(row[n] for n in ("provider", "device", "kind", "region", "instance"))
            if key not in newest or newest[key]["date"] < row["date"]:
                newest[key] = row
    for device, kind in {(o.device, o.kind) for o in shipped_offers()}:
        least: dict[str, float] = {}
        averages: dict[str, float] = {}
        for row in newest.values():
            if (row["device"], row["kind"]) == (device, kind):
                usd = float(row["usd_per_device_hour"])
                into = averages if row["instance"].startswith("average of") else least
                into[row["provider"]] = min(usd, into.get(row["provider"], usd))
        merged = averages | least
        if not merged:
            continue  # an alias of the table, which the catalogue resolves
        found = device_price(device, kind)
        assert found is not None
        assert found.usd_per_hour == pytest.approx(statistics.median(merged.values())), device
        assert (found.low, found.high) == (min(merged.values()), max(merged.values()))


# --- the derivation -------------------------------------------------------------------------------


def test_what_is_taken_of_a_table() -> None:
    def row(**changes: str) -> dict[str, str]:
        plain = {
            "provider": "a",
            "region": "",
            "instance": "x",
            "device": "h200-sxm",
            "kind": "on-demand",
            "usd_per_device_hour": "3",
            "date": "2026-10-08",
            "source": "s",
            "notes": "",
        }
        return {**plain, **changes}

    rows = [
        row(date="2026-09-01", usd_per_device_hour="2"),  # replaced by the next
        row(),
        row(instance="y", usd_per_device_hour="2.5"),  # the cheapest instance
        row(instance="average of 3 listed prices", usd_per_device_hour="1"),
        row(provider="b", instance="average of 2 listed prices"),
        row(provider="c", date=""),
        row(provider="d", date="2025-12-31"),
        row(provider="e", device="abacus"),
        row(provider="f", device="gh200"),
    ]
    found = [(r["provider"], r["device"], r["usd_per_device_hour"]) for r in current(rows)]
    assert found == [("f", "gh200-96gb", "3"), ("a", "h200-sxm", "2.5"), ("b", "h200-sxm", "3")]
