"""`UnsupportedRunError`: a run that cannot be predicted, with the reason."""

from __future__ import annotations

from profiles.errors import InputError


class UnsupportedRunError(InputError):
    """A run that cannot be predicted; `reason` is the message without the run's id."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"run {run_id!r} cannot be predicted: {reason}")
        self.reason = reason
