"""`plan_title`: degrees, schedule, micro-batch and ZeRO stage in one line."""

from __future__ import annotations

from typing import Protocol


class Degrees(Protocol):
    """What plans and cells of a search have in common."""

    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def vpp(self) -> int: ...
    @property
    def schedule(self) -> str: ...
    @property
    def micro_batch(self) -> int: ...
    @property
    def zero_stage(self) -> int: ...


def plan_title(of: Degrees) -> str:
    """`tp4 pp2 dp4, 1f1b, micro-batch 2, ZeRO 1`."""
    return ", ".join(title_parts(of, f"tp{of.tp} pp{of.pp} dp{of.dp}"))


def title_parts(of: Degrees, mesh: str) -> list[str]:
    """The parts of a title whose first one, its degrees, is `mesh`."""
    parts = [mesh]
    if of.pp > 1:
        parts.append(of.schedule + (f" x{of.vpp}" if of.vpp > 1 else ""))
    parts.append(f"micro-batch {of.micro_batch}")
    if of.zero_stage:
        parts.append(f"ZeRO {of.zero_stage}")
    return parts
