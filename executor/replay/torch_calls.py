"""Intercept the calls of torch functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode, _get_current_function_mode

Handle = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Takes a torch function with its arguments, and returns the result of the call."""


class InterceptTorchCalls(TorchFunctionMode):
    """A torch function mode in which `handle` makes every call of a torch function."""

    def __init__(self, handle: Handle) -> None:
        super().__init__()
        self._handle = handle

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return self._handle(func, args, kwargs or {})


class TorchCallSwitch:
    """Switches the interception of torch calls on and off. It is off inside units: there each
    function would cost 4 us for nothing (a thousand functions in an EfficientNetV2; two cores,
    torch 2.13, 2026-11-23)."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._mode: TorchFunctionMode | None = None

    @property
    def on(self) -> bool:
        """Whether calls are intercepted."""
        return self._mode is not None

    def turn(self, on: bool) -> None:
        """Switch on or off. It stays on if a mode of the model was entered after it, because only
        the last mode can be left."""
        mode = self._mode
        if on and mode is None:
            self._mode = InterceptTorchCalls(self._handle)
            self._mode.__enter__()  # type: ignore[no-untyped-call] # torch's
        # Only the last mode can be left, and the model may have entered another one.
        elif not on and mode is not None and _get_current_function_mode() is mode:
            self._mode = None
            mode.__exit__(None, None, None)
