"""`plan_title`: degrees, schedule, micro-batch and ZeRO stage in one line."""

from __future__ import annotations

from typing import Protocol

from simulator.values.degrees import Degrees
from simulator.values.plan import Plan


class Titled(Protocol):
    """Fields common to plans, runs and layouts of a search."""

    @property
    def degrees(self) -> Degrees: ...
    @property
    def schedule(self) -> str: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def zero_stage(self) -> int: ...


def plan_title(of: Titled) -> str:
    """`tp4 pp2 dp4, 1f1b, micro-batch 2, ZeRO 1`; with unequal replicas
    `8 replicas of tp1, micro-batch 1`."""
    degrees = of.degrees
    parts = [degrees.mesh_text]
    if isinstance(of, Plan) and of.pipelines is not None:
        count = "one pipeline" if degrees.dp == 1 else f"{degrees.dp} replicas"
        parts = [f"{count} of tp{degrees.tp}"]
    elif degrees.pp > 1:
        parts.append(of.schedule + (f" x{degrees.vpp}" if degrees.vpp > 1 else ""))
    parts.append(f"micro-batch {of.micro_batch}")
    if of.zero_stage:
        parts.append(f"ZeRO {of.zero_stage}")
    if isinstance(of, Plan) and of.optimizer_offload:
        parts.append("optimizer on the host")
    if isinstance(of, Plan) and of.sequence_parallel:
        parts.append("sequence parallel")
    return ", ".join(parts)
