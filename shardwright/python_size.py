"""`size` in Python: the flags of the command as parameters, an answer as a value."""

from __future__ import annotations

import time
from datetime import date
from pathlib import Path

from shardwright.requests.sizing.size_flags import size_flags
from shardwright.requests.sizing.sized import SizeSolver
from shardwright.results.result import as_result
from shardwright.results.sized import SizeResult
from simulator.training_run.run.low_bits import USUAL_OPTIMIZER


def size(
    model: str,
    on: str,
    *,
    tokens: str = "",
    deadline: str = "",
    budget: str = "",
    sure: str = "50%",
    nodes: str = "",
    devices: str = "",
    minimise: str = "",
    stack: str = "",
    global_batch: str = "",
    sequence_length: int | None = None,
    precision: str = "",
    lora: int = 0,
    base_precision: str = "",
    optimizer: str = USUAL_OPTIMIZER,
    pue: float | None = None,
    region: str = "",
    prices: str | Path | None = None,
    price: str = "on-demand",
    network: str = "",
    reliability: str | Path | None = None,
    phases: str | Path | None = None,
    time_limit_s: float = 300.0,
    workers: int = 1,
    seed: int = 0,
) -> SizeResult:
    """What to rent for a training run, what it costs, when it is done, and how sure that is.

    on                 types of devices: `h100-sxm,b200`
    tokens             of the run: `15T`; `optimal`; "" for as many as the limits allow
    deadline, budget   of the whole run: `60d`, `20M$`;  sure  probability that each is kept
    nodes, devices     how many: `32`, `16..2048`
    minimise           `cost`, `time`, `devices` or `energy`
    time_limit_s       of each search;  workers  processes of this machine
    others             as the flags of `shardwright size`

    Raises InputError that names everything that is wrong. Where nothing keeps the limits, `best` is
    None and the report says what would.
    """
    solver = SizeSolver(
        clock=time.monotonic,
        today=date.today().isoformat(),
        limit_s=time_limit_s,
        workers=workers,
        seed=seed,
    )
    flags = size_flags(
        model,
        on,
        tokens=tokens,
        deadline=deadline,
        budget=budget,
        sure=sure,
        nodes=nodes,
        devices=devices,
        minimise=minimise,
        stack=stack,
        global_batch=global_batch,
        seq=sequence_length,
        precision=precision,
        lora=lora,
        base_precision=base_precision,
        optimizer=optimizer,
        pue=pue,
        region=region,
        prices=None if prices is None else Path(prices),
        price=price,
        network=network,
        reliability=None if reliability is None else Path(reliability),
        phases=None if phases is None else Path(phases),
    )
    return as_result(SizeResult, solver.solve(flags))
