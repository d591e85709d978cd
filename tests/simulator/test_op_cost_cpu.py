"""Ops on a profiled CPU: curves by name, kinds of convolution, and the host's share, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import (
    ACROSS,
    ConvPoint,
    HostPoint,
    MatmulPoint,
    Measurements,
    MemoryPoint,
)
from profiles.model.graph import ConvShape, MatmulShape, Op, OpKind, Phase
from simulator.traced.block_cost import price_block
from simulator.traced.op_cost import price_op
from simulator.values.plan import Recompute
from tests.simulator.hand_made import cluster, device, layer, memory_op


def points(op: str, seconds_per_byte: float, dtype: str = "float32") -> tuple[MemoryPoint, ...]:
    return tuple(
        MemoryPoint(op=op, moved_bytes=size, time_s=size * seconds_per_byte, dtype=dtype)
        for size in (10**4, 10**6, 10**8)
    )


def conv_point(kind: str, phase: str, used: float) -> ConvPoint:
    # 2 x 1000 x 64 x 576 flop at 100 TFLOP/s, at a share `used` of that; 1 MB at 1 TB/s is more.
    return ConvPoint(
        dtype="float32",
        phase=phase,
        kind=kind,
        rows=1000,
        channels=64,
        patch=576,
        work_flop=2 * 1000 * 64 * 576,
        moved_bytes=10**6,
        time_s=1e-6 / used,
    )


MEASURED = Measurements(
    source="points by hand",
    date="2026-11-22",
    matmul=(MatmulPoint(dtype="float32", batch=1, m=512, n=512, k=512, time_s=1e-5),),
    memory=(
        *points("elementwise", 1e-9),
        *points("native_batch_norm", 8e-9),
        *points("relu", 2e-9),
        *points("relu", 3e-9, "bfloat16"),
    ),
    conv=(conv_point("dense", "forward", 0.5), conv_point("depthwise", "forward", 0.05)),
)
HOST = (
    HostPoint(kind="op", phase="forward", time_s=2e-6),
    HostPoint(kind="op", phase="backward", time_s=3e-6),
    HostPoint(kind="view", phase="forward", time_s=1.5e-6),
    HostPoint(kind="module", phase="forward", time_s=4e-6),
)


def cpu(measured: Measurements = MEASURED):
    return replace(device(measurements=measured, launch_s=0.0), type="cpu")


def conv(groups: int, patch: int, dtype: str = "float32") -> Op:
    return Op(
        name="convolution",
        kind=OpKind.CONV,
        phase=Phase.FORWARD,
        module="",
        dtype=dtype,
        work_flop=2 * 1000 * 64 * 576,
        read_bytes=600_000,
        written_bytes=400_000,
        matmul=MatmulShape(batch=1, m=1000, n=64, k=patch),
        conv=ConvShape(groups=groups, dims=2, taps=9, stride=1, transposed=False),
    )


def test_an_op_with_points_of_its_own_is_not_its_family():
    own = price_op(memory_op("native_batch_norm", 10**6, dtype="float32"), cpu())
    family = price_op(memory_op("softplus", 10**6, dtype="float32"), cpu())
    assert own.time_s == pytest.approx(8e-3)
    assert family.time_s == pytest.approx(1e-3)
    # In place it is the same kernel.
    assert price_op(memory_op("relu_", 10**6, dtype="float32"), cpu()).time_s == pytest.approx(2e-3)


def test_a_softmax_across_is_its_own_kernel_and_the_plain_one_in_files_without_it():
    own = points(f"_log_softmax{ACROSS}", 9e-9)
    plain = points("_log_softmax", 4e-9)
    op = memory_op(f"_log_softmax{ACROSS}", 10**6, dtype="float32")
    for given, seconds in (((*plain, *own), 9e-3), (plain, 4e-3)):
        assert price_op(op, cpu(replace(MEASURED, memory=given))).time_s == pytest.approx(seconds)


def test_a_strided_convolution_is_read_off_strided_ones():
    """Half and a tenth of the speed of light at the same product: the strides tell them apart."""
    measured = (
        conv_point("dense", "forward", 0.5),
        replace(conv_point("dense", "forward", 0.1), stride=2),
    )
    op, on = conv(1, 576), cpu(replace(MEASURED, conv=measured))
    assert op.conv is not None
    strided = replace(op, conv=replace(op.conv, stride=2))
    assert price_op(op, on).time_s == pytest.approx(2e-6)
    assert price_op(strided, on).time_s == pytest.approx(10e-6)


def test_a_type_without_points_takes_as_long_on_as_many_elements():
    assert price_op(memory_op("relu", 10**6), cpu()).time_s == pytest.approx(3e-3)
    # 10^6 bytes of bf16 are as many elements as 2 x 10^6 of fp32.
    assert price_op(memory_op("native_batch_norm", 10**6), cpu()).time_s == pytest.approx(16e-3)
    # Half of 1 TB/s for the 10^6 bytes of a convolution in fp32, and for 2 x 10^6.
    assert price_op(conv(1, 576), cpu()).time_s == pytest.approx(2e-6)
    assert price_op(conv(1, 576, "bfloat16"), cpu()).time_s == pytest.approx(4e-6)


def test_kinds_of_convolution_have_their_own_speed():
    assert price_op(conv(1, 576), cpu()).time_s == pytest.approx(2e-6)
    assert price_op(conv(64, 9), cpu()).time_s == pytest.approx(20e-6)
    # None of grouped ones was measured: as a dense one, and assumed.
    grouped = price_op(conv(4, 144), cpu())
    assert grouped.time_s == pytest.approx(2e-6)
    assert grouped.method == "assumed"


def test_layouts_have_their_own_speed_where_both_were_measured():
    last = conv(64, 9)
    assert last.conv is not None
    last = replace(last, conv=replace(last.conv, channels_last=True))
    assert price_op(conv(64, 9), cpu()).time_s == pytest.approx(20e-6)
    # A file from before has the other layout alone: as that, and assumed.
    before = price_op(last, cpu())
    assert before.time_s == pytest.approx(20e-6)
    assert before.method == "assumed"
    shown = conv_point("depthwise channels-last", "forward", 0.2)
    both = replace(MEASURED, conv=(*MEASURED.conv, shown))
    assert price_op(last, cpu(both)).time_s == pytest.approx(5e-6)
    assert price_op(conv(64, 9), cpu(both)).time_s == pytest.approx(20e-6)


def test_a_pointwise_convolution_is_a_product_for_each_image():
    """Measured on 4 images of 250 pixels: 8 of 250 are as fast, and so are not 2 of 500; 16 images
    go through the kernel of dense ones."""

    def point(images: int, pixels: int, used: float) -> ConvPoint:
        shown = replace(conv_point("pointwise", "forward", used), patch=64, images=images)
        return replace(shown, rows=images * pixels)

    measured = replace(
        MEASURED,
        conv=(
            conv_point("dense", "forward", 0.5),
            *(point(4, pixels, used) for pixels, used in ((25, 0.01), (250, 0.1), (500, 0.2))),
        ),
    )

    def time_s(images: int, pixels: int) -> float:
        op = conv(1, 64)
        assert op.conv is not None
        shape = replace(op.conv, taps=1, images=images)
        product = MatmulShape(batch=1, m=images * pixels, n=64, k=64)
        return price_op(replace(op, conv=shape, matmul=product), cpu(measured)).time_s

    # The same work in every call: 1e-6 s at full use.
    assert time_s(4, 250) == pytest.approx(10e-6)
    assert time_s(8, 250) == pytest.approx(10e-6)
    assert time_s(2, 500) == pytest.approx(5e-6)
    assert time_s(16, 250) == pytest.approx(2e-6)


def test_a_checkpointed_block_takes_more_even_where_nothing_runs_again():
    """A head alone is not repeated, and yet its call takes longer: checkpointed one by one, twelve
    small layers took 8.7 ms forward instead of 6.7 (torch 2.13, two cores, 2026-11-23)."""
    block = replace(layer(), forward_ops=(memory_op("neg", 10**6, dtype="float32"),), kind="head")
    point = [
        HostPoint(kind="checkpoint", phase=str(phase), time_s=seconds)
        for phase, seconds in zip(Phase, (3e-5, 4e-5), strict=True)
    ]
    on = cluster(of=cpu(replace(MEASURED, host=tuple(point))))
    none, full = (
        price_block(block, recompute=kind, devices=(0,), cluster=on)
        for kind in (Recompute.NONE, Recompute.FULL)
    )
    assert none.recompute_s == 0.0
    assert full.recompute_s == pytest.approx(7e-5)
    assert full.backward.value - none.backward.value == pytest.approx(7e-5)
    assert full.forward.value == none.forward.value


def test_autograd_and_module_calls_take_the_host():
    measured = replace(MEASURED, host=HOST)
    alone = price_op(memory_op("relu", 10**6, dtype="float32"), cpu())
    inside = price_op(memory_op("relu", 10**6, dtype="float32"), cpu(measured))
    assert inside.time_s - alone.time_s == pytest.approx(2e-6)
    assert inside.low - alone.low == pytest.approx(2e-6)
    view = Op(
        name="view",
        kind=OpKind.VIEW,
        phase=Phase.FORWARD,
        module="",
        dtype="float32",
        work_flop=0,
        read_bytes=0,
        written_bytes=0,
    )
    assert price_op(view, cpu(measured)).time_s == 1.5e-6


def test_a_block_on_a_cpu_calls_modules_and_adds_gradients():
    block = layer()
    plain, called = (
        price_block(
            block,
            recompute=Recompute.NONE,
            devices=(0,),
            cluster=cluster(of=cpu(replace(MEASURED, host=host))),
        )
        for host in ((), HOST[-1:])
    )
    entered = len({op.module for op in block.forward_ops if op.module})
    assert called.forward.value - plain.forward.value == pytest.approx(4e-6 * entered)
    assert called.backward.value == plain.backward.value
    # Without parameters nothing is added up.
    bare = price_block(
        replace(block, parameters=(), kind="bare"),
        recompute=Recompute.NONE,
        devices=(0,),
        cluster=cluster(of=cpu()),
    )
    weights = sum(p.spec.memory_bytes for p in block.parameters)
    assert plain.backward.value - bare.backward.value == pytest.approx(3 * weights * 1e-9)
