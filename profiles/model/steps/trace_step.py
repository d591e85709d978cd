"""Tracing one training step of a module on shapes: `trace_module_step`.

The module runs forward, loss and backward on meta tensors, with the casts of autocast and an
accelerator's kernels (trace_device_functions.py; a recurrent layer is one op). A dispatch mode
below autograd notes every kernel and every byte while it is alive. Nothing is computed, so a batch
of any size takes as long as its number of ops: about a millisecond each.
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
from profiles.model.graph import Phase
from profiles.model.steps.module_step import ModuleStep, StepOp, StepPrecision
from profiles.model.steps.trace_device_functions import AutocastShapes, DeviceKernels
from profiles.model.steps.trace_step_op import laid_out, step_ops
from profiles.model.tracing.trace_fused import FusedAttention, FusedRecurrence

# torch's caching allocator hands out multiples of 512 bytes, and of 2 MiB above 10 MiB
# (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize, kRoundLarge, kMinLargeAlloc).
_BLOCK_BYTES = 512
_RECURRENT_TYPES = (torch.float32, torch.float16, torch.bfloat16)  # cuDNN's


def trace_module_step(
    given: GivenStep, precision: StepPrecision, *, fused_attention: bool
) -> ModuleStep:
    """The kernels and the memory of one forward and backward pass.

    fused_attention  F.scaled_dot_product_attention is one kernel; else its scores are in memory
    Raises TraceError where the module fails on shapes, naming what failed.
    """
    parameters = [p for p in given.module.parameters() if p.requires_grad]
    kept = _storages([*given.module.parameters(), *given.module.buffers()])
    fed = _storages([x for x in tree_leaves((given.inputs, given.targets)) if _is_tensor(x)])
    recorder = _StepRecorder({**kept, **fed})
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
    return ModuleStep(
        ops=recorder.found(),
        parameters=tuple(p.numel() for p in parameters),
        parameter_bytes=_bytes(given.module.parameters()),
        buffer_bytes=_bytes(given.module.buffers()),
        gradient_bytes=_bytes(parameters),
        input_bytes=sum(
            x.untyped_storage().nbytes()
            for x in tree_leaves((given.inputs, given.targets))
            if _is_tensor(x)
        ),
        peak_bytes=recorder.peak_bytes,
        peak_with_gradients_bytes=recorder.peak_with_gradients_bytes,
    )


class _StepRecorder(TorchDispatchMode):
    """Notes kernels and bytes while it is entered.

    kept  storages that are there before the step: parameters, buffers, inputs
    """

    def __init__(self, kept: dict[int, Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch's
        self.phase = Phase.FORWARD
        self.peak_bytes = 0
        self.peak_with_gradients_bytes = 0
        self._kept = kept
        self._live: dict[int, int] = {}
        self._references: dict[int, Any] = {}
        self._bytes = 0
        self._gradient_bytes = 0
        self._counts: dict[StepOp, int] = {}

    def found(self) -> tuple[StepOp, ...]:
        """The kernels, equal ones once, in the order in which they first came."""
        return tuple(replace(op, count=count) for op, count in self._counts.items())

    def note_gradient(self, p: Tensor) -> None:
        """A parameter's gradient is complete: from here on it is the parameter's."""
        assert p.grad is not None
        key = p.grad.untyped_storage()._cdata
        size = self._live.pop(key, 0)
        self._references.pop(key, None)
        self._bytes -= size
        self._gradient_bytes += size
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
        for op in step_ops(func, args, kwargs, out, phase=self.phase):
            self._counts[op] = self._counts.get(op, 0) + 1
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
        self.peak_bytes = max(self.peak_bytes, self._bytes)
        self.peak_with_gradients_bytes = max(
            self.peak_with_gradients_bytes, self._bytes + self._gradient_bytes
        )

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
