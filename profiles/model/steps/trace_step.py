"""`trace_module_step`: trace one training step of a module on shapes.

The step is a model graph of one block. The module runs forward, loss and backward on meta tensors,
with the casts of autocast and an accelerator's kernels (a recurrent layer is one op). A dispatch
mode below autograd records every kernel, and every byte while it is alive. Nothing is computed, so
a trace takes about a millisecond per op for any batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from profiles.errors import ShardwrightError, TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.fake_tensors.trace_fakes import as_in_real_runs, tensors_in
from profiles.model.fake_tensors.trace_known_values import KnownValues
from profiles.model.graph import (
    Block,
    BlockRef,
    ModelGraph,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
    running_peak,
    with_kind,
)
from profiles.model.kernels import DeviceKernel
from profiles.model.steps.module_step import StepPrecision
from profiles.model.tracing.trace_checkpoints import modes_in_checkpoints
from profiles.model.tracing.trace_errors import check_loss, failure_text
from profiles.model.tracing.trace_flex import fused_flex_attention
from profiles.model.tracing.trace_fused import CUDNN_TYPES, FusedAttention, FusedRecurrence
from profiles.model.tracing.trace_kernels import device_kernels, laid_out
from profiles.model.tracing.trace_ops import describe_op, dtype_name
from profiles.model.tracing.trace_recorder import Recorder
from profiles.model.tracing.trace_side_effects import StateWatch

_LOW = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul multi_dot conv1d "
    "conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm mv prelu "
    "einsum lstm gru rnn_tanh rnn_relu"
)
_HIGH = (
    "__pow__ __rpow__ acos asin cosh cosine_embedding_loss cdist cosine_similarity cross_entropy "
    "cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss huber_loss kl_div "
    "l1_loss layer_norm log log10 log_softmax log1p log2 logsumexp margin_ranking_loss mse_loss "
    "multilabel_margin_loss multi_margin_loss nll_loss norm vector_norm pdist poisson_nll_loss pow "
    "prod reciprocal rsqrt sinh smooth_l1_loss soft_margin_loss softmax softmin softplus tan "
    "triplet_margin_loss binary_cross_entropy_with_logits renorm interpolate upsample"
)
_WIDEST = (
    "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot cat "
    "stack concat hstack vstack"
)
_HOMES: tuple[Any, ...] = (torch, Tensor, F, torch._C._nn, torch.linalg)


def _functions(names: str) -> frozenset[Callable[..., Any]]:
    found = (getattr(home, name, None) for name in names.split() for home in _HOMES)
    return frozenset(function for function in found if function is not None)


_LOW_FUNCTIONS, _HIGH_FUNCTIONS, _WIDEST_FUNCTIONS = map(_functions, (_LOW, _HIGH, _WIDEST))


class AutocastShapes(TorchFunctionMode):
    """Within the context, functions cast as under `torch.autocast("cuda", dtype)`.

    torch's autocast depends on the device of the tensors, and meta tensors have none. The lists are
    from the autocast op reference (https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that
    can autocast to float16", "... to float32", "... that promote to the widest input type"). As in
    torch, casts of weights are cached.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self._weights: dict[int, tuple[Tensor, Tensor]] = {}

    def forget_weights(self) -> None:
        """Discards the cached casts of weights, like leaving autocast."""
        self._weights.clear()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LOW_FUNCTIONS:
            return func(*map(self._low, args), **{k: self._low(x) for k, x in kwargs.items()})
        high = func in _HIGH_FUNCTIONS
        if not high and func in _WIDEST_FUNCTIONS:
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            high = any(x.dtype is torch.float32 for x in tensors)
        if high:
            return func(*map(self._high, args), **{k: self._high(x) for k, x in kwargs.items()})
        return func(*args, **kwargs)

    def _low(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(self._low, x))
        if not isinstance(x, Tensor) or x.dtype is not torch.float32:
            return x
        if not (x.is_leaf and x.requires_grad):
            return x.to(self.dtype)
        if id(x) not in self._weights:
            self._weights[id(x)] = (x, x.to(self.dtype))  # x too, to keep its id unique
        return self._weights[id(x)][1]

    def _high(self, x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(map(self._high, x))
        return x.float() if isinstance(x, Tensor) and x.dtype is self.dtype else x


class DeviceKernels(TorchFunctionMode):
    """Within the context, dropout is one kernel, which writes the output and a mask of one byte per
    element; `write_attention_out` decomposes attention into product, scale, mask, softmax, dropout
    and product."""

    def __init__(self, *, write_attention_out: bool) -> None:
        super().__init__()
        self.write_attention_out = write_attention_out

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout:
            return _dropout(*args, **kwargs)
        if func is F.scaled_dot_product_attention and self.write_attention_out:
            return plain_attention(*args, **kwargs)
        return func(*args, **kwargs)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return torch.native_dropout(input, p, True)[0] if training and p > 0 else input


def plain_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention with its scores in memory; arguments as of F.scaled_dot_product_attention."""
    if enable_gqa:
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, -3) for x in (key, value))
    scores = torch.matmul(query, key.transpose(-2, -1))
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    elif is_causal:
        scores = scores + scores.new_empty(scores.shape[-2:])
    shares = torch.softmax(scores, -1)
    if dropout_p > 0:
        shares = torch.native_dropout(shares, dropout_p, True)[0]
    return torch.matmul(shares, value)


# torch's caching allocator allocates multiples of 512 bytes, and of 2 MiB above 10 MiB
# (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize, kRoundLarge, kMinLargeAlloc).
_BLOCK_BYTES = 512


def trace_module_step(
    built: BuiltModel, precision: StepPrecision, *, fused_attention: bool
) -> ModelGraph:
    """Kernels and memory of one forward and backward pass.

    Buffers, inputs and targets count as saved for the backward.

    fused_attention  F.scaled_dot_product_attention is one kernel; otherwise scores are in memory
    Raises TraceError, with the failing pass, if the module fails on shapes.
    """
    parameters = [p for p in built.module.parameters() if p.requires_grad]
    recorder = _StepRecorder(built, tf32=precision.tf32)
    with ExitStack() as stack:
        for p in parameters:
            stack.callback(p.register_post_accumulate_grad_hook(recorder.note_gradient).remove)
            stack.callback(setattr, p, "grad", None)
        stack.enter_context(FusedRecurrence(CUDNN_TYPES))  # behind the casts of autocast
        autocast = None
        if precision.autocast:
            autocast = AutocastShapes(getattr(torch, precision.autocast))
            stack.enter_context(autocast)
        if fused_attention:
            stack.enter_context(FusedAttention())
            stack.enter_context(fused_flex_attention())
        stack.enter_context(DeviceKernels(write_attention_out=not fused_attention))
        # Inputs have no padding, as transformers would read the values of a padding mask.
        stack.enter_context(as_in_real_runs(built.module))
        stack.enter_context(modes_in_checkpoints())
        stack.enter_context(recorder)
        where = "forward pass"
        try:
            output = built.call(built.module, *built.args)
            where = "loss function"
            loss = built.loss_fn(output, built.targets)
            check_loss(loss)
            del output
            where = "backward pass"
            recorder.phase = Phase.BACKWARD
            if autocast is not None:
                autocast.forget_weights()
            loss.backward()
        except ShardwrightError:
            raise
        except Exception as error:
            raise TraceError(
                f"the {where} fails on shapes (meta tensors): {failure_text(error)}"
            ) from error
    return recorder.graph(built)


class _StepRecorder(Recorder):
    """Records a step as one segment, without module paths, state and values.

    tf32  float32 products run on the tensor cores
    """

    def __init__(self, built: BuiltModel, *, tf32: bool) -> None:
        kept = [*built.module.parameters(), *built.module.buffers(), *_fed(built)]
        keys = {x.untyped_storage()._cdata: i for i, x in enumerate(kept)}
        watch = StateWatch(built.module)
        super().__init__(keys, lambda *_: None, watch, KnownValues(), target="gpu")
        self._kept, self._tf32 = kept, tf32

    def graph(self, built: BuiltModel) -> ModelGraph:
        """The recorded step as a graph of one block."""
        fed, (step,) = _fed(built), self.segments
        kept = _bytes(built.module.buffers()) + sum(x.untyped_storage().nbytes() for x in fed)
        name = type(built.module).__name__
        block = Block(
            kind="",
            label=name,
            inputs=(),
            outputs=(),
            forward_ops=tuple(op for op in step.ops if op.phase is Phase.FORWARD),
            backward_ops=tuple(op for op in step.ops if op.phase is Phase.BACKWARD),
            parameters=tuple(
                Parameter(
                    name=path,
                    spec=TensorSpec(shape=tuple(p.shape), dtype=dtype_name(p.dtype)),
                    full_shape=tuple(p.shape),
                    trainable=p.requires_grad,
                )
                for path, p in built.module.named_parameters()
            ),
            saved=(SavedTensor(module="", memory_bytes=kept),),
            attention_module="",
            attention_input_bytes=0,
            forward_peak_bytes=kept + _peak_bytes(step.forward_events),
            backward_peak_bytes=_peak_bytes(step.forward_events + step.backward_events),
        )
        return ModelGraph(
            name=name,
            source=name,
            micro_batch=fed[0].shape[0] if fed and fed[0].dim() else 1,
            sequence_length=1,
            dtype=dtype_name(next(built.module.parameters()).dtype),
            tp=1,
            kinds=(with_kind(block),),
            chain=(BlockRef(entry="", kind=0),),
        )

    def note_gradient(self, p: Tensor) -> None:
        """Record that a parameter's gradient is complete; it counts as a parameter from now on."""
        assert p.grad is not None
        key = p.grad.untyped_storage()._cdata
        self._references.pop(key, None)
        if record := self._live.pop(key, None):
            self._event(record.number, -record.memory_bytes)
        self.parameters[key] = len(self._kept)
        self._kept.append(p.grad)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tensors = tensors_in((args, kwargs, out))
        if func.namespace == "prim" or not any(x.is_meta for x in tensors):
            return out  # a Python number, or a small table that the module keeps on the host
        out = laid_out(func, args, out)
        op = describe_op(func, args, kwargs, out, phase=self.phase, module="")
        kernels = map(self._with_type, device_kernels(op, args, kwargs, out))
        self.segments[0].ops.append(replace(op, kernels=tuple(kernels)))
        for x in tensors_in(out):
            self._note_output(x, 0, "")
        return out

    def _with_type(self, kernel: DeviceKernel) -> DeviceKernel:
        fine = self._tf32 and kernel.work_flop and kernel.dtype == "float32"
        return replace(kernel, dtype="tf32") if fine else kernel


def _peak_bytes(events: list[tuple[int, int]]) -> int:
    """Largest number of bytes allocated by torch's allocator; events as in `Segment`."""
    return running_peak(tuple(rounded_bytes(x) if x > 0 else -rounded_bytes(-x) for _, x in events))


def rounded_bytes(size: int) -> int:
    """Bytes that torch's caching allocator allocates for a tensor of `size` bytes."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _bytes(tensors: Any) -> int:
    sizes = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(map(rounded_bytes, sizes.values()))


def _fed(built: BuiltModel) -> list[Tensor]:
    return [x for x in tree_leaves((built.args, built.targets)) if isinstance(x, Tensor)]
