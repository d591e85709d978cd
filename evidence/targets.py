"""Error targets of some sources, from issue 3, "Predictions within a few per cent of what others
measured". Targets of later sources: `prospective.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.compared_run import ComparedRun
from evidence.groups import source_of
from evidence.statistics import memory_summary, step_time_summary

# Dense bf16 peak of an H100 SXM (datasheet, https://www.nvidia.com/en-us/data-center/h100/).
_H100_FLOP_PER_S = 989e12
_LEAST_MFU = 0.20
_LONGEST = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Highest errors allowed on some rows, as fractions; None for no target.

    is_median   of the step time the median absolute error counts, not the mean
    """

    name: str
    holds: Callable[[ComparedRun], bool]
    is_median: bool = False
    step_time: float | None = None
    bias: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A target and the errors reached; nan without a compared row."""

    target: Target
    rows: int
    compared: int
    step_time: float
    bias: float
    memory: float
    met: bool


def outcome(target: Target, rows: Sequence[ComparedRun]) -> Outcome:
    """The errors on the target's rows; a target without a compared row is missed.

    The bounds apply to the mean or median absolute error of the step time, the absolute bias and
    the mean absolute error of the peak memory.
    """
    mine = [row for row in rows if target.holds(row)]
    times, memory = step_time_summary(mine), memory_summary(mine)
    reached = times.median_absolute if target.is_median else times.mean_absolute
    bounds = (
        (reached, target.step_time),
        (abs(times.bias), target.bias),
        (memory.mean_absolute, target.memory),
    )
    return Outcome(
        target=target,
        rows=len(mine),
        compared=max(times.count if target.step_time is not None else 0, memory.count),
        step_time=reached,
        bias=times.bias,
        memory=memory.mean_absolute,
        # nan is not below any bound.
        met=all(value <= bound for value, bound in bounds if bound is not None),
    )


def of_source(*sources: str) -> Callable[[ComparedRun], bool]:
    """Whether a row is of one of the sources."""
    return lambda row: source_of(row.run.id) in sources


def utilisation(row: ComparedRun) -> float | None:
    """The row's MFU by 6N on an H100, None where figures are missing.

    N counts attention as 4 h^2 and a gated feed-forward, as the independent scorer does: it only
    separates runs that ran well from those with network trouble.
    """
    run, measured = row.run, row.measured.step_time_s
    layers, hidden, vocab = run.num_layers, run.hidden_size, run.vocab_size
    if not layers or not hidden or not vocab or not measured:
        return None
    if not run.global_batch or not run.seq_len or not run.num_devices:
        return None
    ffn = run.ffn_size if run.ffn_size is not None else 4 * hidden
    parameters = layers * (4 * hidden**2 + 3 * hidden * ffn) + hidden * vocab
    flop = 6 * parameters * run.global_batch * run.seq_len
    return flop / (measured * run.num_devices * _H100_FLOP_PER_S)


def _short_bf16(row: ComparedRun) -> bool:
    run = row.run
    return (
        source_of(run.id) == "llmf"
        and run.precision == "bf16"
        and (run.seq_len is not None and run.seq_len <= _LONGEST)
    )


def _healthy_sweep(row: ComparedRun) -> bool:
    reached = utilisation(row)
    return source_of(row.run.id) == "ultra" and reached is not None and reached >= _LEAST_MFU


def _known_dense(row: ComparedRun) -> bool:
    run = row.run
    return (
        source_of(run.id) in ("mbridge", "mlperf")
        and run.family == "dense"
        and run.precision in ("bf16", "fp8")
        and run.tp is not None
        and run.pp is not None
    )


def _tpu(row: ComparedRun) -> bool:
    return row.run.device.lower().startswith("tpu")


TARGETS = (
    Target(name="llmf, bf16, sequence up to 8k", holds=_short_bf16, step_time=0.05),
    Target(
        name="simumax-b200",
        holds=of_source("simumax-b200"),
        step_time=0.04,
        bias=0.02,
        memory=0.01,
    ),
    Target(
        name="korthikanti-tab5",
        holds=of_source("korthikanti-tab5"),
        step_time=0.035,
    ),
    Target(
        name="vtrain-multi",
        holds=of_source("vtrain-multi"),
        step_time=0.065,
    ),
    Target(
        name="vtrain-single",
        holds=of_source("vtrain-single"),
        step_time=0.08,
    ),
    Target(name="zb", holds=of_source("zb"), step_time=0.05, memory=0.08),
    Target(name="bloom", holds=of_source("bloom"), step_time=0.08, memory=0.08),
    Target(
        name="ultra at 20 % MFU or more",
        holds=_healthy_sweep,
        is_median=True,
        step_time=0.12,
    ),
    Target(name="ultra, memory of all rows", holds=of_source("ultra"), memory=0.05),
    Target(
        name="mbridge and mlperf, dense bf16 or fp8, layout known",
        holds=_known_dense,
        is_median=True,
        step_time=0.10,
    ),
    Target(name="TPU", holds=_tpu, is_median=True, step_time=0.12),
)
