"""Check while tracing that torch has a CPU kernel for an op on 16-bit floats.

On shapes an op succeeds if it has a shape rule, but it may have no kernel for bfloat16 or float16
(in torch 2.13 distances, average pooling of volumes, most of linear algebra). So the first call of
each kind is made on real zeros: with the same shapes and strides if they are small, otherwise with
a few elements per dimension, and unchanged if that fails. If the type is the cause, torch reports
"not implemented" or "not supported". Other errors are ignored, since the values are not the
model's.
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from profiles.errors import TraceError
from profiles.model.fake_tensors.trace_fakes import tensors_in
from profiles.model.graph import Phase
from profiles.model.tracing.trace_ops import dtype_name

HALVES = {"bfloat16": "BFloat16", "float16": "Half"}
"""The checked types, and their names in torch's errors."""

WAY_OUT = "compute it in float32 there (x.float()), or plan in fp32 (--precision fp32)"

_NAME = r"\b(" + "|".join((*HALVES, *HALVES.values())) + r")\b"
# Errors about types that do not match are ignored: results on shapes may have other types than real
# ones (`_weight_norm_interface` in float16, torch 2.13).
_REFUSAL = re.compile(
    rf"(not implemented for|support).*{_NAME}|Double tensors but got BFloat16"  # complex, polar
)
# Ops of other libraries may have side effects: read files, start processes.
_NAMESPACES = ("aten", "torchvision")
# Elements read and written by the largest unchanged call: most kernels take a fraction of a
# millisecond.
_MOST_ELEMENTS = 2**16
# Integers up to here distinguish kinds of calls: dimensions, windows, strides, powers.
_TELLING = 16
# Kinds of calls that succeeded unchanged, and with few elements. They depend only on the installed
# torch and are kept for the process.
_MADE: set[Any] = set()
_MADE_SMALL: set[Any] = set()


class NoKernelError(TraceError, NotImplementedError):
    """An op without a CPU kernel for 16-bit floats.

    It is a NotImplementedError too: if a module catches that error and runs other code, that code
    is traced.
    """


def check_kernel(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Any,
    *,
    phase: Phase,
    module: str,
) -> None:
    """Raises NoKernelError if torch has no CPU kernel for a call on shapes; `out` is its result,
    None if it failed."""
    leaves = tree_leaves((args, kwargs))
    key = (func, *map(_kind, leaves))
    if key in _MADE or func.is_view or func.namespace not in _NAMESPACES:
        return
    given = [x for x in leaves if isinstance(x, Tensor)]
    halves = [dtype_name(x.dtype) for x in given if dtype_name(x.dtype) in HALVES]
    tensors = [*given, *tensors_in(out)]
    if not halves or not all(x.layout is torch.strided for x in tensors):
        return
    small = sum(x.numel() for x in tensors) > _MOST_ELEMENTS
    # Products have kernels for both types; a backward does not check its sizes.
    if small and (func._overloadpacket in flop_registry or phase is Phase.BACKWARD):
        return
    if small and key in _MADE_SMALL:
        return
    message = _failure(func, args, kwargs, small=small)
    if small and _REFUSAL.search(message):  # the kernel may depend on sizes: repeat it unchanged
        small, message = False, _failure(func, args, kwargs, small=False)
    if _REFUSAL.search(message):
        raise NoKernelError(
            f"{func._schema.name.replace('::', '.')} does not run in {halves[0]} on a CPU (the "
            f"{phase.value} pass of {module or 'the model itself'}): torch {torch.__version__} "
            f"says {message}; {WAY_OUT}"
        )
    if all(x.numel() for x in tensors):  # without elements a kernel may not check the type
        (_MADE_SMALL if small else _MADE).add(key)


def names_half(message: str) -> bool:
    """Whether an error message of torch names a 16-bit type."""
    return re.search(_NAME, message) is not None


def _kind(x: Any) -> Any:
    """The part of an argument that distinguishes kinds of calls."""
    if isinstance(x, Tensor):
        return x.dtype, x.dim()
    if type(x) is int:
        return max(-_TELLING, min(x, _TELLING))
    return x if isinstance(x, (str, float, bool, torch.dtype, type(None))) else type(x)


def _failure(func: Any, args: Any, kwargs: Any, *, small: bool) -> str:
    """The first line of a call's error on zeros (`_zeros`), "" if it succeeds."""
    zeros = partial(_zeros, small=small)
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.random.fork_rng(devices=()),
        torch.backends.mkldnn.flags(enabled=True),  # as in a run; disabled in traces
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            func(*tree_map(zeros, args), **tree_map(zeros, kwargs))
        except Exception as error:
            return next(iter(str(error).splitlines()), "") or type(error).__name__
    return ""


def _zeros(x: Any, *, small: bool) -> Any:
    """Zeros with a tensor's layout; `small`: with few elements per dimension, in the same order in
    memory, and integer arguments reduced in the same way."""
    if not isinstance(x, Tensor):
        return _few(x) if small and type(x) is int else x
    if not small:
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
        return torch.zeros(max(0, reach), dtype=x.dtype).as_strided(x.shape, x.stride())
    order = sorted(range(x.dim()), key=lambda d: (-x.stride()[d], d))
    return torch.empty_permuted([_few(n) for n in x.shape], order, dtype=x.dtype).zero_()


def _few(n: int) -> int:
    """The number itself up to 8, above it one more per doubling: equal numbers stay equal, and the
    order of different ones is kept."""
    return n if n <= 8 else 5 + n.bit_length()
