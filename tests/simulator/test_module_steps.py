"""Prices of a module's kernels, passes and memory against hand calculations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from profiles.hardware.catalogue.catalog import device_names, get_device
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.graph import Phase
from profiles.model.steps.module_step import (
    Direction,
    Kernel,
    ModuleStep,
    StepOp,
    StepPrecision,
    step_precision,
)
from profiles.published.module_table import ModuleRow
from simulator.memory.module_step import module_memory
from simulator.modules.kernel_seconds import grouped, kernel_rates, kernel_seconds
from simulator.modules.module_constants import module_constants
from simulator.modules.module_framework import ModuleFramework, module_framework, optimizer_kind
from simulator.modules.predict_module import ModuleSetting, module_setting, predict_module
from simulator.modules.step_arrays import step_arrays
from simulator.modules.step_seconds import StepFacts, step_parts
from simulator.values.prediction import RankMemory

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


def step(
    *ops: StepOp, parameters: tuple[int, ...] = (1000,), peak: int = 0, both: int = 0
) -> ModuleStep:
    return ModuleStep(
        ops=ops,
        parameters=parameters,
        parameter_bytes=4 * sum(parameters),
        buffer_bytes=0,
        gradient_bytes=4 * sum(parameters),
        input_bytes=0,
        peak_bytes=peak,
        peak_with_gradients_bytes=both,
    )


def seconds(
    op: StepOp,
    values: Mapping[str, float],
    *,
    device: str = "a100-sxm-80gb",
    precision: str = "fp16",
) -> float:
    arrays = step_arrays(step(op))
    rates = kernel_rates(arrays, get_device(device), step_precision(precision))
    return float(kernel_seconds(grouped(arrays, rates), values)[0])


def matmul(m: int, n: int, k: int, dtype: str = "float16", **more: Any) -> StepOp:
    size = 2 if dtype == "float16" else 4
    return StepOp(
        op="mm",
        kernel=Kernel.MATMUL,
        phase=Phase.FORWARD,
        dtype=dtype,
        work_flop=2.0 * m * n * k,
        read_bytes=size * (m * k + k * n),
        written_bytes=size * m * n,
        batch=1,
        m=m,
        n=n,
        k=k,
        **more,
    )


def convolution(kernel: Kernel = Kernel.CONV, **more: Any) -> StepOp:
    sizes: dict[str, Any] = {"m": 50176, "n": 64, "k": 576, "batch": 1, "taps": 9}
    sizes |= {"work_flop": 2.0 * 50176 * 64 * 576, "read_bytes": 1e7, "written_bytes": 1e7}
    fixed: dict[str, Any] = {
        "op": "convolution",
        "kernel": kernel,
        "phase": Phase.FORWARD,
        "dtype": "float16",
    }
    return StepOp(**(fixed | sizes | more))


def elementwise(moved: float, **more: Any) -> StepOp:
    return StepOp(
        op="relu",
        kernel=Kernel.ELEMENTWISE,
        phase=Phase.FORWARD,
        dtype="float16",
        read_bytes=moved / 2,
        written_bytes=moved / 2,
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
    for precision, dtype, peak in (
        ("fp16", "float16", 312e12),
        ("tf32", "float32", 156e12),
        ("fp32", "float32", 19.5e12),
    ):
        size = 2 if dtype == "float16" else 4
        expected = math.hypot(flop / peak, size * moved)
        found = seconds(matmul(4096, 4096, 4096, dtype), _Plain(), precision=precision)
        assert found == pytest.approx(expected, rel=2e-3), precision


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
    assert seconds(single, values, precision="fp32") == seconds(single, _Plain(), precision="fp32")


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


def facts(**changes: float) -> StepFacts:
    numbers = dict.fromkeys(StepFacts.__dataclass_fields__, 0.0) | {"bandwidth": 1e12}
    return StepFacts(**{k: np.asarray([x]) for k, x in (numbers | changes).items()})


def test_a_pass_takes_as_long_as_the_slower_of_host_and_device() -> None:
    values = _Plain({"host.forward.new_us": 10.0, "host.view.new_us": 2.0, "step_us": 5.0})
    busy = facts(forward_starts=1000.0, forward_views=500.0)  # 11 ms of the host
    for device_s in (1e-3, 11e-3, 1.0):
        parts = step_parts(busy, np.asarray([device_s]), np.zeros(1), values)
        expected = (device_s**4 + 11e-3**4) ** 0.25 + 5e-6
        assert parts.total_s[0] == pytest.approx(expected)
    compiled = step_parts(
        facts(forward_starts=1000.0, compiled=1.0), np.zeros(1), np.zeros(1), values
    )
    assert compiled.total_s[0] == pytest.approx(5e-6)


def test_the_update_moves_what_the_optimizer_reads_and_writes() -> None:
    # SGD with momentum: 8 numbers per weight; zeros and additions of kept gradients: 4 more.
    kind, _ = optimizer_kind("sgd momentum0.9", together=False)
    parts = step_parts(
        facts(elements=1e9, update_moved=kind.moved + 4), np.zeros(1), np.zeros(1), _Plain()
    )
    assert parts.total_s[0] == pytest.approx(4 * 12e9 / 1e12)


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
    kind, said = optimizer_kind(text, together=False)
    assert (kind.name, kind.states, kind.kernels, said) == (name, states, kernels, "")


def test_lamb_updates_once_in_many_micro_batches() -> None:
    kind, said = optimizer_kind("lamb (fused, amp)", together=False)
    assert (kind.states, kind.moved) == (2, 0)
    assert "not counted" in said


def test_releases_by_their_words() -> None:
    for text, release in (
        ("torch 1.12.0+cu113 eager", (1, 12)),
        ("torch NGC 21.03 (1.9.0a0) eager", (1, 9)),
        ("torch 2.5.0a0+e000cf0ad9.nv24.10 eager", (2, 5)),
    ):
        found, said = module_framework(text)
        assert (found.release, said) == (release, "")
        assert found.keeps_gradients == (release < (2, 0))
    found, said = module_framework("")
    assert "taken as torch" in said


def test_memory_is_the_sum_of_what_is_held() -> None:
    traced = step(parameters=(10 * MIB,), peak=100 * MIB, both=110 * MIB)
    old, new = (module_framework(text)[0] for text in ("torch 1.12", "torch 2.3"))
    momentum, _ = optimizer_kind("sgd momentum=0.9", together=False)

    def memory(framework: ModuleFramework, precision: StepPrecision) -> RankMemory:
        return module_memory(
            traced,
            precision,
            states=momentum.states,
            keeps_gradients=framework.keeps_gradients,
            capacity_bytes=200 * MIB,
            held=1.1,
            workspace_bytes=MIB,
        )

    kept = memory(old, StepPrecision())
    # 40 MiB each of weights, gradients and momentum beside 100 MiB of activations.
    assert kept.peak_bytes == (40 + 40 + 40 + 100) * MIB
    # Gradients that come while activations go add what the trace saw of both together.
    assert memory(new, StepPrecision()).peak_bytes == (40 + 40 + 110) * MIB
    half = memory(old, step_precision("fp16"))
    assert half.optimizer_bytes == 80 * MIB  # a float32 copy of the weights
    assert kept.required_bytes == pytest.approx(1.1 * kept.peak_bytes + MIB)
    assert not kept.fits


def setting_of(device: str, devices: int = 1) -> ModuleSetting:
    return module_setting(
        ModuleRow(
            row=1,
            id="a",
            factory="a:b",
            device=device,
            devices=devices,
            precision="amp-fp16",
            framework="torch 2.3",
            optimizer="adam fused",
        )
    )


@pytest.mark.parametrize("device", [n for n in device_names() if get_device(n).type != "cpu"])
def test_every_accelerator_has_a_price(device: str) -> None:
    traced = step(matmul(4096, 4096, 4096), convolution(), elementwise(1e8), peak=MIB, both=MIB)
    made = predict_module(traced, setting_of(device))
    assert 0 < made.step_time_s.low < made.step_time_s.value < made.step_time_s.high < 10
    assert made.fits


def test_intervals_widen_with_what_is_not_known() -> None:
    traced = step(matmul(4096, 4096, 4096), peak=MIB, both=MIB)
    widths = []
    for device in ("rtx-3090", "a30", "mi300x"):  # measured; of a measured chip's kind; neither
        time_s = predict_module(traced, setting_of(device)).step_time_s
        widths.append(time_s.high / time_s.low)
    assert widths[0] <= widths[1] < widths[2]


def test_gradients_are_summed_beside_the_backward() -> None:
    traced = step(matmul(64, 64, 64), parameters=(10**9,), peak=MIB, both=MIB)
    alone = predict_module(traced, setting_of("rtx-3090")).step_time_s.value
    eight = predict_module(traced, setting_of("rtx-3090", 8)).step_time_s.value
    # A ring's 2 x 7/8 of 4 GB over 31.5 GB/s x 0.45, no backward to hide it.
    assert eight - alone == pytest.approx(1.75 * 4e9 / (31.5e9 * 0.45), rel=0.01)


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
