"""Measured collectives: reading a curve by hand, between and beyond the measured groups, files."""

from __future__ import annotations

import csv
import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import device_names, get_link, node_design
from profiles.hardware.catalogue.relatives import collective_relative_of
from profiles.hardware.kernels.collective_curve import (
    COLLECTIVES,
    CollectiveCurve,
    CollectiveCurves,
    ScaledCurves,
    bus_share,
    curves_on,
    load_curves,
)
from tools.derive_links import MEASURED_ON, read_times

TABLE = Path(__file__).parents[3] / "shared" / "hardware" / "collectives.csv.gz"
MEASURED = tuple(MEASURED_ON)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def curve(operation: str, group: int, *points: tuple[float, float]) -> CollectiveCurve:
    return CollectiveCurve(
        operation=operation,
        group_size=group,
        size_bytes=tuple(size for size, _ in points),
        time_us=tuple(time for _, time in points),
        rows=1,
    )


def curves(*more: CollectiveCurve, **fields: object) -> CollectiveCurves:
    plain = ((1e3, 10.0), (1e6, 10.0), (1e9, 10e3))
    own = {(c.operation, c.group_size) for c in more}
    wanted = [(op, n) for op in OPERATIONS for n in (2,) if (op, n) not in own]
    return CollectiveCurves(
        device="hand",
        link="hand",
        source="by hand",
        date="2026-11-21",
        method="by hand",
        curves=(*more, *(curve(op, n, *plain) for op, n in wanted)),
        **fields,
    )


def test_a_curve_is_straight_in_log_log():
    # From 1 MB in 10 us to 100 MB in 1000 us: 10 MB lies half-way, at the geometric mean 100 us.
    line = curve("all_reduce", 8, (1e6, 10.0), (1e8, 1000.0))
    assert line.time_s(1e7) == pytest.approx(100e-6)
    assert line.time_s(1.0) == line.floor_s == pytest.approx(10e-6)


def test_beyond_the_largest_size_its_last_increment_holds():
    # From 1 MB to 9 MB 8 us more: 1 us per MB. 19 MB take 11 + 10 us, not 11 x 19 / 9 = 23 us.
    line = curve("all_gather", 8, (1e6, 3.0), (9e6, 11.0))
    assert line.time_s(19e6) == pytest.approx(22.0e-6, rel=0.01)
    # 0.9 x 11 us / 9 MB = 1.1 us per MB is the least that is believed.
    assert line.time_s(9e6 + 10e6) == pytest.approx((11 + 10 * 0.9 * 11 / 9) * 1e-6)
    flat = curve("all_gather", 8, (1e6, 10.0), (2e6, 10.0))
    assert flat.time_s(4e6) == pytest.approx((10 + 2 * 0.9 * 5) * 1e-6)


def test_bus_bytes_are_nccl_tests():
    assert bus_share("all_reduce", 8) == 2 * 7 / 8
    assert bus_share("all_gather", 4) == bus_share("all_to_all", 4) == 3 / 4
    assert bus_share("send", 2) == bus_share("broadcast", 8) == 1.0


def test_between_groups_times_meet_at_equal_bytes_per_link():
    two = curve("all_gather", 2, (1e3, 8.0), (1e9, 8e3))
    eight = curve("all_gather", 8, (1e3, 32.0), (1e9, 32e3))
    both = curves(two, eight)
    # 1 MB per link is 2 MB on two devices and 8/7 MB on eight; four lie half-way in log2(n).
    at_two, at_eight = two.time_s(2e6), eight.time_s(8e6 / 7)
    assert both.time_s("all_gather", 2, 1e6) == at_two
    assert both.time_s("all_gather", 4, 1e6) == pytest.approx(math.sqrt(at_two * at_eight))


def test_larger_groups_add_the_latency_of_the_last_two():
    made = curves(
        curve("all_gather", 4, (1e3, 7.0), (1e6, 8.0)),
        curve("all_gather", 8, (1e3, 11.0), (1e6, 12.0)),
        curve("all_reduce", 4, (1e3, 10.0), (1e6, 12.0)),
        curve("all_reduce", 8, (1e3, 16.0), (1e6, 18.0)),
    )
    # A ring: 4 us for four devices more, so 1 us each; 72 devices are 64 more than 8.
    assert made.hop_s("all_gather") == pytest.approx(1e-6)
    assert made.time_s("all_gather", 72, 1.0) == pytest.approx((11 + 64) * 1e-6)
    # A tree or the switch: 6 us per doubling; 32 are two doublings.
    assert made.time_s("all_reduce", 32, 1.0) == pytest.approx((16 + 2 * 6) * 1e-6)


def test_messages_without_measurement_are_half_an_all_to_all_of_two():
    made = curves(curve("all_to_all", 2, (1e3, 5.0), (2e6, 20.0)))
    assert made.time_s("send", 2, 1e6) == pytest.approx(20e-6)
    assert made.time_s("broadcast", 2, 5e5) == made.time_s("all_gather", 2, 5e5)


