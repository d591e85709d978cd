"""A device that computes nothing: torch's Python-defined private device, named `fakegpu`.

With fake tensors on it the executor takes the ways that it takes on an accelerator, and a tensor
that lies elsewhere is an error. It is registered once per process and for good: only processes that
do nothing else may do so (tests/executor/fake_accelerator/walks.py starts them).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "fakegpu"


class Stream:
    """A stream whose work is done as soon as it is given."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device(NAME, 0)

    def wait_stream(self, _: Stream) -> None: ...

    def wait_event(self, _: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def synchronize(self) -> None:
        Backend.synchronized += 1

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """An event; one second lies between any two."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None:
        Backend.synchronized += 1

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Event) -> float:
        return 1000.0


class Backend:
    """What torch asks a device's module for.

    synchronized  how often the host has waited for the device
    """

    Stream, Event = Stream, Event
    synchronized = 0

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 8

    def set_device(self, _: Any) -> None: ...

    def _is_in_bad_fork(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def manual_seed_all(self, seed: int) -> None: ...

    def get_rng_state(self, _: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, _: Any = None) -> None: ...

    def current_stream(self, _: Any = None) -> Stream:
        return Stream()

    def default_stream(self, _: Any = None) -> Stream:
        return Stream()

    def synchronize(self, _: Any = None) -> None:
        Backend.synchronized += 1

    def get_device_name(self, _: Any = None) -> str:
        return NAME

    def empty_cache(self) -> None: ...

    @contextmanager
    def stream(self, _: Stream | None) -> Iterator[None]:
        yield

    @contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield


_KERNELS = torch.library.Library("aten", "IMPL", "PrivateUse1")


def _never_run(*_: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("the device has fake tensors alone")


def register() -> torch.device:
    """The device of this process, made on the first call."""
    if not hasattr(torch, NAME):
        _setup_privateuseone_for_python_backend(NAME, Backend())
        # On accelerators one kernel; without one of its own a device takes six, each with a result.
        _KERNELS.impl("silu_backward", _never_run)
    return torch.device(NAME, 0)
