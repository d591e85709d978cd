"""The step of a module: kernels, casts and memory against what is known of them by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from profiles.errors import TraceError
from profiles.model.graph import Block, Op
from profiles.model.kernels import DeviceKernel, Direction, Kernel
from profiles.model.steps.module_step import step_precision, traced_step
from profiles.model.tracing.trace_kernels import is_channels_last

HERE = "tests.shardwright.module_factories"


def step_of(
    function: str,
    precision: str = "fp32",
    *,
    channels_last: bool = False,
    fused: bool = False,
    **arguments: int,
) -> Block:
    graph = traced_step(
        f"{HERE}:{function}",
        arguments,
        step_precision(precision),
        channels_last=channels_last,
        fused_attention=fused,
    )
    return graph.kinds[0]


def ops_of(step: Block) -> tuple[Op, ...]:
    return (*step.forward_ops, *step.backward_ops)


def kernels_of(step: Block, *kinds: Kernel) -> list[DeviceKernel]:
    found = (kernel for op in ops_of(step) for kernel in op.kernels or ())
    return [kernel for kernel in found if not kinds or kernel.kernel in kinds]


def kernels(step: Block) -> Counter[Kernel]:
    found: Counter[Kernel] = Counter()
    for kernel in kernels_of(step):
        found[kernel.kernel] += kernel.count
    return found


def test_products_of_a_perceptron() -> None:
    step = step_of("mlp", width=256, batch=64)
    products = kernels_of(step, Kernel.MATMUL)
    # Forward: 64 x 256 x 1024 and 64 x 1024 x 10. Backward: each weight's gradient and, of the
    # second layer alone, the input's.
    assert len(products) == 5
    assert sum(product.work_flop for product in products) == 2 * 64 * (
        2 * 256 * 1024 + 3 * 1024 * 10
    )
    assert step.parameter_count == 256 * 1024 + 1024 + 1024 * 10 + 10


def test_autocast_casts_each_weight_once_and_inputs_of_products() -> None:
    plain, cast = (step_of("mlp", p, width=256, batch=64) for p in ("fp32", "amp-fp16"))
    fine = step_of("mlp", "tf32", width=256, batch=64)
    for step, dtype in ((cast, "float16"), (plain, "float32"), (fine, "tf32")):
        assert {product.dtype for product in kernels_of(step, Kernel.MATMUL)} == {dtype}
    # Two weights, two biases and the input to float16; the output back for the loss.
    assert sum(op.name == "_to_copy" for op in cast.forward_ops) == 6
    assert not any(op.name == "_to_copy" for op in ops_of(plain))


def test_autocast_agrees_with_torch_on_types() -> None:
    # torch's own on a CPU casts the same functions among those used here.
    layer = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.relu(layer(torch.zeros(2, 4)))
    assert y.dtype is torch.bfloat16
    step = step_of("mlp", "amp-bf16", width=8, batch=2)
    relu = next(op for op in step.forward_ops if op.name == "relu")
    assert relu.dtype == "bfloat16"


@pytest.mark.parametrize(
    ("groups", "kind"), [(1, Kernel.CONV), (4, Kernel.GROUPED), (16, Kernel.DEPTHWISE)]
)
def test_convolutions_by_groups(groups: int, kind: Kernel) -> None:
    step = step_of("convolutions", batch=8, groups=groups)
    own = {kernel.direction: kernel for kernel in kernels_of(step, kind)}
    # The images need no gradient.
    assert set(own) == {Direction.OUTPUT, Direction.WEIGHT_GRADIENT}
    forward = own[Direction.OUTPUT]
    assert forward.work_flop == 2 * 8 * 16 * 16 * 32 * (16 // groups) * 9
    assert (forward.batch, forward.m, forward.n, forward.k) == (
        groups,
        8 * 16 * 16,
        32 // groups,
        16 // groups * 9,
    )
    assert forward.read_bytes == 4 * (8 * 16 * 32 * 32 + 32 * (16 // groups) * 9)
    assert (forward.stride, forward.taps) == (2, 9)


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "fp16"])
def test_a_layer_of_a_recurrence_is_started_once(precision: str) -> None:
    step = step_of("recurrence", precision, batch=8)
    layers = [op for op in ops_of(step) if "lstm_layer" in op.name]
    own = [kernel for op in layers for kernel in op.kernels or ()]
    assert {kernel.dtype for kernel in own} == {"float32" if precision == "fp32" else "float16"}
    # Two layers, two directions, forward and backward; 20 positions each.
    assert len(layers) == 8
    assert kernels(step)[Kernel.RECURRENCE] == 8 * 20
    # 4 gates of 64 from 32 inputs (128 in the second layer) and 64 of the state, both ways; the
    # first layer's backward makes the gradient of its inputs too.
    rows, gates, state = 8 * 20, 4 * 64, 64
    forward = 2 * rows * gates * sum(2 * (inputs + state) for inputs in (32, 128))
    assert sum(kernel.work_flop * kernel.count for kernel in own) == 3 * forward


def test_layout_is_followed() -> None:
    for last in (False, True):
        step = step_of("convolutions", batch=8, channels_last=last)
        laid = (Kernel.CONV, Kernel.BATCH_NORM)
        own = [kernel for kernel in kernels_of(step, *laid) if not kernel.backward]
        assert {kernel.kernel for kernel in own} == set(laid)
        assert {kernel.channels_last for kernel in own} == {last}


def test_kernels_of_one_position_lie_as_their_strides_say() -> None:
    weight = torch.empty(32, 16, 1, 1, device="meta")
    assert not is_channels_last(weight)
    assert is_channels_last(weight.to(memory_format=torch.channels_last))
    assert not is_channels_last(torch.empty(4, 4, device="meta"))


def test_a_convolution_of_a_slice_copies_it_first() -> None:
    assert kernels_of(step_of("convolutions", batch=8), Kernel.TRANSPOSE) == []
    sliced = step_of("sliced", batch=8)
    (copy,) = (kernel for kernel in kernels_of(sliced, Kernel.TRANSPOSE) if not kernel.backward)
    # Half of 32 channels of 8 images of 16 x 16, read and written by the convolution's own call.
    assert copy.read_bytes == copy.written_bytes == 8 * 16 * 16 * 16 * 4
    (op,) = (op for op in sliced.forward_ops if copy in (op.kernels or ()))
    assert op.name == "convolution"


def test_attention_is_written_out_unless_fused() -> None:
    plain, fused = (step_of("attention", batch=2, fused=fused) for fused in (False, True))
    # Scores and values forward, twice as many backward.
    assert kernels(plain)[Kernel.BATCHED_MATMUL] == 6
    assert kernels(plain)[Kernel.SOFTMAX] == 2
    assert kernels(fused)[Kernel.ATTENTION] == 2
    assert kernels(fused)[Kernel.BATCHED_MATMUL] == kernels(fused)[Kernel.SOFTMAX] == 0
    # The scores of 2 x 4 heads of 128 x 128 and their shares are kept.
    assert plain.backward_peak_bytes - fused.backward_peak_bytes > 2 * 4 * 128 * 128 * 4


def test_memory_by_hand() -> None:
    step = step_of("mlp", width=256, batch=64)
    # Hidden before and after the ReLU, logits, log-probabilities.
    least = 4 * (2 * 64 * 1024 + 2 * 64 * 10)
    kept = 4 * 64 * 256 + 8 * 64  # inputs and targets
    assert kept + 4 * 2 * 64 * 1024 <= step.forward_peak_bytes <= step.backward_peak_bytes + kept
    assert least <= step.backward_peak_bytes < 2 * least + 4 * 256 * 1024
    assert step.saved_bytes == kept


def test_a_constructor_may_count() -> None:
    assert kernels(step_of("counts_while_built", batch=4))[Kernel.MATMUL] == 5


def test_what_asks_for_values_is_told() -> None:
    with pytest.raises(TraceError, match="forward pass fails on shapes"):
        step_of("asks_for_values", batch=4)
