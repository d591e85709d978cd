"""`size` in Python: the flags of the command as keywords, an answer as a value."""

from __future__ import annotations

import time
from datetime import date
from typing import Unpack

from shardwright.options.keywords import SizeKeywords
from shardwright.options.option import from_keywords
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import SizeSolver
from shardwright.results.result import as_result
from shardwright.results.sized import SizeResult


def size(
    model: str,
    on: str,
    *,
    time_limit_s: float = 300.0,
    workers: int = 1,
    seed: int = 0,
    **options: Unpack[SizeKeywords],
) -> SizeResult:
    """What to rent for a training run, what it costs, when it is done, and with what probability.

    on             types of devices: `h100-sxm,b200`
    time_limit_s   of each search;  workers  processes of this machine
    options        as the flags of `shardwright size` (docs/options.md): `tokens="15T"`,
                   `deadline="60d"`, `budget="20M$"`, `sure="80%"`, `nodes="16..2048"`

    Raises InputError that names everything that is wrong. If nothing meets the limits, `best` is
    None and the report names the smallest change that would.
    """
    solver = SizeSolver(
        clock=time.monotonic,
        today=date.today().isoformat(),
        limit_s=time_limit_s,
        workers=workers,
        seed=seed,
    )
    given = from_keywords(SizeOptions, options)
    flags = size_flags(SizeOptions(model=model, on=on, **given))
    return as_result(SizeResult, solver.solve(flags))
