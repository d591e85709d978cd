"""Whether torch has a CPU kernel for an op on 16-bit floats, asked while a model is traced.

On shapes alone an op passes that has a rule for its shapes; its kernel may have been written
without bfloat16 or float16 (in torch 2.13 those of distances, of average pooling of volumes, of
most of linear algebra). So the first call of each kind is made for real, on zeros: of the same
shapes and strides where they are small, else of a few elements a dimension, and as it is where that
fails. Where the type is at fault, torch's error says that it is not implemented or supported.
Whatever else such a call fails with says nothing of the model, which has other values.
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
"""The types that are looked at, and what torch calls them in its errors."""

WAY_OUT = "compute it in float32 there (x.float()), or plan in fp32 (--precision fp32)"

_NAME = r"\b(" + "|".join((*HALVES, *HALVES.values())) + r")\b"
# An error about types that do not go together is no sign: those of results on shapes may differ
# from real ones (`_weight_norm_interface` in float16, torch 2.13).
_REFUSAL = re.compile(
    rf"(not implemented for|support).*{_NAME}|Double tensors but got BFloat16"  # complex, polar
)
# Ops of others may do what no trace should: read files, start processes.
_NAMESPACES = ("aten", "torchvision")
# Elements that the largest call reads and writes which is made as it is: most kernels take a
# fraction of a millisecond for them.
_MOST_ELEMENTS = 2**16
# Integers up to here tell kinds of calls apart: dimensions, windows, strides, powers.
_TELLING = 16
# Kinds of calls that were made, and those that were made small, without an error about their type.
# Facts of the installed torch, kept as long as the process.
_MADE: set[Any] = set()
_MADE_SMALL: set[Any] = set()


class NoKernelError(TraceError, NotImplementedError):
    """An op that torch has no CPU kernel for in 16 bits.

    It is torch's NotImplementedError too, so that a module which catches that and goes another way
    is traced on that way, as it would run.
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
    """Raises NoKernelError where torch has no CPU kernel for a call that was made on shapes; `out`
    is its result, None where it failed."""
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
    # Products take both types; a backward trusts that its sizes go together.
    if small and (func._overloadpacket in flop_registry or phase is Phase.BACKWARD):
        return
    if small and key in _MADE_SMALL:
        return
    said = _failure(func, args, kwargs, small=small)
    if small and _REFUSAL.search(said):  # sizes may decide which kernel runs: the call as it is
        small, said = False, _failure(func, args, kwargs, small=False)
    if _REFUSAL.search(said):
        raise NoKernelError(
            f"{func._schema.name.replace('::', '.')} does not run in {halves[0]} on a CPU (the "
            f"{phase.value} pass of {module or 'the model itself'}): torch {torch.__version__} "
            f"says {said}; {WAY_OUT}"
        )
    if all(x.numel() for x in tensors):  # of nothing, a kernel may return before it asks the type
        (_MADE_SMALL if small else _MADE).add(key)


def names_half(said: str) -> bool:
    """Whether an error of torch's names one of the 16-bit types."""
    return re.search(_NAME, said) is not None


def _kind(x: Any) -> Any:
    """What of an argument tells kinds of calls apart."""
    if isinstance(x, Tensor):
        return x.dtype, x.dim()
    if type(x) is int:
        return max(-_TELLING, min(x, _TELLING))
    return x if isinstance(x, (str, float, bool, torch.dtype, type(None))) else type(x)


def _failure(func: Any, args: Any, kwargs: Any, *, small: bool) -> str:
    """The first line of what a call fails with on zeros, "" where it runs; see `_zeros`."""
    zeros = partial(_zeros, small=small)
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.random.fork_rng(devices=()),
        torch.backends.mkldnn.flags(enabled=True),  # as in a run; a trace has it off
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            func(*tree_map(zeros, args), **tree_map(zeros, kwargs))
        except Exception as error:
            return next(iter(str(error).splitlines()), "") or type(error).__name__
    return ""


def _zeros(x: Any, *, small: bool) -> Any:
    """Zeros for a tensor, laid out as it is; `small`: with few elements a dimension, in the same
    order in memory, and other whole numbers as small."""
    if not isinstance(x, Tensor):
        return _few(x) if small and type(x) is int else x
    if not small:
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
        return torch.zeros(max(0, reach), dtype=x.dtype).as_strided(x.shape, x.stride())
    order = sorted(range(x.dim()), key=lambda d: (-x.stride()[d], d))
    return torch.empty_permuted([_few(n) for n in x.shape], order, dtype=x.dtype).zero_()


def _few(n: int) -> int:
    """Up to 8 the number itself, above it one more for each doubling: equal ones stay equal, and
    what an op enlarges or shrinks stays larger or smaller."""
    return n if n <= 8 else 5 + n.bit_length()
