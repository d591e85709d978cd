"""The catalogue: every device against sane ranges and the specification table; cluster strings."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from profiles.document import read_mapping
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import (
    DATA,
    device_names,
    get_cluster,
    get_device,
    node_design,
)
from profiles.hardware.kernels.kernel_surface import surface_path

SHARED = Path(__file__).parents[3] / "shared"
SPECS = SHARED / "hardware" / "specs.csv"
RUNS = SHARED / "truth" / "runs.csv"
# Names of the specification table. Where its sources disagree, all their values are in it.
IN_SPECS = {
    "a100-pcie-80gb": ("NVIDIA A100 PCIe", "a100_pcie"),
    "a100-sxm-80gb": ("NVIDIA A100 SXM", "a100_sxm"),
    "b200-sxm": ("NVIDIA B200 SXM", "b200_sxm", "B200"),
    "b300-sxm": ("NVIDIA B300 SXM", "b300_sxm", "B300"),
    "gaudi2": ("Intel Gaudi2",),
    "gaudi3": ("Intel Gaudi3",),
    "gb200-nvl72": ("NVIDIA GB200 SXM", "gb200", "GB200"),
    "gb300-nvl72": ("NVIDIA GB300 SXM", "gb300", "GB300"),
    "gh200-96gb": ("NVIDIA GH200 SXM (1)", "NVIDIA GH200 SXM"),
    "h100-nvl-94gb": ("NVIDIA H100 NVL",),
    "h100-pcie-80gb": ("NVIDIA H100 PCIe", "h100_pcie"),
    "h100-sxm-80gb": ("NVIDIA H100 SXM", "h100_sxm", "H100"),
    "h200-sxm": ("NVIDIA H200 SXM", "h200_sxm"),
    "l40s": ("NVIDIA L40S", "l40s"),
    "mi300x": ("AMD MI300X",),
    "mi325x": ("AMD MI325X",),
    "mi355x": ("AMD MI355X",),
    "rtx-4090": ("RTX 4090",),
    "rtx-pro-6000": ("NVIDIA RTX PRO 6000", "rtx_pro_6000_server"),
    "tpu-v4": ("Google TPU v4",),
    "tpu-v5e": ("Google TPU v5e",),
    "tpu-v5p": ("Google TPU v5p",),
    "tpu-v6e": ("Google TPU v6e",),
    "tpu-v7x": ("Google TPU v7x",),
    "trainium2": ("AWS Trainium2 / Ultra",),
    "v100-sxm2-32gb": ("V100", "Tesla V100-SXM2-32GB"),
}
RATES = {
    "peak_tflops_bf16": "bf16",
    "peak_tflops_fp16": "fp16",
    "peak_tflops_tf32": "tf32",
    "peak_tflops_fp32": "fp32",
    "peak_tflops_fp8": "fp8",
    "peak_tflops_fp4": "nvfp4",
    "peak_tflops_nvfp4": "nvfp4",
}
# Values that the table has from one source only and that we do not take, with the reason.
NOT_TAKEN = {
    ("b200-sxm", "fp32"): "75 of the HGX page; the table has DGX's 80",
    ("b300-sxm", "fp32"): "75 of the HGX page; the table has DGX's 80",
    (
        "rtx-pro-6000",
        "mem_bandwidth",
    ): "the Server Edition's 1597 GB/s; the table's is the desktop's",
    ("gaudi3", "tf32"): "torch has no TF32 there",
}


@pytest.mark.parametrize("name", device_names())
def test_every_device_is_sane(name: str) -> None:
    device = get_device(name)
    peak = device.peak("bfloat16").value
    # FLOP per byte of memory traffic: from V100's fp32 (17) to Blackwell (310).
    assert 10 < peak / device.memory_bandwidth_bytes_per_s.value < 700
    # From an RTX 3070 (8 GiB) and a laptop board (80 W) to Blackwell.
    assert 8e9 < device.memory_bytes.value < 320e9
    assert 60 < device.power_w.value < 1500
    assert device.usable_bytes < device.memory_bytes.value
    for alias in device.aliases:
        assert get_device(alias) is get_device(name)
    if device.efficiency_of:
        assert surface_path(device.efficiency_of, "gemm").is_file()


def rows_of(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        pytest.skip(f"the table {path.name} is not beside the checkout")
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(("ours", "theirs"), IN_SPECS.items())
def test_figures_agree_with_the_specification_table(ours: str, theirs: tuple[str, ...]) -> None:
    device = get_device(ours)
    listed: dict[str, list[float]] = {}
    for row in rows_of(SPECS):
        if row["accelerator"] in theirs:
            unit = 1e3 if row["unit"] == "GB/s" else 1.0
            figure = RATES.get(row["attribute"], row["attribute"])
            listed.setdefault(figure, []).append(float(row["value"]) / unit)
    checked = {*RATES.values(), "mem_bandwidth", "power_max"} & set(listed)
    checked -= {figure for name, figure in NOT_TAKEN if name == ours}
    assert checked
    for figure in checked:
        if figure == "mem_bandwidth":
            value = device.memory_bandwidth_bytes_per_s.value / 1e12
        elif figure == "power_max":
            value = device.power_w.value
        else:
            value = device.peak(figure).value / 1e12
        assert min(listed[figure]) * 0.98 <= value <= max(listed[figure]) * 1.02, figure


def test_memory_is_what_the_driver_reports() -> None:
    # nvidia-smi shows 81559 MiB on an H100 80GB, of which 847 runs used 77.4 GiB at most.
    h100 = get_device("h100")
    assert h100.memory_bytes.value == pytest.approx(81559 * 2**20, rel=1e-5)
    assert h100.usable_bytes == pytest.approx(77.4 * 2**30, rel=0.001)
    assert h100.tensor_bytes == pytest.approx(73.7 * 2**30, rel=0.001)
    # A device never holds more than the vendor prints, in the larger of the two units.
    for row in rows_of(SPECS):
        for ours, theirs in IN_SPECS.items():
            if row["attribute"] == "mem_capacity" and row["accelerator"] in theirs:
                printed = float(row["value"]) * 2**30
                assert 0.85 < get_device(ours).memory_bytes.value / printed < 1.001


def test_the_largest_measured_peak_fits() -> None:
    for row in rows_of(RUNS):
        # One H200 row prints more than an H200 holds (146.5 GiB): its unit is in doubt.
        if row["peak_memory_gib"] and row["device"] not in ("nan", "h200-sxm"):
            usable = get_device(row["device"]).usable_bytes / 2**30
            assert float(row["peak_memory_gib"]) <= usable + 1.3, row["id"]


def test_every_published_run_has_a_device_with_its_rate() -> None:
    for row in rows_of(RUNS):
        if row["device"] != "nan":
            device = get_device(row["device"])
            assert device.peak(row["precision"] or "bf16").value > 0


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("H100-SXM-80GB", "h100-sxm-80gb"),
        ("A100-SXM4-80GB", "a100-sxm-80gb"),
        ("V100", "v100-sxm2-16gb"),
        ("TPU_v5p", "tpu-v5p"),
        ("TPU-trillium", "tpu-v6e"),
        ("GB200", "gb200-nvl72"),
        ("nvidia b300 sxm6 ac", "b300-sxm"),
    ],
)
def test_names_of_drivers_and_papers(written: str, name: str) -> None:
    assert get_device(written).name == name


def test_four_bit_rates_are_dense() -> None:
    # Twice the fp8 rate; B300 trades other units for thrice, GB300 as well.
    for name, ratio in (("b200", 2), ("gb200", 2), ("b300", 3), ("gb300", 3), ("mi355x", 2)):
        device = get_device(name)
        assert device.peak("nvfp4").value == pytest.approx(
            ratio * device.peak("fp8").value, rel=0.01
        )


def test_a_string_is_nodes_by_devices() -> None:
    cluster = get_cluster("4x8xh100-sxm")
    assert (cluster.num_nodes, cluster.num_devices) == (4, 32)
    # 900 GB/s both ways over NVLink 4 is 450 one way; NDR is 400 Gb/s = 50 GB/s per device.
    inside, across = cluster.level_between((0, 7)), cluster.level_between((7, 8))
    assert inside.link.bandwidth_bytes_per_s.value == 450e9
    assert across.link.bandwidth_bytes_per_s.value == 50e9


@pytest.mark.parametrize(
    ("written", "plain", "link"),
    [
        ("4xp5.48xlarge", "4x8xh100-sxm", "efa-v2"),
        ("2xStandard_ND96isr_H100_v5", "2x8xh100-sxm", "ib-ndr"),
        ("2xa3-highgpu-8g", "2x8xh100-sxm", "eth-200"),
        ("2xg6.48xlarge", "2x8xl4", "eth-100"),
        ("v5p-64", "32xtpu-v5p", "ici-v5p"),
        ("2xv6e-256", "2x256xtpu-v6e", "dcn-200"),
        ("v5litepod-16", "16xtpu-v5e", "ici-v5e"),
    ],
)
def test_nodes_and_slices_by_the_names_of_clouds(written: str, plain: str, link: str) -> None:
    cluster, expected = get_cluster(written), get_cluster(plain)
    assert cluster.groups == expected.groups
    assert cluster.levels[-1].link.name == link


def test_every_cloud_s_node_has_a_device_and_a_network() -> None:
    for name in read_mapping(DATA / "instances.toml"):
        assert get_cluster(f"2x{name}").levels[-1].name == "fabric"


def test_a_cloud_s_node_is_counted_once() -> None:
    with pytest.raises(InputError, match=r"is 8 devices already; write 4xp5\.48xlarge"):
        get_cluster("4x8xp5.48xlarge")


@pytest.mark.parametrize("name", ["4090", "910b", "6000-ada"])
def test_names_of_devices_that_begin_with_a_digit(name: str) -> None:
    (group,) = get_cluster(f"2x8x{name}").groups
    assert (group.count, group.devices_per_node) == (2, 8)
    assert group.device == get_device(name)
    assert get_cluster(f"8x{name}").num_devices == 8


def test_mixed_devices_are_joined_by_plus() -> None:
    cluster = get_cluster("1x8xh100-sxm+1x8xa100")
    assert not cluster.homogeneous
    assert cluster.device_at(7).name == "h100-sxm-80gb"
    assert cluster.device_at(8).name == "a100-sxm-80gb"
    # The slower of the two fabrics carries both: HDR, 25 GB/s.
    assert cluster.level_between((7, 8)).link.bandwidth_bytes_per_s.value == 25e9


@pytest.mark.parametrize(
    ("text", "level", "size"),
    [
        ("16x4xgb200", "rack", 64),  # one rack holds all
        ("32x4xgb200", "rack", 64),  # two racks of 64, as schedulers place them
        ("19x4xgb200", "rack", 72),  # 76 is no even split: a full rack and a tray
        ("2x72xgb200", "node", 72),
        ("4xgb200", "node", 4),
        ("4x4xh100", "node", 4),  # four of a node's eight: nodes are no trays
    ],
)
def test_trays_share_the_nvlink_of_their_rack(text: str, level: str, size: int) -> None:
    inner = get_cluster(text).levels[0]
    assert (inner.name, inner.domain_size) == (level, size)


def test_cards_are_shared_and_hosts_draw_power_as_the_design_says() -> None:
    assert get_cluster("2x8xv100").levels[1].link.shared_by == 2
    assert get_cluster("8xh100").overhead_power == 0.28
    # 8 x 700 W at 0.28 and 8 x 400 W at 0.25.
    mixed = get_cluster("1x8xh100+1x8xa100").overhead_power
    assert mixed == pytest.approx((700 * 0.28 + 400 * 0.25) / 1100)
    assert node_design("GB200").host_devices == 4


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
