"""Kernel surfaces as TOML that people read: one row of numbers per line."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.hardware.kernels.kernel_surface import HeldOut, LogGrid


def grid_text(grid: LogGrid, prefix: str) -> list[str]:
    """The lines of a correction grid in TOML: one row of numbers per line."""
    lines = [f"[{prefix}]"]
    axes = ", ".join("[" + ", ".join(f"{node:g}" for node in axis) + "]" for axis in grid.axes)
    lines.append(f"axes = [{axes}]")
    lines.append("percent = [")
    for plane in grid.percent:
        lines.append(" [")
        lines += ["  [" + ",".join(map(str, row)) + "]," for row in plane]
        lines.append(" ],")
    return [*lines, "]"]


def held_out_text(errors: Sequence[HeldOut]) -> list[str]:
    """The lines of the errors in TOML: one measure per line."""
    lines = ["held_out = ["]
    for e in errors:
        lines.append(
            f'  {{ split = "{e.split}", where = "{e.where}", rows = {e.rows}, '
            f"median = {e.median}, p90 = {e.p90}, bias = {e.bias} }},"
        )
    return [*lines, "]"]


def numbers_text(table: object, names: Sequence[str]) -> list[str]:
    """One line per named number of a value."""
    return [f"{name} = {float(getattr(table, name))!r}" for name in names]


def box_text(box: Sequence[tuple[float, float]]) -> str:
    """The line of a measured box."""
    return "box = [" + ", ".join(f"[{low:g}, {high:g}]" for low, high in box) + "]"
