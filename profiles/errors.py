"""The errors for users, with the exit code of each.

    ShardwrightError                 exit code
    ├── InputError                   2   a file, a flag or an argument is wrong
    │   ├── UnknownNameError         2   no such device, model, schedule, key; names the nearest
    │   ├── DocumentError            2   a file with unexpected content, or an unreadable one
    │   ├── UnitError                2   a quantity with a wrong or missing unit
    │   ├── ModelError               2   a model that cannot be loaded
    │   └── TraceError               2   a model that loads but cannot be traced
    ├── SlowTraceError               2   a model whose loops make its trace take minutes
    ├── MismatchError                2   a plan for another model, machine or number of ranks
    ├── RunError                     2   a training run ended early: the first failing rank
    ├── InfeasibleError              3   nothing fits (raised at the command line only; inside
    │                                    the library infeasible is a value)
    └── ToleranceError               4   `compare --fail-over`: measured is too far from predicted

A message contains the input, the problem, where the input came from, and a fix.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ShardwrightError(Exception):
    """Base of all errors for users; `exit_code` is the exit code of the process."""

    exit_code = 1


class InputError(ShardwrightError):
    """An invalid flag, argument or file content."""

    exit_code = 2


class UnknownNameError(InputError):
    """An unknown name; the message suggests the nearest known one.

    kind        for example `device`
    where       place of the name
    suggestion  the nearest known name
    """

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, where: str = "", suggestion: str = ""
    ) -> None:
        names = sorted(known)
        near = [suggestion] if suggestion else get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        place = f" ({where})" if where else ""
        listed = ", ".join(names[:24]) + (", ..." if len(names) > 24 else ".")
        super().__init__(f"unknown {kind} {name!r}{place}.{hint} Known: {listed}")


class DocumentError(InputError):
    """A file that is missing, cut short, of another schema or with a wrong entry."""


class UnitError(InputError):
    """A quantity whose unit is missing, unknown or of another dimension."""


class ModelError(InputError):
    """A model that cannot be loaded from the given name, file or module."""


class TraceError(InputError):
    """A model whose forward or backward cannot be traced; names the op and the module."""


class SlowTraceError(ShardwrightError):
    """A model whose forward loops over its input so often that a trace would take minutes. Not an
    InputError: no other route can plan the model either, so none is tried."""

    exit_code = 2


class MismatchError(ShardwrightError):
    """A plan that was made for another model, another machine or another number of ranks."""

    exit_code = 2


class RunError(ShardwrightError):
    """A run that ended early, with the message of the first failing rank."""

    exit_code = 2


class InfeasibleError(ShardwrightError):
    """No plan fits; the message has the binding constraint and the smallest changes that fit."""

    exit_code = 3


class ToleranceError(ShardwrightError):
    """A comparison outside the user's tolerance."""

    exit_code = 4
