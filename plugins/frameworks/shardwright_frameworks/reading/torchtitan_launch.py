"""A command that starts torchtitan: the file or function that configures it, and its overrides."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.configs.keyed_file import read_keyed
from shardwright_frameworks.frameworks import torchtitan
from shardwright_frameworks.reading.consistency import Variables
from shardwright_frameworks.reading.launch import Launch
from shardwright_frameworks.reading.read_file import collect_python
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.text_marks import unknown_numbers, without_place_marks


def is_torchtitan_launch(program: str, options: Options) -> bool:
    """Whether a program with its options is torchtitan's."""
    if "torchtitan" in program or "torchtrain" in program or program.endswith("run_train.sh"):
        return True
    return any(
        option.name.startswith(("--parallelism.", "--job.", "--training.", "--model.flavor"))
        for option in options.given
    )


def collect_torchtitan_launch(
    options: Options,
    folder: ConfigFolder,
    collected: Collected,
    variables: Variables,
    launch: Launch,
) -> str:
    """The values of a command: its TOML, or a function of a Python registry, and the overrides."""
    overrides = torchtitan.values_of_options(options, collected)
    config = options.file("job.config_file", "config_file") or _text(variables, "CONFIG_FILE")
    given = []
    if config is not None:
        found = folder.find(config, near=launch.command.script)
        if found is None:
            collected.report_missing(
                "--job.config_file", f"{config!r} is not in the folder", launch.place
            )
        elif found.endswith(".toml"):
            collected.files.append(found)
            given.append(torchtitan.values_of_file(read_keyed(found, folder)))
    requested = options.text("config") or _text(variables, "CONFIG")
    module = options.text("module") or _text(variables, "MODULE")
    ranks = _text(variables, "NGPU")
    if ranks is not None and ranks.isdigit() and collected.get("devices") is None:
        collected.set("devices", int(ranks), variables["NGPU"].place, "NGPU")
    registry = folder.find(f"{module}/config_registry.py") or folder.find("config_registry.py")
    if requested and registry is not None and not given:
        collect_python(registry, folder, collected, requested=requested, overrides=[overrides])
        return "torchtitan"
    if requested and module and not given:
        collected.set("model.name", requested, launch.place, "--config")
        flavor = requested.removeprefix(f"{module}_")
        overrides = {("model", "flavor"): (flavor, launch.place), **overrides}
        overrides = {("model", "name"): (module, launch.place), **overrides}
    torchtitan.collect_torchtitan([*given, overrides], collected)
    return "torchtitan"


def _text(variables: Variables, name: str) -> str | None:
    found = variables.get(name)
    if found is None or found.words is not None or unknown_numbers(found.text):
        return None
    return without_place_marks(found.text).strip() or None
