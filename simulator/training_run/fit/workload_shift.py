"""`LoggedWorkload`: what a cluster's log says of runs like the one that it is of.

Of runs of one cluster that are predicted without its source, those of one model miss alike
(layouts, batches and sizes of machine share what was not predicted of its layers), those of other
models hardly do. So a workload has a part of its own in what its runs miss by, which fades with the
difference in parameters and in sequence length and is nothing between dense and expert models, full
and low precision, all weights and adapters. This is Gaussian process regression of the misses
(Kennedy and O'Hagan, J. R. Statist. Soc. B 63(3), 2001, section 2: what a calibrated model still
gets wrong), with one point per workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_owner import processor_of, stack_owner
from simulator.training_run.step.coefficients import CoefficientFile

Array = NDArray[np.float64]

# All five are estimated by tools/derive_cluster_spread.py on what 49 published clusters miss by,
# each source left out of the coefficients (2026-11-22): those under which one run of a cluster best
# predicts its others, sources weighing the same. Both spreads are in units of the noise
# (recalibrate.py), since one log tells no more than their ratios; COEFFICIENT_SHARE belongs to a
# noise of 10 %.
PLAIN_SPREAD = 1.0
"""Standard deviation between workloads of one cluster, of dense models in 16 bits."""
STRANGE_SPREAD = 1.91
"""The same of experts, adapters and 8 bits or fewer, which differ most from source to source."""
SIZE_SCALE = 0.41
"""Difference in the logarithm of the parameters over which likeness fades."""
SEQ_SCALE = 1.0
"""The same of the sequence length."""
COEFFICIENT_SHARE = 0.66
"""Spread of a coefficient between clusters over what its kind is given in the fit, where the noise
is 10 %."""

# Kinds of coefficients that are times or multiply them, so that a step is as many times longer as
# all of these; shares of what shows, and factors of other coefficients, are not among them.
_TIMES = frozenset(
    name
    for names in (
        "matmul power attention state passes casts scores",
        "launch_us socket_us ring_us wait_us stall_ms step_ms microbatch_ms",
        "inner outer inner_step_us outer_step_us cut_step_us cut_peer_us reduce_rank_us",
        "optimizer",
    )
    for name in names.split()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedWorkload:
    """A workload that was logged.

    cluster     the device and the framework whose runs these are
    experts, adapters, low_precision   what it is not alike to others in
    parameters  of the model;  seq_len  tokens of a sequence
    weight      of its likeness, in the logarithm of measured over predicted
    """

    cluster: str
    experts: bool
    adapters: bool
    low_precision: bool
    parameters: float
    seq_len: float
    weight: float = 0.0

    def __post_init__(self) -> None:
        if not (self.parameters > 0 and self.seq_len > 0 and math.isfinite(self.weight)):
            raise InputError(
                f"a logged workload has parameters and a sequence length above 0, got {self}"
            )

    def likeness(self, other: LoggedWorkload) -> float:
        """From 0 to 1: what both share of their misses."""
        kinds = ("cluster", "experts", "adapters", "low_precision")
        if any(getattr(self, kind) != getattr(other, kind) for kind in kinds):
            return 0.0
        size = math.log(self.parameters / other.parameters) / SIZE_SCALE
        seq = math.log(self.seq_len / other.seq_len) / SEQ_SCALE
        return math.exp(-0.5 * (size * size + seq * seq))

    @property
    def spread(self) -> float:
        """How far workloads of the kind lie apart, in units of the noise."""
        strange = self.experts or self.adapters or self.low_precision
        return STRANGE_SPREAD if strange else PLAIN_SPREAD


def workload_of(run: TrainingRun) -> LoggedWorkload:
    """The workload of a run, without a weight."""
    return LoggedWorkload(
        cluster=f"{processor_of(run.device)}, {stack_owner(run)}",
        experts=run.model.num_experts > 0,
        adapters=run.lora,
        low_precision=run.precision in LOW_PRECISIONS,
        parameters=float(run.model.parameters),
        seq_len=float(run.seq_len),
    )


def likenesses(rows: Sequence[LoggedWorkload], columns: Sequence[LoggedWorkload]) -> Array:
    """[rows, columns]"""
    found = [[row.likeness(column) for column in columns] for row in rows]
    return np.asarray(found, dtype=np.float64).reshape(len(rows), len(columns))


def shift_of(run: TrainingRun, known: Sequence[LoggedWorkload]) -> float:
    """The logarithm by which a run takes longer than its coefficients say; 0 for what is unlike all
    that was logged."""
    if not known:
        return 0.0
    mine = workload_of(run)
    return sum(mine.likeness(each) * each.weight for each in known)


def slowed(file: CoefficientFile, shift: float) -> CoefficientFile:
    """The coefficients under which a step takes exp(shift) times as long, but for host memory and
    what lies beyond the network, which no coefficient multiplies."""
    if shift == 0.0:
        return file
    factor = math.exp(shift)
    values: Mapping[str, float] = {
        name: value * (factor if name.partition(".")[0] in _TIMES else 1.0)
        for name, value in file.values.items()
    }
    return replace(file, values=values)
