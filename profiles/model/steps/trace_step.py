"""Tracing one training step of a module on shapes: `trace_module_step`.

The step is a model graph of one block. The module runs forward, loss and backward on meta tensors,
with the casts of autocast and an accelerator's kernels (trace_device_functions.py; a recurrent
layer is one op). A dispatch mode below autograd notes every kernel and every byte while it is
alive. Nothing is computed, so a batch of any size takes as long as its number of ops: about a
millisecond each.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiles.errors import ShardwrightError, TraceError
from profiles.model.building.build_step import GivenStep
from profiles.model.fake_tensors.trace_fakes import as_in_real_runs, tensors_in
from profiles.model.graph import (
    Block,
    BlockRef,
    ModelGraph,
    Op,
    Parameter,
    Phase,
    SavedTensor,
    TensorSpec,
    with_kind,
)
from profiles.model.kernels import DeviceKernel
from profiles.model.steps.module_step import StepPrecision
from profiles.model.steps.trace_device_functions import AutocastShapes, DeviceKernels
from profiles.model.tracing.trace_fused import FusedAttention, FusedRecurrence
from profiles.model.tracing.trace_kernels import device_kernels, laid_out
from profiles.model.tracing.trace_ops import describe_op, dtype_name

# torch's caching allocator hands out multiples of 512 bytes, and of 2 MiB above 10 MiB
# (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize, kRoundLarge, kMinLargeAlloc).
_BLOCK_BYTES = 512
_RECURRENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)  # cuDNN's


def trace_module_step(
    given: GivenStep, precision: StepPrecision, *, fused_attention: bool
) -> ModelGraph:
    """The kernels and the memory of one forward and backward pass. Buffers, inputs and targets are
    counted with what is kept between the two.

    fused_attention  F.scaled_dot_product_attention is one kernel; else its scores are in memory
    Raises TraceError where the module fails on shapes, naming what failed.
    """
    parameters = [p for p in given.module.parameters() if p.requires_grad]
    kept = _storages([*given.module.parameters(), *given.module.buffers()])
    fed = _storages([x for x in tree_leaves((given.inputs, given.targets)) if _is_tensor(x)])
    recorder = _StepRecorder({**kept, **fed}, tf32=precision.tf32)
    with ExitStack() as stack:
        for p in parameters:
            stack.callback(p.register_post_accumulate_grad_hook(recorder.note_gradient).remove)
            stack.callback(setattr, p, "grad", None)
        stack.enter_context(FusedRecurrence(_RECURRENT_TYPES))  # behind the casts of autocast
        autocast = None
        if precision.autocast:
            autocast = AutocastShapes(getattr(torch, precision.autocast))
            stack.enter_context(autocast)
        if fused_attention:
            stack.enter_context(FusedAttention())
        stack.enter_context(DeviceKernels(write_attention_out=not fused_attention))
        # Inputs are never padded: transformers would ask a mask for its values.
        stack.enter_context(as_in_real_runs(given.module))
        stack.enter_context(recorder)
        where = "forward pass"
        try:
            output = given.module(*given.inputs)
            where = "loss function"
            loss = given.loss_fn(output, given.targets)
            _check_loss(loss)
            del output
            where = "backward pass"
            recorder.phase = Phase.BACKWARD
            if autocast is not None:
                autocast.forget_weights()
            loss.backward()
        except ShardwrightError:
            raise
        except Exception as error:
            line = next(iter(str(error).splitlines()), "")
            raise TraceError(
                f"the {where} fails on shapes (meta tensors): {type(error).__name__}: {line}"
            ) from error
    return recorder.graph(given)


class _StepRecorder(TorchDispatchMode):
    """Notes kernels and bytes while it is entered.

    kept  storages that are there before the step: parameters, buffers, inputs
    tf32  products of float32 run on the tensor cores
    """

    def __init__(self, kept: dict[int, Any], *, tf32: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.phase = Phase.FORWARD
        self._peak_bytes = dict.fromkeys(Phase, 0)
        self._kept, self._tf32 = kept, tf32
        self._live: dict[int, int] = {}
        self._references: dict[int, Any] = {}
        self._bytes = 0
        self._ops: list[Op] = []

    def graph(self, given: GivenStep) -> ModelGraph:
        """The step that was recorded, as a graph of one block."""
        fed = [x for x in tree_leaves((given.inputs, given.targets)) if _is_tensor(x)]
        kept = _bytes(given.module.buffers()) + sum(x.untyped_storage().nbytes() for x in fed)
        name = type(given.module).__name__
        block = Block(
            kind="",
            label=name,
            inputs=(),
            outputs=(),
            forward_ops=tuple(op for op in self._ops if op.phase is Phase.FORWARD),
            backward_ops=tuple(op for op in self._ops if op.phase is Phase.BACKWARD),
            parameters=tuple(
                Parameter(
                    name=path,
                    spec=TensorSpec(shape=tuple(p.shape), dtype=dtype_name(p.dtype)),
                    full_shape=tuple(p.shape),
                    trainable=p.requires_grad,
                )
                for path, p in given.module.named_parameters()
            ),
            saved=(SavedTensor(module="", memory_bytes=kept),),
            attention_module="",
            attention_input_bytes=0,
            forward_peak_bytes=kept + self._peak_bytes[Phase.FORWARD],
            backward_peak_bytes=max(self._peak_bytes.values()),
        )
        return ModelGraph(
            name=name,
            source=name,
            micro_batch=fed[0].shape[0] if fed and fed[0].dim() else 1,
            sequence_length=1,
            dtype=dtype_name(next(given.module.parameters()).dtype),
            tp=1,
            kinds=(with_kind(block),),
            chain=(BlockRef(entry="", kind=0),),
        )

    def note_gradient(self, p: Tensor) -> None:
        """A parameter's gradient is complete: from here on it is the parameter's."""
        assert p.grad is not None
        key = p.grad.untyped_storage()._cdata
        self._bytes -= self._live.pop(key, 0)
        self._references.pop(key, None)
        self._kept[key] = p.grad

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        tensors = tensors_in((args, kwargs, out))
        if func.namespace == "prim" or not any(x.is_meta for x in tensors):
            return out  # a number of Python's, or a small table that the module keeps on the host
        out = laid_out(func, args, out)
        op = describe_op(func, args, kwargs, out, phase=self.phase, module="")
        kernels = map(self._with_type, device_kernels(op, args, kwargs, out))
        self._ops.append(replace(op, kernels=tuple(kernels)))
        for x in tensors_in(out):
            self._note_output(x)
        return out

    def _note_output(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key = storage._cdata
        if key in self._kept or key in self._live:
            return
        size = rounded_bytes(storage.nbytes())
        self._live[key] = size
        self._references[key] = weakref.ref(storage, self._freer(key))
        self._bytes += size
        self._peak_bytes[self.phase] = max(self._peak_bytes[self.phase], self._bytes)

    def _with_type(self, kernel: DeviceKernel) -> DeviceKernel:
        fine = self._tf32 and kernel.work_flop and kernel.dtype == "float32"
        return replace(kernel, dtype="tf32") if fine else kernel

    def _freer(self, key: int) -> Callable[[Any], None]:
        def free(_: Any) -> None:
            self._bytes -= self._live.pop(key, 0)
            self._references.pop(key, None)

        return free


def rounded_bytes(size: int) -> int:
    """What torch's caching allocator takes for a tensor of `size` bytes."""
    return -(-size // _BLOCK_BYTES) * _BLOCK_BYTES


def _storages(tensors: list[Tensor]) -> dict[int, Any]:
    return {x.untyped_storage()._cdata: x for x in tensors}


def _bytes(tensors: Any) -> int:
    sizes = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(map(rounded_bytes, sizes.values()))


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Tensor)


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        said = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise TraceError(f"loss_fn must return one number, returned {said}")
    if not loss.requires_grad:
        raise TraceError("the loss does not depend on any parameter that needs a gradient")
