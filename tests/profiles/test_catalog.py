"""The catalogue: every device against sane ranges and the specification table; cluster strings."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalog import device_names, get_cluster, get_device
from profiles.hardware.prices import price_of

SPECS = Path(__file__).parents[3] / "shared" / "hardware" / "specs.csv"
IN_SPECS = {
    "h100-sxm-80gb": "h100_sxm",
    "h200-sxm": "h200_sxm",
    "a100-sxm-80gb": "a100_sxm",
    "b200-sxm": "b200_sxm",
    "gb200-nvl72": "gb200",
    "gb300-nvl72": "gb300",
    "l40s": "l40s",
}


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_sane(name: str) -> None:
    device = get_device(name)
    peak = device.peak("bfloat16").value
    # FLOP per byte of memory traffic: from V100's fp32 (17) to Blackwell (310).
    assert 10 < peak / device.memory_bandwidth_bytes_per_s.value < 700
    assert 14e9 < device.memory_bytes.value < 320e9
    assert 100 < device.power_w.value < 1500
    assert device.usable_bytes < device.memory_bytes.value
    for alias in device.aliases:
        assert get_device(alias) is get_device(name)
    if device.efficiency_of:
        assert get_device(device.efficiency_of).measurements is not None


@pytest.mark.parametrize(("ours", "theirs"), IN_SPECS.items())
def test_figures_agree_with_the_specification_table(ours: str, theirs: str) -> None:
    if not SPECS.is_file():
        pytest.skip(f"the specification table {SPECS.name} is not beside the checkout")
    with SPECS.open(encoding="utf-8") as stream:
        rows = [r for r in csv.DictReader(stream) if r["accelerator"] == theirs]
    found = {row["attribute"]: float(row["value"]) for row in rows}
    device = get_device(ours)
    peak = device.peak("bfloat16").value / 1e12
    assert peak == pytest.approx(found["peak_tflops_bf16"], rel=0.02)
    bandwidth = device.memory_bandwidth_bytes_per_s.value
    unit = 1e12 if found["mem_bandwidth"] < 100 else 1e9
    assert bandwidth == pytest.approx(found["mem_bandwidth"] * unit, rel=0.05)
    assert device.power_w.value == pytest.approx(found["power_max"], rel=0.02)


def test_a_string_is_nodes_by_devices() -> None:
    cluster = get_cluster("4x8xh100-sxm")
    assert (cluster.num_nodes, cluster.num_devices) == (4, 32)
    # 900 GB/s both ways over NVLink 4 is 450 one way; NDR is 400 Gb/s = 50 GB/s per device.
    inside, across = cluster.level_between((0, 7)), cluster.level_between((7, 8))
    assert inside.link.bandwidth_bytes_per_s.value == 450e9
    assert across.link.bandwidth_bytes_per_s.value == 50e9
    graph = cluster.graph()
    assert graph.nodes["d9"]["device"] == "h100-sxm-80gb"
    assert graph.edges["d9", "node1"]["bandwidth_bytes_per_s"] == 450e9
    assert graph.edges["node1", "fabric0"]["bandwidth_bytes_per_s"] == 8 * 50e9


def test_mixed_devices_are_joined_by_plus() -> None:
    cluster = get_cluster("1x8xh100-sxm+1x8xa100")
    assert not cluster.homogeneous
    assert cluster.device_at(7).name == "h100-sxm-80gb"
    assert cluster.device_at(8).name == "a100-sxm-80gb"
    # The slower of the two fabrics carries both: HDR, 25 GB/s.
    assert cluster.level_between((7, 8)).link.bandwidth_bytes_per_s.value == 25e9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9xh100", "holds 8 devices, not 9; write 2x8xh100"),
        ("0x8xh100", "counts must be 1 or more"),
        ("4x8xh101", "Did you mean 'h100'"),
        ("4*8*h100", "is not a cluster; write 4x8xh100-sxm"),
        ("local", "run `shardwright profile` first"),
    ],
)
def test_wrong_strings_say_what_to_write(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", "\\(").replace("`", ".")):
        get_cluster(text)


def test_prices_are_dated_medians() -> None:
    price = price_of("h100-sxm-80gb")
    assert price is not None
    assert 1 < price.value < 15
    assert price.date.startswith("2026-")
    with pytest.raises(UnknownNameError, match="on-demand"):
        price_of("h100-sxm-80gb", "on demand")
