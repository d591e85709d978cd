"""How plug-ins extend the core. They may import only the core modules that are listed in
tests/architecture/public_modules.py.

A plug-in is a separate distribution (folder `plugins/` of the repository). Its one entry point in
the group `shardwright.plugins` names a `Plugin`:

    [project.entry-points."shardwright.plugins"]
    fleet = "shardwright_fleet:PLUGIN"
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from profiles.errors import InputError

GROUP = "shardwright.plugins"


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


class RunFile(Protocol):
    """The function that `run` calls for a file of a plug-in: it runs the file, prints the result,
    and raises ToleranceError if the run differs from the plan."""

    def __call__(
        self,
        path: Path,
        *,
        model: str,
        steps: int,
        output: Path,
        processes: int | None,
        device: str,
        timeout_s: float,
    ) -> None: ...


class Hook(StrEnum):
    """Options of the core that a plug-in implements; the value names one in error messages.

    The function has the parameters with which the core calls it: `commands/plan.py`, `predict.py`,
    `compare.py` and `profile.py`; `api.py` calls the last one.
    """

    PLAN_FROM = "plan --from"
    COMPARE_LOG = "compare --log"
    PROFILE_FROM = "profile --from with logs"
    SIZE_CASES = "size --cases"
    PREDICT_TRACED = "predict --runs --traced"
    PREDICT_IMPORTED = "predict IMPORTED.json"
    STEP_OF_IMPORTED = "predict() of an imported run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The additions of a plug-in.

    commands   name -> command
    runs       schema of a file -> `module:function` that runs it, a RunFile
    functions  name in the Python package `shardwright` -> `module:function`
    hooks      option of a command of the core -> `module:function`
    """

    commands: Mapping[str, Command] = field(default_factory=dict)
    runs: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    hooks: Mapping[Hook, str] = field(default_factory=dict)


@functools.cache
def plugins() -> tuple[Plugin, ...]:
    """The installed plug-ins in the order of their names.

    Raises InputError for an entry point that names no Plugin.
    """
    # Not at the top: a tenth of the time of a command's help.
    import importlib.metadata

    found = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda each: each.name):
        plugin = point.load()
        if not isinstance(plugin, Plugin):
            raise InputError(
                f"entry point {point.name!r} of the group {GROUP} is {point.value!r}, which is "
                "not a "
                "shardwright.plugins.plugin.Plugin: correct or remove that plug-in"
            )
        found.append(plugin)
    return tuple(found)


def plugin_commands() -> dict[str, Command]:
    """The commands of installed plug-ins by name."""
    return {name: command for plugin in plugins() for name, command in plugin.commands.items()}


def file_runner(schema: str) -> RunFile | None:
    """The function that runs files of this schema; None if no plug-in has one."""
    places = [plugin.runs[schema] for plugin in plugins() if schema in plugin.runs]
    return _loaded(places[0]) if places else None


def plugin_function(name: str) -> Callable[..., Any] | None:
    """The function of a plug-in that `shardwright` offers under this name, or None."""
    places = [plugin.functions[name] for plugin in plugins() if name in plugin.functions]
    return _loaded(places[0]) if places else None


def hook(option: Hook) -> Callable[..., Any]:
    """The function that carries out an option; raises InputError if no plug-in has it."""
    places = [plugin.hooks[option] for plugin in plugins() if option in plugin.hooks]
    if not places:
        own = option in (Hook.SIZE_CASES, Hook.PREDICT_TRACED)
        folder = "evidence" if own else "plugins/frameworks"
        raise missing_plugin(f"`{option}`", folder)
    found: Callable[..., Any] = _loaded(places[0])
    return found


def missing_plugin(feature: str, folder: str) -> InputError:
    """The error for a feature whose plug-in, of this folder of the repository, is not installed."""
    return InputError(
        f"{feature} is not installed: run `pip install ./{folder}` in a clone of the repository"
    )


def _loaded(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
