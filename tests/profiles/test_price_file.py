"""A user's own prices: TOML and CSV, currencies, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.hardware.prices.offer import KINDS, Offer, shipped_offers
from profiles.hardware.prices.owning import read_owning
from profiles.hardware.prices.price_file import (
    offers_with,
    price_file_text,
    read_price_file,
    storage_of,
)
from profiles.hardware.prices.price_table import device_price

TOML = """\
schema = "shardwright/prices@1"

[currency]
date = "2026-11-20"
eur_in_usd = 1.25

[[offers]]
provider = "our contract"
device = "H200"
kind = "reserved-1y"
price_per_device_hour = 2.0
currency = "EUR"
date = "2026-11-01"

[[offers]]
provider = "neighbour"
device = "h200-sxm"
price_per_device_hour = 3
date = "2026-10-01"
address = "letter of 2026-10-01"
"""
CSV = """\
provider,device,kind,price_per_device_hour,date,currency,currency_in_usd
our contract,H200,reserved-1y,2.0,2026-11-01,eur,1.25
neighbour,h200-sxm,,3,2026-10-01,,
"""


def written(folder: Path, text: str, name: str = "prices.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "text"), [("prices.toml", TOML), ("prices.csv", CSV)])
def test_prices_in_another_currency(tmp_path: Path, name: str, text: str) -> None:
    path = written(tmp_path, text, name)
    first, second = read_price_file(path)
    assert (first.device, first.kind, first.provider) == ("h200-sxm", "reserved-1y", "our contract")
    assert first.usd_per_device_hour == 2.5
    assert "2 eur at 1.25 usd" in first.notes
    assert first.address == str(path)
    assert (second.kind, second.usd_per_device_hour, second.notes) == ("on-demand", 3.0, "")


def test_own_prices_stand_before_ours(tmp_path: Path) -> None:
    offers = offers_with(written(tmp_path, TOML))
    own = device_price("h200", offers=offers)
    assert own is not None
    assert own.words == "neighbour, on-demand, 2026-10-01"
    assert device_price("h100", offers=offers) == device_price("h100")


@pytest.mark.parametrize(
    ("changed", "into", "said"),
    [
        ("eur_in_usd = 1.25", "", r"prices.toml: offers\[0\].currency: 'EUR' has no rate"),
        ('date = "2026-11-20"', "", r"prices.toml: currency: the key 'date' is missing"),
        ("eur_in_usd = 1.25", "eur_in_usd = -1", r"prices.toml: currency.eur_in_usd"),
        ("eur_in_usd = 1.25", "eur = 1.25", r"currency.eur: write the US dollars"),
        ('device = "H200"', 'device = "H20O"', r"offers\[0\].device: unknown device 'H20O'"),
        ('kind = "reserved-1y"', 'kind = "reserved"', r"offers\[0\].kind\). Did you mean 'rese"),
        ("= 2.0", "= 0.0", r"offers\[0\]: a device-hour of h200-sxm at our contract must cost"),
        ("= 2.0", "= nan", r"offers\[0\].price_per_device_hour: expected a finite number"),
        ('date = "2026-11-01"', 'date = "1 Nov"', r"offers\[0\]: the offer of h200-sxm"),
        ("provider =", "provder =", r"offers\[0\].provder\). Did you mean 'provider'"),
        ("prices@1", "prices@2", "schema"),
        ("[[offers]]", "[[offers", r"not valid TOML, or cut short .*line 7"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, changed: str, into: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_price_file(written(tmp_path, TOML.replace(changed, into, 1)))


@pytest.mark.parametrize(
    ("changed", "into", "said"),
    [
        (
            "2026-11-01,eur,1.25",
            "2026-11-01,eur,",
            r"2:currency_in_usd: prices in eur need a rate",
        ),
        ("2026-10-01,,", "2026-10-01,", r"prices.csv:3: 6 cells, but the header names 7"),
        (",3,2026-10-01", ",three,2026-10-01", r"3:price_per_device_hour: 'three' is not"),
        (",3,2026-10-01", ",-3,2026-10-01", r"3:price_per_device_hour: '-3' is not"),
        (",3,2026-10-01", ",3,", r"3:date: the cell is empty"),
        ("provider,device", "vendor,device", r"unknown column 'vendor' \(.*csv:1"),
        ("provider,device,kind,", "provider,device,", r"csv:1: the column 'kind' is missing"),
        ("h200-sxm", "abacus", r"csv:3.*abacus"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, changed: str, into: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_price_file(written(tmp_path, CSV.replace(changed, into, 1), "prices.csv"))


def test_an_empty_file_is_no_price_list(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no offer"):
        read_price_file(written(tmp_path, CSV.splitlines()[0] + "\n", "prices.csv"))
    with pytest.raises(InputError, match="no such file"):
        read_price_file(tmp_path / "prices.toml")


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=9)
TEXTS = TEXTS.filter(lambda text: text not in ("nan", "NaN"))  # an empty cell, as pandas writes it
OFFERS = st.builds(
    Offer,
    provider=TEXTS,
    region=TEXTS,
    instance=TEXTS,
    notes=TEXTS,
    address=TEXTS,
    kind=st.sampled_from(KINDS),
    device=st.sampled_from(["h200-sxm", "mi300x"]),
    usd_per_device_hour=st.floats(1e-3, 1e3),
    date=st.sampled_from(["2026-01-31", "2026-11-09"]),
)


@pytest.mark.parametrize("suffix", [".toml", ".csv"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(offers=st.lists(OFFERS, min_size=1, max_size=4))
def test_what_is_written_is_read_again(tmp_path: Path, suffix: str, offers: list[Offer]) -> None:
    path = written(tmp_path, price_file_text(offers, suffix), f"again{suffix}")
    found = read_price_file(path)
    assert sorted(map(repr, found)) == sorted(map(repr, offers))


def test_another_suffix_is_refused() -> None:
    with pytest.raises(InputError, match=r"\.toml or \.csv"):
        price_file_text((), ".xlsx")


def test_the_examples_of_the_page_are_files_that_can_be_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "prices.md").read_text(encoding="utf-8")
    prices, owning, storage = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    stored = written(tmp_path, 'schema = "shardwright/prices@1"\n' + storage, "stored.toml")
    own = storage_of(stored)
    assert own is not None
    assert own.price(stored).words == "our contract, 2026-11-01"
    assert read_price_file(stored) == ()
    (offer,) = read_price_file(written(tmp_path, prices))
    assert offer.usd_per_device_hour == pytest.approx(2.60 * 1.08)
    assert read_owning(written(tmp_path, owning, "owning.toml")).depreciation_years.value == 5
    said = re.search(r"contains (\d+) offers of (\d+) providers", page)
    assert said is not None
    offers = shipped_offers()
    assert [len(offers), len({each.provider for each in offers})] == [int(n) for n in said.groups()]
