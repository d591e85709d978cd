"""Prices of a module's kernels, passes and memory against hand calculations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.kernels import DeviceKernel, Direction, Kernel
from shardwright.runs.module_row import (
    ModuleSetting,
    module_framework,
    module_setting,
    optimizer_kind,
    predict_step,
)
from shardwright.runs.module_table import ModuleRow
from simulator.traced.in_step import in_step
from simulator.traced.kernel_arrays import kernel_arrays
from simulator.traced.kernel_constants import module_constants
from simulator.traced.kernel_seconds import grouped, kernel_seconds, kernels_costs
from tests.simulator.hand_made import one_pass

MIB = 2**20


class _Plain(dict[str, float]):
    """Every share 1, everything added 0, but for what is given."""

    def __missing__(self, key: str) -> float:
        added = key.startswith(
            ("small.", "reorder.", "fill", "cached", "start_us", "step_us", "host.")
        )
        return 0.0 if added else 1.0

    def get(self, key: str, default: float = 0.0) -> float:
        return self[key]


def seconds(
    kernel: DeviceKernel, values: Mapping[str, float], *, device: str = "a100-sxm-80gb"
) -> float:
    arrays = kernel_arrays([kernel], get_device(device))
    return float(kernel_seconds(grouped(arrays), values)[0])


def matmul(m: int, n: int, k: int, dtype: str = "float16", **more: Any) -> DeviceKernel:
    size = 2 if dtype == "float16" else 4
    return DeviceKernel(
        kernel=Kernel.MATMUL,
        dtype=dtype,
        work_flop=2 * m * n * k,
        read_bytes=size * (m * k + k * n),
        written_bytes=size * m * n,
        batch=1,
        m=m,
        n=n,
        k=k,
        **more,
    )


def convolution(kernel: Kernel = Kernel.CONV, **more: Any) -> DeviceKernel:
    sizes: dict[str, Any] = {"m": 50176, "n": 64, "k": 576, "batch": 1, "taps": 9}
    sizes |= {"work_flop": 2 * 50176 * 64 * 576, "read_bytes": 10**7, "written_bytes": 10**7}
    fixed: dict[str, Any] = {"kernel": kernel, "dtype": "float16"}
    return DeviceKernel(**(fixed | sizes | more))


def elementwise(moved: float, **more: Any) -> DeviceKernel:
    return DeviceKernel(
        kernel=Kernel.ELEMENTWISE,
        dtype="float16",
        read_bytes=int(moved / 2),
        written_bytes=int(moved / 2),
        **more,
    )


def test_a_kernel_that_moves_bytes() -> None:
    # 2.039 TB/s: 1 GB in 0.4904 ms at the whole bandwidth, twice that at half of it.
    whole = seconds(elementwise(1e9), _Plain())
    assert whole == pytest.approx(1e9 / 2.039e12, rel=1e-3)
    half = seconds(elementwise(1e9), _Plain({"bytes.elementwise": 0.5, "start_us": 3.0}))
    assert half == pytest.approx(2 * whole + 3e-6)


@pytest.mark.parametrize(
    ("changes", "direct"),
    [
        ({}, False),
        ({"stride": 2}, True),
        ({"dilation": 2}, True),
        ({"spatial": 3, "taps": 27}, True),
        ({"spatial": 1, "taps": 3}, True),
        ({"stride": 2, "dtype": "float16"}, False),  # tensor cores: no Winograd to miss
    ],
)
def test_convolutions_that_winograd_does_not_take(changes: dict[str, Any], direct: bool) -> None:
    op = convolution(**({"dtype": "float32", "spatial": 2} | changes))
    one, thousandth = (
        seconds(op, _Plain({"peak.conv.direct": share}), device="v100-sxm2-16gb")
        for share in (1.0, 1e-3)
    )
    assert thousandth / one == pytest.approx(1e3 if direct else 1.0, rel=0.1)


WORK, MOVED = "work", "moved"
_BYTES = {"dtype": "float16", "read_bytes": 10**7, "written_bytes": 10**7}


@pytest.mark.parametrize(
    ("op", "shares"),
    [
        (matmul(512, 512, 64), {"peak.matmul.output": WORK, "bytes.matmul": MOVED}),
        (matmul(512, 64, 512, backward=True), {"peak.matmul.input": WORK, "bytes.matmul": MOVED}),
        (matmul(64, 512, 512, backward=True), {"peak.matmul.weight": WORK, "bytes.matmul": MOVED}),
        *(
            (replace(matmul(512, 512, 64), kernel=kernel), {share: WORK, "bytes.matmul": MOVED})
            for kernel, share in (
                (Kernel.BATCHED_MATMUL, "peak.matmul.batched"),
                (Kernel.ATTENTION, "peak.attention"),
            )
        ),
        *(
            (
                convolution(kernel, direction=direction),
                {
                    f"peak.{name}.{direction.value.split()[0]}": WORK,
                    f"bytes.{name}.channels_first": MOVED,
                },
            )
            for kernel, name in (
                (Kernel.CONV, "conv"),
                (Kernel.CONV_1X1, "conv_1x1"),
                (Kernel.GROUPED, "grouped"),
            )
            for direction in Direction
        ),
        (
            convolution(channels_last=True),
            {
                "peak.conv.output": WORK,
                "peak.conv.channels_last": WORK,
                "bytes.conv.channels_last": MOVED,
            },
        ),
        *(
            (
                DeviceKernel(
                    kernel=Kernel.BATCH_NORM, backward=backward, channels_last=last, **_BYTES
                ),
                {
                    f"bytes.batch_norm.channels_{'last' if last else 'first'}."
                    f"{'backward' if backward else 'forward'}": MOVED
                },
            )
            for backward in (False, True)
            for last in (False, True)
        ),
        *(
            (DeviceKernel(kernel=kernel, backward=True, **_BYTES), {f"bytes.{name}": MOVED})
            for kernel, name in (
                (Kernel.ROW_NORM, "row_norm.backward"),
                (Kernel.SORT, "sort"),
                (Kernel.POOL, "pool.backward"),
                (Kernel.SOFTMAX, "softmax"),
            )
        ),
    ],
)
def test_every_share_slows_its_part_of_its_kernels_and_nothing_else(
    op: DeviceKernel, shares: dict[str, str]
) -> None:
    shares = {"architecture.ga100.memory": MOVED, "architecture.ga100.tensor": WORK, **shares}
    parts = {WORK: op.work_flop / 312e12, MOVED: op.moved_bytes / 2.039e12}
    for name in module_constants().values:
        if _Plain()[name]:
            slow = {part: s * (2 if shares.get(name) == part else 1) for part, s in parts.items()}
            expected = math.hypot(*slow.values())
            assert seconds(op, _Plain({name: 0.5})) == pytest.approx(expected, rel=1e-3), name


def test_what_lies_in_the_cache_is_not_read() -> None:
    cache = chip_of(get_device("a100-sxm-80gb")).cache_bytes
    all_cached = _Plain({"cached": 1.0})
    # As many bytes as the cache holds: half of them.
    assert seconds(elementwise(cache), all_cached) == pytest.approx(
        seconds(elementwise(cache), _Plain()) / 2, rel=1e-6
    )


def test_a_product_by_precision() -> None:
    # 2 x 4096^3 flop: 312 TFLOP/s of float16, 156 of TF32, 19.5 of float32; few bytes beside them.
    flop = 2 * 4096**3
    moved = 3 * 4096**2 / 2.039e12
    for dtype, peak in (("float16", 312e12), ("tf32", 156e12), ("float32", 19.5e12)):
        size = 2 if dtype == "float16" else 4
        expected = math.hypot(flop / peak, size * moved)
        found = seconds(matmul(4096, 4096, 4096, dtype), _Plain())
        assert found == pytest.approx(expected, rel=2e-3), dtype


def test_small_products_lose_their_edges_and_the_chip() -> None:
    op = matmul(64, 64, 1024)
    whole = seconds(op, _Plain())
    work = op.work_flop / 312e12
    moved = op.moved_bytes / 2.039e12
    assert whole == pytest.approx(math.hypot(work, moved), rel=1e-3)
    edges = _Plain({f"small.{side}.tensor": 64.0 for side in "mn"})
    assert seconds(op, edges) == pytest.approx(math.hypot(4 * work, moved), rel=1e-3)
    # One part on 108 processors.
    assert seconds(op, _Plain({"fill": 1.0})) == pytest.approx(
        math.hypot(109 * work, moved), rel=1e-3
    )


def test_convolutions_are_reordered_with_channels_first_on_tensor_cores_alone() -> None:
    values = _Plain({"reorder.conv": 2.0})
    moved = 2e7 / 2.039e12
    first, last = convolution(), convolution(channels_last=True)
    plain = seconds(first, _Plain())
    assert seconds(first, values) == pytest.approx(plain + 2 * moved, rel=1e-3)
    assert seconds(last, values) == pytest.approx(plain, rel=1e-6)
    single = convolution(dtype="float32")
    assert seconds(single, values) == seconds(single, _Plain())


def test_grouped_convolutions_without_a_kernel_of_their_own_run_on_a_general_one() -> None:
    values = _Plain({"peak.grouped.general": 0.1})
    even = {"batch": 32, "m": 50176, "n": 8, "k": 72, "channels_last": True}
    whole = seconds(convolution(Kernel.GROUPED, **even), values)
    work, moved = convolution().work_flop / 312e12, 2e7 / 2.039e12
    assert whole == pytest.approx(math.hypot(work, moved), rel=1e-3)
    for odd in ({"n": 24, "k": 24 * 9}, {"n": 16}, {"batch": 8}):
        slow = seconds(convolution(Kernel.GROUPED, **(even | odd)), values)
        assert slow == pytest.approx(math.hypot(10 * work, moved), rel=1e-3), odd


def test_depthwise_convolutions_use_no_tensor_cores() -> None:
    op = convolution(Kernel.DEPTHWISE, direction=Direction.WEIGHT_GRADIENT)
    values = _Plain({"depthwise.peak.channels_first.weight": 0.1})
    work, moved = op.work_flop / 1.95e12, 2e7 / 2.039e12
    assert seconds(op, values) == pytest.approx(math.hypot(work, moved), rel=1e-3)


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
def test_depthwise_convolutions_wider_than_5_by_5_or_with_a_stride_are_slower(last: bool) -> None:
    layout = "channels_last" if last else "channels_first"
    values = _Plain({f"depthwise.wide.{layout}": 3.0, f"depthwise.strided.{layout}": 2.0})

    def slower(**changes: Any) -> float:
        op = convolution(Kernel.DEPTHWISE, channels_last=last, **changes)
        return seconds(op, values) / seconds(op, _Plain())

    assert [slower(taps=taps) for taps in (9, 25, 49)] == pytest.approx([1.0, 1.0, 3.0])
    assert slower(stride=2) == pytest.approx(2.0)
    assert slower(taps=49, stride=2) == pytest.approx(6.0)


def test_a_chip_without_tensor_cores_computes_half_precision_in_single() -> None:
    assert seconds(matmul(2048, 2048, 2048), _Plain(), device="titan-xp") == pytest.approx(
        math.hypot(2 * 2048**3 / 12.15e12, 3 * 2 * 2048**2 / 547.6e9), rel=1e-3
    )
    # Its convolutions are slower still; its matmuls are not.
    slow = _Plain({"peak.emulated": 0.5})
    op = convolution()
    assert seconds(op, slow, device="titan-xp") > 1.9 * seconds(op, _Plain(), device="titan-xp")
    mm = matmul(2048, 2048, 2048)
    assert seconds(mm, slow, device="titan-xp") == seconds(mm, _Plain(), device="titan-xp")


def test_a_step_of_plain_torch_by_hand() -> None:
    """A pass takes as long as the slower of host and device; then the update, and what each step
    takes."""
    values = module_constants().values
    one = elementwise(1e6)
    device = get_device("rtx-3090")
    alone_s = seconds(one, values, device="rtx-3090")
    setting = setting_of("rtx-3090", framework="torch 2.3", optimizer="none")
    for count in (1, 2000):
        made = predict_step(one_pass(*[one] * count), setting).step_time_s.value
        host_s = 1e-6 * count * values["host.forward.new_us"]
        passed_s = ((count * alone_s) ** 6 + host_s**6) ** (1 / 6)
        assert made == pytest.approx(passed_s + 1e-6 * values["step_us"])
    compiled = setting_of("rtx-3090", framework="torch 2.3 compile", optimizer="none")
    made = predict_step(one_pass(*[one] * 2000), compiled).step_time_s.value
    assert made == pytest.approx(2000 * alone_s + 1e-6 * values["step_us"])
    # SGD with momentum: 8 numbers per weight; zeros and additions of kept gradients: 4 more.
    old = setting_of("rtx-3090", framework="torch 1.12", optimizer="sgd momentum0.9")
    none = setting_of("rtx-3090", framework="torch 1.12", optimizer="none")
    large, small = (predict_step(one_pass(one, parameters=(n,)), old) for n in (10**9, 1))
    moved_s = in_step(device).optimizer * 4 * 12e9 / device.memory_bandwidth_bytes_per_s.value
    more_s = large.step_time_s.value - small.step_time_s.value
    assert more_s == pytest.approx(moved_s, rel=1e-3)
    assert none.states.optimizer_traffic_bytes.sgd == 16


@pytest.mark.parametrize(
    ("text", "name", "states", "kernels"),
    [
        ("sgd nesterov momentum0.9 wd0", "sgd with Nesterov momentum", 1, 4),
        ("sgd momentum0.9", "sgd with momentum", 1, 3),
        ("SGD", "sgd", 0, 1),
        ("adam fused (apex)", "adam", 2, 0),
        ("AdamW", "adam", 2, 8),
        ("rmsprop", "rmsprop", 2, 6),
        ("none (zero_grad+fwd+loss+bwd)", "none", 0, 0),
    ],
)
def test_optimizers_by_their_words(text: str, name: str, states: int, kernels: int) -> None:
    kind, taken = optimizer_kind(text, together=False)
    assert (kind.name, kind.states, kind.kernels, taken) == (name, states, kernels, "")


def test_lamb_updates_once_in_many_micro_batches() -> None:
    kind, taken = optimizer_kind("lamb (fused, amp)", together=False)
    assert (kind.states, kind.moved) == (2, 0)
    assert "not counted" in taken


def test_releases_by_their_words() -> None:
    for text, release in (
        ("torch 1.12.0+cu113 eager", (1, 12)),
        ("torch NGC 21.03 (1.9.0a0) eager", (1, 9)),
        ("torch 2.5.0a0+e000cf0ad9.nv24.10 eager", (2, 5)),
    ):
        found, taken = module_framework(text)
        assert (found.release, taken) == (release, "")
        assert found.keeps_gradients == (release < (2, 0))
    found, taken = module_framework("")
    assert "taken as torch" in taken


def test_memory_is_the_sum_of_what_is_held() -> None:
    traced = one_pass(elementwise(1e6), parameters=(10 * MIB,), peak=100 * MIB)
    momentum = setting_of("rtx-3090", precision="fp32", optimizer="sgd momentum=0.9")
    # 40 MiB each of weights, gradients and momentum, 100 MiB of activations.
    assert predict_step(traced, momentum).peak_memory_bytes.value == 220 * MIB
    half = setting_of("rtx-3090", precision="fp16", optimizer="sgd momentum=0.9")
    (rank,) = predict_step(traced, half).ranks
    assert rank.optimizer_bytes == 80 * MIB  # a float32 copy of the weights
    assert rank.parameters_bytes == 20 * MIB


def setting_of(device: str, devices: int = 1, **changes: str) -> ModuleSetting:
    words = {"precision": "amp-fp16", "framework": "torch 2.3", "optimizer": "adam fused"}
    return module_setting(
        ModuleRow(row=1, id="a", factory="a:b", device=device, devices=devices, **(words | changes))
    )


@pytest.mark.parametrize("device", [n for n in device_names() if get_device(n).type != "cpu"])
def test_every_accelerator_has_a_price(device: str) -> None:
    traced = one_pass(matmul(4096, 4096, 4096), convolution(), elementwise(1e8), peak=MIB)
    made = predict_step(traced, setting_of(device))
    assert 0 < made.step_time_s.low < made.step_time_s.value < made.step_time_s.high < 10
    assert made.fits


def test_intervals_widen_with_what_is_not_known() -> None:
    traced = one_pass(matmul(4096, 4096, 4096), peak=MIB)
    widths = []
    for device in ("rtx-3090", "a30", "mi300x"):  # measured; of a measured chip's kind; neither
        time_s = predict_step(traced, setting_of(device)).step_time_s
        widths.append(time_s.high / time_s.low)
    assert widths[0] <= widths[1] < widths[2]


def test_an_op_is_as_uncertain_as_its_share_of_unknown_kernels() -> None:
    """Fills are in too few steps of the fit. Half-widths of both causes add in quadrature."""
    known, fill = elementwise(1e8), replace(elementwise(3e8), kernel=Kernel.FILL)
    costs = kernels_costs([(known,), (fill,), (known, fill)], get_device("rtx-3090"))
    shares = (0.0, 1.0, costs[1].value / costs[2].value)
    assert costs[2].value == pytest.approx(costs[0].value + costs[1].value)
    widths = module_constants().half_widths
    for cost, share in zip(costs, shares, strict=True):
        width = math.hypot(widths["device"], widths["kernel"] * share)
        assert math.log(cost.high / cost.value) == pytest.approx(width)
        assert math.log(cost.value / cost.low) == pytest.approx(width)
        assert cost.method == ("assumed" if share else "interpolated")


def test_gradients_are_summed_beside_the_backward() -> None:
    traced = one_pass(matmul(64, 64, 64), parameters=(10**9,), peak=MIB)
    alone, eight = (setting_of("rtx-3090", count) for count in (1, 8))
    more_s = (
        predict_step(traced, eight).step_time_s.value
        - predict_step(traced, alone).step_time_s.value
    )
    # A ring's 2 x 7/8 of 4 GB over 31.5 GB/s x 0.45 at least, no backward to hide it.
    assert 1.0 < more_s / (1.75 * 4e9 / (31.5e9 * 0.45)) < 1.6


def test_the_shipped_constants_say_how_well_they_fit() -> None:
    shipped = module_constants()
    assert shipped.rows > 500
    assert 0 < shipped.residual < shipped.devices.median < 0.18
    assert shipped.families.mean < 0.2
    assert shipped.fits > 0.9
    # Shares of a bandwidth or a peak; fits may pass 1 where a formula counts bytes twice.
    for name, value in shipped.values.items():
        if name.startswith("bytes."):
            assert 0.05 < value < 2.5, name
