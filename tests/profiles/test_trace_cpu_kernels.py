"""What torch does not compute on a CPU in 16 bits is known when a model is traced for one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from profiles.errors import TraceError
from profiles.hardware.catalogue.device import ACROSS
from profiles.model.building.build_given import spec_of_module
from profiles.model.graph import ModelGraph
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace import trace_graph
from profiles.model.tracing.trace_cpu_kernels import _few


class Distances(nn.Module):
    """Of points to each other: torch 2.13 has no kernel of `cdist` in 16 bits on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, x + 1, p=1)


class Careful(nn.Module):
    """The same, in fp32 where torch refuses."""

    def forward(self, x: Tensor) -> Tensor:
        try:
            return torch.cdist(x, x + 1, p=1)
        except RuntimeError:
            return torch.cdist(x.float(), x.float() + 1, p=1).to(x.dtype)


class Many(nn.Module):
    """Ops that few models use, all of which torch 2.13 computes in bf16 on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        index = torch.zeros(x.shape, dtype=torch.long)
        image = x.unflatten(-1, (2, 4))  # [batch, channels, height, width]
        grid = torch.tanh(image[:, :1, :, :2].transpose(1, 2).expand(-1, -1, 4, -1))
        found = [
            x.cumprod(-1),
            x.kthvalue(2, -1, keepdim=True)[0],
            torch.zeros_like(x).scatter_reduce(1, index, x, "prod"),
            torch.lgamma(x.sigmoid()),
            torch.linalg.cross(x[..., :3], x[..., 1:4]),
            F.interpolate(image, scale_factor=2, mode="bicubic").flatten(2),
            F.grid_sample(image, grid, align_corners=False).flatten(2),
            F.adaptive_max_pool3d(image[:, None], 2).flatten(2),
            F.pixel_shuffle(image[:, :4], 2).flatten(2),
            F.nll_loss(x[:, 0].log_softmax(-1), index[:, 0, 0]),
        ]
        return torch.stack([y.float().square().mean() for y in found]).mean()


def spec_of(module: nn.Module, channels: int = 6) -> ModelSpec:
    return spec_of_module(nn.Sequential(nn.Linear(8, 8), module), torch.zeros(2, channels, 8))


def traced(spec: ModelSpec, dtype: str, target: str = "cpu") -> ModelGraph:
    return trace_graph(spec, micro_batch=2, sequence_length=1, dtype=dtype, target=target)


@pytest.mark.parametrize("channels", [6, 400])  # the call as it is, and one made small
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_op_without_a_kernel_in_16_bits_is_said(dtype: str, channels: int) -> None:
    spec = spec_of(Distances(), channels)
    said = (
        rf"aten._cdist_forward does not run in {dtype} on a CPU \(the forward pass of 1\): torch "
        rf"2.* says \"cdist\" not implemented for '.*'; .*--precision fp32"
    )
    with pytest.raises(TraceError, match=said):
        traced(spec, dtype)
    assert traced(spec, "float32").forward_flop > 0
    assert traced(spec, dtype, target="gpu").forward_flop > 0


def test_a_module_that_goes_another_way_is_traced_on_it() -> None:
    graph = traced(spec_of(Careful()), "bfloat16")
    ops = [op for block in graph.blocks for op in block.forward_ops]
    assert [op.dtype for op in ops if op.name == "_cdist_forward"] == ["float32"]


def test_what_runs_is_traced() -> None:
    """Against torch itself: the module runs forward and backward, so it must not be refused."""
    module = nn.Sequential(nn.Linear(8, 8), Many())
    module.bfloat16()(torch.rand(2, 6, 8, dtype=torch.bfloat16)).backward()
    assert traced(spec_of(Many()), "bfloat16").forward_flop > 0


def test_types_that_differ_on_shapes_are_no_refusal() -> None:
    """Torch keeps the norms of a float16 weight in fp32; on shapes they are in float16."""
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    module = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).half()
    module(torch.rand(2, 8).half()).float().mean().backward()
    assert traced(spec_of(layer), "float16").forward_flop > 0


def test_a_softmax_along_another_dimension_than_the_last_is_named_so_on_a_cpu() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.LogSoftmax(dim=1), nn.Softmax(dim=-1))
    for target, end in (("cpu", ACROSS), ("gpu", "")):
        graph = traced(spec_of_module(module, torch.rand(2, 6, 8)), "float32", target)
        ops = [op.name for kind in graph.kinds for op in (*kind.forward_ops, *kind.backward_ops)]
        assert {name for name in ops if "softmax" in name} == {
            f"_log_softmax{end}",
            f"_log_softmax_backward_data{end}",
            "_softmax",
            "_softmax_backward_data",
        }


def test_a_trace_draws_no_numbers() -> None:
    before = torch.random.get_rng_state()
    torch.manual_seed(1)
    traced(spec_of(nn.RReLU()), "bfloat16")
    after = torch.rand(1)
    torch.manual_seed(0)  # as building a model leaves it
    assert torch.rand(1) == after
    torch.random.set_rng_state(before)


@given(st.integers(0, 2**62), st.integers(0, 2**62))
def test_small_sizes_keep_their_order(a: int, b: int) -> None:
    assert (_few(a) <= _few(b)) or a > b
    assert _few(2 * a + 1) > _few(a)
    assert _few(a) <= min(a, 5 + 63)
