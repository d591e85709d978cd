"""A SkyPilot catalog as offers."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.hardware.prices.skypilot_catalog import read_skypilot

H100 = (
    "\"{'Gpus': [{'Name': 'H100', 'Manufacturer': 'NVIDIA', 'Count': 8.0, 'MemoryInfo': "
    "{'SizeInMiB': 81920}}], 'TotalGpuMemoryInMiB': 655360}\""
)
# As RunPod has it: a form in the name, and gigabytes for megabytes.
RUNPOD = (
    "\"{'Gpus': [{'Name': 'A100 PCIe', 'Manufacturer': 'Nvidia', 'Count': 2, 'MemoryInfo': "
    "{'SizeInMiB': 80}}], 'TotalGpuMemoryInMiB': 160}\""
)
ONE = f"""\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
cpu-4,,0,4,16,0.1,north,,
gpu-8,H100,8,128,1600,23.60,north,{H100},10.00
gpu-a,A100,8,96,1000,16,north,{H100.replace("H100", "A100")},
gpu-b,A100,8.0,96,1000,12,north,{H100.replace("H100", "A100").replace("81920", "40960")},
,tpu-v5p-8,1,,,16.8,north,,
,tpu-v2-8,1,,,4,north,,
gpu-1,H100,1,16,200,3.50,north,,
,H100,8,,,9,north,,
pod,A100-80GB,2.0,16,234,2.78,west,{RUNPOD},2.78
odd,Abacus,1,1,1,1,north,,
rtx,RTX4090,1,8,32,0.5,south,,
rtx,RTXA6000,1,8,32,0.4,south,,
"""
# Another order of columns, zones, and a price that only spot has.
TWO = """\
SpotPrice,Region,AvailabilityZone,InstanceType,AcceleratorCount,AcceleratorName,Price,GpuInfo
4.0,east,east-1,x,4,MI300X,,
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("one", ONE), ("two", TWO)):
        (tmp_path / "v8" / name).mkdir(parents=True)
        (tmp_path / "v8" / name / "vms.csv").write_text(text, encoding="utf-8")
    return tmp_path / "v8"


def test_a_catalogue_by_the_names_of_its_columns(folder: Path) -> None:
    found = read_skypilot(folder, "2026-10-08")
    listed = [(o.provider, o.region, o.device, o.kind, o.usd_per_device_hour) for o in found.offers]
    assert listed == [
        ("one", "north", "h100-sxm-80gb", "on-demand", 2.95),
        ("one", "north", "h100-sxm-80gb", "spot", 1.25),
        ("one", "north", "a100-sxm-80gb", "on-demand", 2.0),
        ("one", "north", "a100-sxm-40gb", "on-demand", 1.5),
        ("one", "north", "tpu-v5p", "on-demand", 4.2),
        ("one", "west", "a100-pcie-80gb", "on-demand", 1.39),
        ("one", "west", "a100-pcie-80gb", "spot", 1.39),
        ("one", "south", "rtx-4090", "on-demand", 0.5),
        ("one", "south", "a6000", "on-demand", 0.4),
        ("two", "east", "mi300x", "spot", 1.0),
    ]
    assert {o.date for o in found.offers} == {"2026-10-08"}
    assert {o.address for o in found.offers} == {
        "skypilot-catalog v8/one/vms.csv",
        "skypilot-catalog v8/two/vms.csv",
    }
    assert found.providers == ("one", "two")
    assert found.ignored == {
        "no accelerator": 1,
        "tpu-v2-8 is not in the catalog": 1,
        "a device without its host, which has a separate row": 1,
        "Abacus is not in the catalog": 1,
    }
    assert any("H100 is taken as h100-sxm-80gb" in said for said in found.guessed)


@pytest.mark.parametrize(
    ("changed", "into", "said"),
    [
        ("23.60", "dear", r"one/vms.csv, line 3: Price: .* 'dear'"),
        ("23.60", "-1", r"line 3: Price"),
        ("23.60", "inf", r"line 3: Price"),
        ("AcceleratorCount", "Count", r"line 1: the column 'AcceleratorCount' is missing"),
        ("'SizeInMiB': 81920", "'Size': 81920", r"line 3: GpuInfo: expected a dictionary"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(
    folder: Path, changed: str, into: str, said: str
) -> None:
    path = folder / "one" / "vms.csv"
    path.write_text(ONE.replace(changed, into, 1), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_skypilot(folder, "2026-10-08")


def test_gpu_info_runs_nothing(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    evil = f"\"__import__('pathlib').Path('{mark}').touch()\""
    path = folder / "one" / "vms.csv"
    path.write_text(ONE.replace(H100.replace("H100", "A100"), evil, 1), encoding="utf-8")
    with pytest.raises(InputError, match=r"line 4: GpuInfo"):
        read_skypilot(folder, "2026-10-08")
    assert not mark.exists()


def test_a_date_and_a_folder_are_needed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="2026-10-08"):
        read_skypilot(folder, "today")
    with pytest.raises(InputError, match=r"has no <cloud>/vms.csv"):
        read_skypilot(tmp_path, "2026-10-08")
