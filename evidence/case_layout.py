"""`fastest_layout`: the layout of a described run whose source prints none, or a part of one.

A team that trains for weeks has tuned its layout. Values that the source does not print are
therefore searched for, with the printed ones pinned. If the search finds nothing (a schedule that
no framework here offers, a cluster without a name), the values of the reader are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from planner.axes import Axes
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster
from shardwright.runs.complete_layout import LONG_SEQUENCE
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import TrainingRun

# Runs of these frameworks recompute whole layers if the source is silent. Selective recomputation
# came later (Korthikanti et al., arXiv 2205.05198, May 2022; BLOOM, OPT, MT-NLG and GPT-NeoX's
# configurations all checkpoint whole layers), and in MaxText it is the default (configs/base.yml).
_ALWAYS_RECOMPUTED = ("megatron-2021", "megatron-deepspeed", "maxtext")
# A search that takes longer ends with the best that it has found.
_TIME_LIMIT_S = 120.0


def fastest_layout(
    run: TrainingRun, asked: PublishedRun, *, clock: Callable[[], float]
) -> TrainingRun:
    """The run with the fastest layout that keeps what `asked` prints and that fits."""
    if asked.schedule or asked.recompute:
        return run
    for pinned in _pins(run, asked):
        try:
            question = LayoutQuestion(
                name=run.id,
                model=run.model,
                cluster=get_cluster(_cluster_name(run)),
                stack=run.stack,
                global_batch=run.global_batch,
                seq_len=run.seq_len,
                precision=run.precision,
                space=pinned,
            )
            solver = LayoutSolver(clock=clock, end_s=clock() + _TIME_LIMIT_S)
            outcome = solver.search(
                question, altered=lambda base: replace(base, network=run.network)
            )
        except ShardwrightError:
            continue
        if outcome.layouts:
            found = outcome.layouts[0].run
            said = tuple(each for each in run.defaults if not _answered(each))
            words = f"the fastest layout that fits: {_words(found)}"
            return replace(found, id=run.id, defaults=(words, *said))
    return run


def _answered(said: str) -> bool:
    return said.startswith(_ANSWERED) or said.endswith("per pipeline rank")


# Assumptions of the reader that the search replaces.
_ANSWERED = (
    *("tp ", "pp ", "cp ", "dp ", "micro-batch", "no recompute", "recompute ", "schedule "),
    *("ZeRO stage", "sequence parallelism", "experts not spread"),
)


def _pins(run: TrainingRun, asked: PublishedRun) -> list[Axes]:
    """The printed values as pins, first with and then without the ZeRO stage."""
    printed = {"tp": asked.tp, "pp": asked.pp, "cp": asked.cp, "ep": asked.ep, "vpp": asked.vpp}
    printed["micro_batch"] = asked.micro_batch
    axes: dict[str, Any] = {name: (value,) for name, value in printed.items() if value is not None}
    if asked.tp and asked.pp:
        rest = run.degrees.num_devices // (asked.tp * asked.pp * (asked.cp or 1))
        axes["dp"] = (rest,) if asked.cp else tuple(n for n in range(1, rest + 1) if rest % n == 0)
    if run.seq_len < LONG_SEQUENCE:
        axes.setdefault("cp", (1,))
    recompute = ("full",) if run.stack in _ALWAYS_RECOMPUTED else None
    plain = Axes(**axes, recompute=recompute)
    if asked.zero_stage is None:
        return [plain]
    return [replace(plain, zero=(asked.zero_stage,)), plain]


def _cluster_name(run: TrainingRun) -> str:
    node = math.gcd(run.node_devices, run.degrees.num_devices)
    return f"{run.degrees.num_devices // node}x{node}x{run.device}"


def _words(run: TrainingRun) -> str:
    degrees = run.degrees
    chunks = f" x{degrees.vpp}" if degrees.vpp > 1 else ""
    return (
        f"tp{degrees.tp} cp{degrees.cp} pp{degrees.pp}{chunks} dp{degrees.dp} ep{degrees.ep}, "
        f"micro-batch {run.micro_batch}, ZeRO {run.zero_stage}, recompute {run.recompute}"
    )
