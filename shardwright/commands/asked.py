"""What flags ask for, as values: models, sequence lengths, search spaces."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError, UnknownNameError
from simulator.plan import Recompute

if TYPE_CHECKING:
    from planner.layout.layout_space import LayoutSpace
    from profiles.model.transformer import Transformer

DEFAULT_SEQUENCE = 4096
LAYOUT_COUNTS = ("tp", "cp", "ep", "pp", "dp", "vpp", "zero", "micro_batch")


def import_from_here(model: str) -> None:
    """A user's factory may live in the current folder; only then it is on the import path."""
    if ":" in model and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def sequence_of(model: str, seq: int | None) -> tuple[int, tuple[str, ...]]:
    """The sequence length, and what was assumed of it."""
    from profiles.model.loaders import resolve_model

    if seq is not None:
        if seq < 1:
            raise InputError(f"--seq must be 1 or more, got {seq}")
        return seq, ()
    spec = resolve_model(model)
    if spec.family in ("factory", "vision"):
        return 1, ()
    config = spec.config
    limit = config.get("max_position_embeddings") or config.get("n_positions") or DEFAULT_SEQUENCE
    limit = config.get("max_target_positions") or limit
    chosen = min(int(limit), DEFAULT_SEQUENCE)
    return chosen, (f"sequence length {chosen} (--seq)",)


def space_of(axes: Mapping[str, str | None]) -> Any:
    """The search space of the pins given as flags."""
    from planner.space import Space, parse_axis

    given: dict[str, Any] = {}
    for axis in ("micro_batch", "tp", "pp", "dp", "zero", "vpp"):
        text = axes.get(axis)
        if text is not None:
            given[axis] = parse_axis(text, "--" + axis.replace("_", "-"))
    if axes.get("recompute") is not None:
        # `selective` is what frameworks call it.
        words = str(axes["recompute"]).replace("selective", "attention").split(",")
        names = tuple(part.strip() for part in words)
        for name in names:
            if name not in list(Recompute):
                raise UnknownNameError("recompute kind", name, list(Recompute), where="--recompute")
        given["recompute"] = tuple(Recompute(name) for name in names)
    if axes.get("schedule") is not None:
        given["schedule"] = tuple(p.strip() for p in str(axes["schedule"]).split(","))
    return Space(**given)


def layout_space_of(axes: Mapping[str, str | None]) -> LayoutSpace:
    """The space of layouts of the pins given as flags."""
    from planner.layout.layout_space import LayoutSpace
    from planner.space import parse_axis

    given: dict[str, Any] = {}
    for axis in LAYOUT_COUNTS:
        text = axes.get(axis)
        if text is not None:
            given[axis] = parse_axis(text, "--" + axis.replace("_", "-"))
    for axis in ("schedule", "recompute"):
        text = axes.get(axis)
        if text is not None:
            given[axis] = tuple(part.strip() for part in text.split(","))
    return LayoutSpace(**given)


def figures_of(model: str) -> Transformer:
    """The figures of a shipped name or a config.json."""
    from profiles.model.config_figures import figures_of_config
    from profiles.model.loaders import resolve_model

    spec = resolve_model(model)
    return figures_of_config(spec.config, spec.source)