def test_another_link_scales_latency_and_rate():
    made = curves(curve("all_gather", 2, (1e3, 5.0), (2e6, 25.0)))
    half = ScaledCurves(curves=made, rate=0.5, latency=2.0)
    # 5 us of latency become 10; the other 20 us become 40.
    assert half.time_s("all_gather", 2, 1e6) == pytest.approx(50e-6)
    assert ScaledCurves(curves=made).time_s("all_gather", 2, 1e6) == pytest.approx(25e-6)
    for name in MEASURED:
        link = get_link(load_curves(name).link)
        rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
        other = curves_on(name, link.name, 0.5 * rate, 2 * link.latency_s.value)
        assert (other.rate, other.latency) == pytest.approx((0.5, 2.0))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (((1e3, 5.0),), "two or more points"),
        (((1e3, 5.0), (1e3, 6.0)), "growing size"),
        (((1e3, 5.0), (1e4, 4.0)), "growing size and time"),
        (((0.0, 5.0), (1e4, 6.0)), "starts below 0"),
    ],
)
def test_curves_that_cannot_be(points, message):
    with pytest.raises(InputError, match=message):
        curve("all_reduce", 8, *points)


def test_every_operation_must_be_there():
    with pytest.raises(InputError, match="no curve of all_to_all"):
        CollectiveCurves(
            device="hand",
            link="hand",
            source="by hand",
            date="2026-11-21",
            method="by hand",
            curves=tuple(curve(op, 2, (1.0, 1.0), (2.0, 2.0)) for op in OPERATIONS[:3]),
        )


@pytest.mark.parametrize("device", MEASURED)
@given(st.sampled_from(OPERATIONS), st.integers(2, 72), st.floats(1.0, 1e11), st.floats(1.0, 10.0))
@settings(deadline=None, max_examples=40)
def test_more_bytes_are_never_faster_and_no_link_is_outrun(device, operation, group, size, by):
    made = load_curves(device)
    assert made is not None
    time_s = made.time_s(operation, group, size)
    assert 0 < time_s <= made.time_s(operation, group, size * by) * (1 + 1e-9)
    # NVLS reduces in the switch: each device then sends S where a ring sends 2 (n - 1) / n S, so
    # that the bus bandwidth may pass the link's by a factor below 2 (nccl-tests' convention).
    allowed = 2.0 if operation == "all_reduce" else 1.0
    bandwidth = get_link(made.link).bandwidth_bytes_per_s.value
    assert size / time_s < allowed * bandwidth


@pytest.mark.parametrize("device", MEASURED)
def test_the_files_tell_their_errors(device):
    made = load_curves(device)
    assert made is not None
    assert made.link == node_design(device).inner_link
    for operation in OPERATIONS:
        assert made.half_width(operation) < 0.35
        assert made.measured_groups(operation)[:2] == (2, 4)
    assert made.half_width("broadcast") == made.half_width("all_gather")
    medians = [e.median for e in made.held_out if e.split == "sizes" and ":" not in e.where]
    assert max(medians) < 0.1


@pytest.mark.parametrize("device", MEASURED)
def test_curves_agree_with_every_measured_row(device):
    if not TABLE.is_file():
        pytest.skip(f"the table {TABLE.name} is not beside the checkout")
    made = load_curves(device)
    assert made is not None
    with gzip.open(TABLE, "rt", encoding="utf-8", newline="") as stream:
        times = read_times(csv.DictReader(stream), MEASURED_ON[device])
    errors = [
        abs(made.time_s(op, n, bus_share(op, n) * size) / time_s - 1)
        for (op, n, size), found in times.items()
        for time_s in found
    ]
    assert np.median(errors) < 0.06
    assert np.quantile(errors, 0.9) < 0.25


def test_whose_curves_serve():
    def on(device: str, link: str | None = None) -> ScaledCurves | None:
        used = get_link(link or node_design(device).inner_link)
        rate = used.bandwidth_bytes_per_s.value * used.efficiency.value
        return curves_on(device, used.name, rate, used.latency_s.value)

    h100, h800 = on("h100-sxm-80gb"), on("h800-sxm-80gb")
    assert h100 is not None
    assert (h100.rate, h100.latency, h100.reason) == (1.0, 1.0, "")
    # 200 GB/s x 0.8 (160 effective, DeepSeek-V3) over 450 x 0.719 of the H100.
    assert h800 is not None
    assert h800.curves is h100.curves
    assert h800.rate == pytest.approx(160 / (450 * 0.719))
    # Another link than the measured one, a device without curves, and one that nobody knows.
    assert on("h100-sxm-80gb", "pcie5") is None
    assert on("mi300x") is None
    assert curves_on("hand-gpu", "nvlink4", 1e11, 1e-6) is None


def test_every_file_is_a_device_and_every_relative_is_measured():
    files = {path.stem for path in COLLECTIVES.glob("*.toml")}
    assert files == set(MEASURED) <= set(device_names())
    for name in set(device_names()) - files:
        relative = collective_relative_of(name)
        assert relative.reason
        assert relative.measured_on in {"", *files}
