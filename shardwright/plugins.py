"""How plug-ins add commands, and what of the core they may import.

A plug-in is a separate distribution (folder `plugins/` of the repository). Each of its entry points
in the group `shardwright.commands` names a `Command`:

    [project.entry-points."shardwright.commands"]
    fleet = "shardwright_fleet:COMMAND"
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from profiles.errors import InputError

COMMAND_GROUP = "shardwright.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command of the command line.

    help      its line in `shardwright --help`
    module    imported when the command runs; its EXAMPLES end the help of the command
    function  of that module; typer reads the options from its signature
    """

    help: str
    module: str
    function: str


def plugin_commands() -> dict[str, Command]:
    """The commands of installed plug-ins by name.

    Raises InputError for an entry point that names no Command.
    """
    found = {}
    for point in sorted(importlib.metadata.entry_points(group=COMMAND_GROUP), key=_name):
        command = point.load()
        if not isinstance(command, Command):
            raise InputError(
                f"entry point {point.name!r} of the group {COMMAND_GROUP} is {point.value!r}, "
                "which is no shardwright.plugins.Command: correct or remove that plug-in"
            )
        found[point.name] = command
    return found


def _name(point: importlib.metadata.EntryPoint) -> str:
    return point.name


PUBLIC_MODULES = frozenset(
    (
        "planner.axes",
        "planner.layout.layout_answer",
        "planner.layout.layout_choice",
        "planner.layout.layout_question",
        "planner.many.answer_cache",
        "planner.many.local_workers",
        "planner.run_option",
        "planner.sizing.size_phases",
        "planner.space",
        "planner.tolerances",
        "profiles.document",
        "profiles.errors",
        "profiles.hardware.catalogue.catalog",
        "profiles.hardware.catalogue.cluster",
        "profiles.hardware.prices.offer",
        "profiles.hardware.prices.price_file",
        "profiles.model.figures.transformer",
        "profiles.sourced",
        "profiles.text_file",
        "profiles.units",
        "shardwright.asking.asked_price",
        "shardwright.asking.executor_layouts",
        "shardwright.asking.file_lines",
        "shardwright.asking.named_model",
        "shardwright.asking.places",
        "shardwright.asking.plan_options",
        "shardwright.asking.plan_request",
        "shardwright.asking.provenance",
        "shardwright.asking.sizing.size_flags",
        "shardwright.console.flags",
        "shardwright.console.output",
        "shardwright.plugins",
        "shardwright.reports.html",
        "shardwright.reports.labelled",
        "shardwright.reports.picture",
        "shardwright.reports.terminal",
        "simulator.goodput.reliability_inputs",
        "simulator.goodput.time_to_train",
        "simulator.log_interval",
        "simulator.training_run.framework.framework",
        "simulator.training_run.run.low_bits",
        "simulator.training_run.step.coefficients",
        "simulator.values.prediction",
    )
)
"""The modules of the core that plug-ins may import (their names without an underscore)."""
