"""Energy and carbon, by hand and against published runs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.energy.grid_carbon import grid_of, grids
from profiles.hardware.energy.power_draw import power_draw
from profiles.sourced import SourcedRange
from simulator.energy import carbon, cluster_watts, power_words, run_energy
from simulator.money import kwh_per_million_tokens
from simulator.values.prediction import Interval
from tools.derive_energy import grid_rows, rest_share, utilisations

SHARED = Path(__file__).parents[3] / "shared" / "hardware"
NO_SITE = SourcedRange(value=1.0, low=1.0, high=1.0, source="here", date="")


def rows(name: str) -> list[dict[str, str]]:
    if not (SHARED / name).is_file():
        pytest.skip(f"the table {name} is not beside the checkout")
    with (SHARED / name).open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_energy_by_hand() -> None:
    # 8 H100 of 700 W and 28 % for their host, ten hours: 71.68 kWh; the boards alone 56.
    assert run_energy("h100", 8, 10.0, scope="node").value == pytest.approx(71.68)
    assert run_energy("h100", 8, 10.0, scope="board").value == pytest.approx(56.0)
    for scope in ("node", "board"):
        found = run_energy("h100", 8, 10.0, scope=scope)
        assert found.low + found.high == pytest.approx(2 * found.value)
        assert 0.5 * found.value < found.low < found.value
    site = run_energy("h100", 8, 10.0)
    assert site.value == pytest.approx(71.68 * power_draw().pue.value)
    own = run_energy(
        "h100", 8, 10.0, pue=SourcedRange(value=1.5, low=1.4, high=1.7, source="x", date="")
    )
    assert own.value == pytest.approx(71.68 * 1.5)
    assert own.low < site.low * 1.4
    # Hours with an interval widen it on both sides.
    hours = Interval(value=10.0, low=8.0, high=20.0)
    wide = run_energy("h100", 8, hours)
    assert wide.value == pytest.approx(site.value)
    assert wide.low == pytest.approx(0.8 * site.low)
    assert wide.high == pytest.approx(2 * site.high)


def test_power_follows_utilisation() -> None:
    known = power_draw()
    r, full = known.rest_share.value, known.full_load_mfu.value
    loaded = run_energy("h100", 1, 1.0, scope="node").value
    assert run_energy("h100", 1, 1.0, 0.0, scope="node").value == pytest.approx(r * loaded)
    half = run_energy("h100", 1, 1.0, full / 2, scope="node").value
    assert half == pytest.approx((1 + r) / 2 * loaded)
    assert run_energy("h100", 1, 1.0, 0.9, scope="node").value == pytest.approx(loaded)
    assert "at 100% of full load" in power_words("h100", 0.9)


@given(st.floats(0, 1), st.floats(0, 1))
def test_more_utilisation_is_never_less_power(first: float, second: float) -> None:
    low, high = sorted((first, second))
    a, b = (run_energy("b200", 8, 1.0, mfu) for mfu in (low, high))
    assert a.value <= b.value * (1 + 1e-12)
    assert a.low <= a.value <= a.high


def test_plans_stand_on_the_same_power() -> None:
    cluster = get_cluster("2x8xh100-sxm")
    watts = cluster_watts(cluster, 0.4)
    hour = run_energy("h100", 16, 1.0, 0.4)
    assert watts.value / 1e3 == pytest.approx(hour.value)
    rate = Interval(value=1e6, low=1e6, high=1e6)
    assert kwh_per_million_tokens(rate, cluster, 0.4).value == pytest.approx(hour.value / 3600)


def test_measured_nodes_lie_in_the_interval() -> None:
    """Long runs of one to 64 nodes of MLPerf Training power, each with the MFU of full load."""
    for row in rows("power.csv"):
        steady = "64xSMC-H100-SXM-80GB,gpt3" in f"{row['system']},{row['benchmark']}"
        if row["kind"] != "measured-training" or row["devices_per_node"] != "8":
            continue
        if not steady and "8xE9680x8H100" not in row["system"] and "B200" not in row["system"]:
            continue
        device = "b200" if "B200" in row["system"] else "h100"
        found = run_energy(device, 8, 1.0, scope="node")
        assert found.low <= float(row["avg_watts_per_node"]) / 1e3 <= found.high, row["system"]


def test_olmo_3_boards() -> None:
    """621 W per board at 43 % MFU, measured (Ai2), which full_load_mfu was derived from; with the
    9 % of the hours in which the run stood still."""
    found = run_energy("h100", 1, 0.91, 0.43, scope="board").value
    found += run_energy("h100", 1, 0.09, 0.0, scope="board").value
    assert found * 1e3 == pytest.approx(621, rel=0.02)


def test_palm_on_tpu_v4() -> None:
    """378.5 W per chip with its share of the system (PaLM, appendix B), which the host_power of the
    device file is derived from; the utilisation is not."""
    found = run_energy("tpu-v4", 6144, 1200.0, 0.462, scope="node")
    assert found.low <= 6144 * 1200 * 0.3785 <= found.high


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("h100", -1, 1.0), "must not be negative"),
        (("h100", 1, -1.0), "must not be negative"),
        (("h100", 1, 1.0, -0.1), "must not be negative"),
        (("h101", 1, 1.0), "unknown device"),
    ],
)
def test_no_energy_of_what_cannot_be(arguments, said) -> None:
    with pytest.raises(InputError, match=said):
        run_energy(*arguments)
    with pytest.raises(UnknownNameError, match="scope"):
        run_energy("h100", 1, 1.0, scope="rack")


def test_the_rest_share_by_hand() -> None:
    # Half busy at 0.75 of the power and a quarter busy at 0.625: both say r = 0.5.
    r, deviation = rest_share([(0.5, 0.75), (0.25, 0.625)])
    assert r == pytest.approx(0.5)
    assert deviation == pytest.approx(0.0, abs=1e-12)


def test_the_shipped_rest_share_is_the_tables() -> None:
    points = utilisations(rows("power.csv"))
    assert len(points) >= 5
    r, deviation = rest_share(points)
    assert power_draw().rest_share.value == pytest.approx(r, abs=1e-3)
    assert power_draw().rest_share.uncertainty == pytest.approx(1.645 * deviation, abs=1e-3)


# --- carbon ---------------------------------------------------------------------------------------


def test_carbon_by_hand() -> None:
    energy = Interval(value=1000.0, low=900.0, high=1200.0)
    germany = grid_of("DEU")
    assert germany.kg_per_kwh.value == pytest.approx(0.38095)
    assert germany.kg_per_kwh.date == "2023"
    found = carbon(energy, "Germany")
    assert found.value == pytest.approx(380.95)
    assert found.low == pytest.approx(0.38095 * 900 * (1 - germany.kg_per_kwh.uncertainty))
    assert found.high == pytest.approx(0.38095 * 1200 * (1 + germany.kg_per_kwh.uncertainty))


def test_regions_of_clouds_and_unknown_ones() -> None:
    assert grid_of("gcp:us-central1").kg_per_kwh.value == pytest.approx(0.430)
    for said, code in {
        "FR": "FRA",
        "de": "DEU",
        "US": "USA",
        "aws us-east-1": "aws:us-east-1",
    }.items():
        assert grid_of(said).region == code
    assert grid_of("SE1").kg_per_kwh.value == pytest.approx(0.018)
    assert grid_of("world").kg_per_kwh.value == pytest.approx(0.475)
    with pytest.raises(UnknownNameError, match="Did you mean 'gcp:us-central1'"):
        grid_of("gcp:us-centrl1")


def test_the_interval_of_a_country_holds_what_its_cloud_regions_say() -> None:
    """At least 80 % of the cloud regions of about 2024 in countries of one grid: the width is the
    90 % quantile of these."""
    pairs = [("Germany", "gcp:europe-west3"), ("Belgium", "gcp:europe-west1")]
    pairs += [("Japan", "gcp:asia-northeast1"), ("Poland", "gcp:europe-central2")]
    pairs += [("Singapore", "gcp:asia-southeast1"), ("Netherlands", "gcp:europe-west4")]
    one = Interval(value=1.0, low=1.0, high=1.0)
    inside = 0
    for country, region in pairs:
        found, other = carbon(one, country), carbon(one, region).value
        inside += found.low <= other <= found.high
    assert inside >= 5


def test_every_grid_of_the_table_is_shipped() -> None:
    expected = grid_rows(rows("carbon.csv"))
    assert len(grids()) == len(expected)
    for row in expected:
        found = grid_of(row["region"])
        assert found.kg_per_kwh.value == pytest.approx(float(row["g_per_kwh"]) / 1e3)
        assert found.kg_per_kwh.source.startswith("mlco2/")
