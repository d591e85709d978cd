"""`size` in Python: the flags of the command as keywords, an answer as a value."""

from __future__ import annotations

import time
from datetime import date
from typing import Unpack

from shardwright.options.keywords import SizeKeywords
from shardwright.options.option import from_keywords
from shardwright.options.size_options import SizeOptions
from shardwright.requests.sizing.largest_model import is_list, largest_model, models_of
from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import SizeSolver
from shardwright.results.result import as_result
from shardwright.results.results import SizeResult


def size(
    model: str,
    on: str = "",
    *,
    time_limit_s: float = 300.0,
    workers: int = 1,
    seed: int = 0,
    **options: Unpack[SizeKeywords],
) -> SizeResult:
    """What to rent for a training run, what it costs, when it is done, and with what probability.

    model          a model; of a list (`qwen3-8b,qwen3-32b`) or pattern (`qwen3-*`) the largest that
                   budget and deadline allow
    on             types of devices: `h100-sxm,b200`; by default the ones of most providers
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
    request = SizeOptions(model=model, on=on, **from_keywords(SizeOptions, options))
    if is_list(model):
        tried = largest_model(request, models_of(model), solver)
        return as_result(SizeResult, tried[-1].sized)
    return as_result(SizeResult, solver.solve(size_flags(request)))
