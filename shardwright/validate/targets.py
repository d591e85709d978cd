"""The targets of the project: which rows, which statistic, how small.

From the project's issue 3, "Predictions within a few per cent of what others measured".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from shardwright.validate.compared import ComparedRun
from shardwright.validate.groups import source_of
from shardwright.validate.statistics import memory_summary, step_time_summary

# Dense bf16 peak of an H100 SXM (datasheet, https://www.nvidia.com/en-us/data-center/h100/).
_H100_FLOP_PER_S = 989e12
_LEAST_MFU = 0.20
_LONGEST = 8192


class Statistic(StrEnum):
    """What is compared with a target."""

    MEAN = "mean"
    MEDIAN = "median"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An error that predictions of some rows must not exceed, as fractions; None where none is.

    to_beat   the best figure of others on these rows, with its citation, or ""
    """

    name: str
    holds: Callable[[ComparedRun], bool]
    statistic: Statistic = Statistic.MEAN
    step_time: float | None = None
    bias: float | None = None
    memory: float | None = None
    to_beat: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A target with what was reached; nan where no row could be compared."""

    target: Target
    rows: int
    compared: int
    step_time: float
    bias: float
    memory: float
    met: bool


def outcome(target: Target, rows: Sequence[ComparedRun]) -> Outcome:
    """What the predictions of the target's rows reach; a target without a compared row is missed.

    A bound holds for the statistic of the step time, for the absolute bias and for the mean
    absolute error of the memory.
    """
    mine = [row for row in rows if target.holds(row)]
    times, memory = step_time_summary(mine), memory_summary(mine)
    reached = times.median_absolute if target.statistic == Statistic.MEDIAN else times.mean_absolute
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
        to_beat="SimuMax 1.2: 5.62 % time, 0.46 % memory (its own B200 table, 43 rows)",
    ),
    Target(
        name="korthikanti-tab5",
        holds=of_source("korthikanti-tab5"),
        step_time=0.035,
        to_beat="Calculon 1.1: 3.65 % (run on its own validation rows)",
    ),
    Target(
        name="vtrain-multi",
        holds=of_source("vtrain-multi"),
        step_time=0.065,
        to_beat="vTrain: 14.7 % (claimed); Calculon 1.1: 19.6 % (run)",
    ),
    Target(
        name="vtrain-single",
        holds=of_source("vtrain-single"),
        step_time=0.08,
        to_beat="vTrain: 8.4 % (claimed); Calculon 1.1: 38.9 % (run)",
    ),
    Target(name="zb", holds=of_source("zb"), step_time=0.05, memory=0.08),
    Target(name="bloom", holds=of_source("bloom"), step_time=0.08, memory=0.08),
    Target(
        name="ultra at 20 % MFU or more",
        holds=_healthy_sweep,
        statistic=Statistic.MEDIAN,
        step_time=0.12,
    ),
    Target(name="ultra, memory of all rows", holds=of_source("ultra"), memory=0.05),
    Target(
        name="mbridge and mlperf, dense bf16 or fp8, layout known",
        holds=_known_dense,
        statistic=Statistic.MEDIAN,
        step_time=0.10,
    ),
    Target(name="TPU", holds=_tpu, statistic=Statistic.MEDIAN, step_time=0.12),
)
