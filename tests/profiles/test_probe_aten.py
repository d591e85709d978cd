"""Ops and convolutions of a probe: what they move and work, and how a cycle runs them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from profiles.errors import InputError
from profiles.hardware.catalogue.device import ACROSS
from profiles.hardware.probe.probe_aten import aten_bytes, aten_call, aten_names
from profiles.hardware.probe.probe_cases import Case, ConvCase, convolutions
from profiles.hardware.probe.probe_host import measure_host
from profiles.hardware.probe.probe_ops import traced_op
from profiles.hardware.probe.probe_timing import cycle
from profiles.model.graph import ConvShape, Op, Phase


def conv_op(shape: ConvCase, phase: Phase) -> Op:
    return traced_op(Case(family="conv", shape=shape, phase=phase))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_op_runs_on_what_it_is_defined_on_and_more_elements_move_more_bytes(
    dtype: str,
) -> None:
    for name in aten_names():
        func, args = aten_call(name, 3000, getattr(torch, dtype), torch.device("cpu"))
        for x in tree_leaves(func(*args)):
            assert not x.is_floating_point() or x.isfinite().all(), name
        assert func._schema.name.removeprefix("aten::") == name.removesuffix(ACROSS)
        assert 0 < aten_bytes(name, 3000, dtype) < aten_bytes(name, 300_000, dtype)


def test_bytes_by_hand() -> None:
    # Two tensors are read and one is written, of 4 bytes; bf16 has half of that.
    assert aten_bytes("add", 1000, "float32") == 3 * 4000
    assert aten_bytes("add", 1000, "bfloat16") == 3 * 2000
    # Rows of 512: as much of the table is read as is returned, and one index of 8 bytes each.
    assert aten_bytes("embedding", 8 * 512, "float32") == 2 * 8 * 512 * 4 + 8 * 8


def test_an_op_without_a_case_is_named() -> None:
    with pytest.raises(InputError, match="no_such_op"):
        aten_call("no_such_op", 10, torch.float32, torch.device("cpu"))


def test_a_convolution_is_the_product_that_it_equals() -> None:
    case = ConvCase(batch=2, inputs=8, outputs=16, side=10)
    forward = conv_op(case, Phase.FORWARD)
    backward = conv_op(case, Phase.BACKWARD)
    assert forward.matmul is not None
    sizes = (forward.matmul.m, forward.matmul.n, forward.matmul.k)
    assert sizes == (2 * 10 * 10, 16, 8 * 9)
    assert forward.work_flop == 2 * 200 * 16 * 72
    assert backward.work_flop == 2 * forward.work_flop
    first = conv_op(replace(case, first=True), Phase.BACKWARD)
    assert first.work_flop == forward.work_flop
    assert first.conv is not None
    assert not first.conv.input_gradient
    known = ConvShape(groups=1, dims=2, taps=9, stride=1, transposed=False, images=2)
    assert forward.conv == known


@pytest.mark.parametrize("phase", list(Phase))
def test_a_convolution_tells_its_layout(phase: Phase) -> None:
    case = ConvCase(batch=2, inputs=8, outputs=8, side=6, groups=8)
    for last in (False, True):
        op = conv_op(replace(case, last=last), phase)
        assert op.conv is not None
        assert op.conv.channels_last is last
    # One channel, or one pixel: the layouts are one.
    for one in (replace(case, inputs=1, outputs=1, groups=1), replace(case, side=1)):
        op = conv_op(replace(one, last=True, window=1), phase)
        assert op.conv is not None
        assert not op.conv.channels_last


def test_the_probe_has_every_kind_of_convolution() -> None:
    found = set()
    for case in convolutions(quick=False):
        op = conv_op(case, Phase.FORWARD)
        assert op.conv is not None
        assert op.matmul is not None
        found.add(op.conv.kind(op.matmul.k))
    assert found == {
        *("dense", "pointwise", "depthwise", "grouped", "transposed", "volume alone"),
        *("pointwise channels-last", "depthwise channels-last"),
    }


@pytest.mark.parametrize(("first", "gradients"), [(False, 2), (True, 1)])
def test_the_backward_of_groups_is_as_much_work_as_their_products(
    first: bool, gradients: int
) -> None:
    # 4 groups of 2 channels in, 4 out: 200 positions x 16 outputs x a patch of 2 x 9.
    case = ConvCase(batch=2, inputs=8, outputs=16, side=10, groups=4, first=first)
    forward = conv_op(case, Phase.FORWARD)
    backward = conv_op(case, Phase.BACKWARD)
    assert forward.work_flop == 2 * 200 * 16 * 18
    assert backward.work_flop == gradients * forward.work_flop
    assert backward.matmul is not None
    assert backward.matmul.m == gradients * 200


def test_a_cycle_runs_equal_sets_of_other_tensors() -> None:
    x = torch.ones(1024)
    seen: list[torch.Tensor] = []
    call = cycle(lambda y: seen.append(y) or y + 1, (x,))
    seen.clear()
    call()
    assert len(seen) == call.count == 64
    assert len({y.data_ptr() for y in seen}) == call.count
    assert all(torch.equal(y, x) for y in seen)
    # 32 MiB of input and output: two sets at least.
    assert cycle(torch.neg, (torch.ones(8 * 2**20),)).count == 2


def test_the_host_has_a_point_of_each_kind_and_pass() -> None:
    points = {(p.kind, p.phase): p.time_s for p in measure_host(samples=3)}
    kinds = ("view", "module", "checkpoint", "op")
    assert set(points) == {(kind, str(phase)) for kind in kinds for phase in Phase}
    assert all(seconds >= 0 for seconds in points.values())
    assert points["view", "forward"] > 0
    assert points["module", "forward"] > 0
