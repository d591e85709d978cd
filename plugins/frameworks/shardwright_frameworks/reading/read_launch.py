"""Reads the training run of a script from its command. Values that depend on a branch are left
open."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import read_options
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks import megatron
from shardwright_frameworks.reading.consistency import (
    Variables,
    collect_devices_of_variables,
    complete,
    visible_devices,
)
from shardwright_frameworks.reading.launch import Launch, collect_ranks, launch_of
from shardwright_frameworks.reading.launch_frameworks import collect_command
from shardwright_frameworks.reading.launch_source import FILE, LaunchSource
from shardwright_frameworks.reading.read_file import collect_model_file
from shardwright_frameworks.reading.slurm_header import SlurmHeader, slurm_header
from shardwright_frameworks.shell.config_folder import ConfigFolder, Environment
from shardwright_frameworks.shell.script_reading import HERE, ScriptReading
from shardwright_frameworks.shell.text_marks import (
    Place,
    UnknownValue,
    Word,
    is_unknown,
    unknown_numbers,
    without_place_marks,
    without_unknowns,
)
from shardwright_frameworks.shell.variables import Variable

# Programs and libraries for the shell, without values of the run.
_ENVIRONMENT = re.compile(r"/bin/activate$|^/etc/|conda\.sh$|bashrc$|bash_profile$")


def launches_in(reading: ScriptReading) -> list[Launch]:
    """The commands of a script that look like training runs, most likely first."""
    found = []
    for command in reading.commands:
        launch = launch_of(command, reading.unknowns)
        if launch is not None and launch.weight > 0:
            found.append(launch)
    most = max((launch.weight for launch in found), default=0)
    return [launch for launch in found if launch.weight == most] + [
        launch for launch in found if launch.weight != most
    ]


def read_launch(
    launches: list[Launch], reading: ScriptReading, folder: ConfigFolder, script: str
) -> Collected:
    """The values of the first launch."""
    launch = launches[0]
    folder = replace(folder, environment=_exported(launch, reading))
    variables = _variables(launch, reading)
    header = _header(launch, reading, folder)

    def read(arguments: Sequence[Word]) -> Collected:
        one = replace(launch, arguments=tuple(arguments))
        return _read_arguments(one, reading, folder, variables, header)

    conditional = [word for word in launch.arguments if _is_conditional(word, reading)]
    certain = [word for word in launch.arguments if word not in conditional]
    collected = read(certain)
    if collected.get("framework") is None and conditional:
        certain, collected = list(launch.arguments), read(launch.arguments)
    for word in conditional:
        _leave_conditional_open(collected, read([*certain, word]), word, reading)
    same = [one for one in launches if one.program == launch.program]
    collected.runs = len({tuple(word.plain for word in one.command.words) for one in same})
    seen = visible_devices(variables)
    own = {"NPROC_PER_NODE", "USE_RAY"} & variables.keys()
    if seen and launch.program == "llamafactory-cli" and not own:  # a rank for each
        about = "devices_per_node" if "NNODES" in variables else "devices"
        collected.set(about, seen[0], seen[2], seen[1])
    alone = seen and seen[0] == 1 and not launch.is_distributed
    if seen and alone and collected.get("framework") == "transformers":
        collected.set("devices", 1, seen[2], seen[1], over=False)
    collect_devices_of_variables(variables, collected)
    _finish(reading, folder, collected, variables, script)
    return collected


def _read_arguments(
    launch: Launch,
    reading: ScriptReading,
    folder: ConfigFolder,
    variables: Variables,
    header: SlurmHeader,
) -> Collected:
    collected = Collected(files=[name for name in reading.sourced if HERE not in name])
    collect_ranks(launch, header, collected)
    if any("ds_ssh" in each.reason for each in reading.unknowns):
        collected.defaults.pop("nodes", None)  # it runs on the nodes of a host file
    open_kinds = {"output", "expression"}  # of words that may be any options
    if any(not _ENVIRONMENT.search(name) for _, name in reading.missing):
        open_kinds.add("unset")
    given = launch.arguments
    files = given[: 1 + given[0].plain.isalpha()] if given else ()  # behind `sft`, too
    for before, word in itertools.pairwise((launch.command.words[0], *given)):
        if not is_unknown(word.plain) or without_unknowns(word.plain) or before.plain[:1] == "-":
            continue
        unknown = reading.unknowns[unknown_numbers(word.text)[0]]
        is_unset = unknown.kind == "unset"
        is_value = before.plain.isdigit() and not is_unset  # of a list
        is_own = unknown.name.startswith("${@")  # the script's own arguments, none
        is_open = unknown.kind in open_kinds and not (is_value or is_own)
        if is_open or (is_unset and word in files):
            collected.report_missing("arguments", unknown.reason, word.place)
    source = LaunchSource(
        launch=launch, reading=reading, folder=folder, collected=collected, variables=variables
    )
    framework = collect_command(source) or source.collect_files(source.files_in_program())
    is_read = any(name.endswith((".yaml", ".yml", ".toml")) for name in collected.files)
    for option in source.options.of("config", "config_file", "cfg", "yaml_cfg"):
        path = source.options.file(option.key)
        if path is None and option.values and not is_read:
            source.options.value_of(option, collected)
            collected.is_incomplete = True
        elif path is not None and FILE.match(path) and source.find(path) is None:
            collected.report_missing(option.name, f"{path!r} is not in the folder", option.place)
    if framework is not None:
        for option in source.options.given:
            value = " ".join(word.plain for word in option.values) or True
            report_unused([(tuple(option.key.split(".")), value, option.place)], collected)
        if framework != "verl":  # whose reader knows other models' keys
            words = source.hydra.items()
            known = ((path, v, at) for path, (v, at) in words if not isinstance(v, Open))
            report_unused(known, collected)
        program = without_unknowns(launch.program).lstrip("/")
        collected.set("framework", framework, launch.place, program or "launcher")
    return collected


def _is_conditional(word: Word, reading: ScriptReading) -> bool:
    """Whether a word is an option passed by only some branches of the script."""
    name, _, value = word.plain.partition("=")
    if not name.startswith("-") or not is_unknown(value):
        return False
    return reading.unknowns[unknown_numbers(value)[0]].kind in ("branch", "loop")


def _leave_conditional_open(
    collected: Collected, with_it: Collected, word: Word, reading: ScriptReading
) -> None:
    """Leaves open all values that differ with a conditional option."""
    option = word.plain.partition("=")[0]
    reason = reading.unknowns[unknown_numbers(word.text)[0]].reason
    keys = collected.placed.keys() | with_it.placed.keys() | with_it.open_keys
    changed = [
        key
        for key in sorted(keys)
        if collected.get(key) != with_it.get(key)
        or key in with_it.open_keys - collected.open_keys
        or (key in with_it.placed and with_it.placed[key].place == word.place
            and option in with_it.placed[key].option)
    ]  # fmt: skip
    for key in changed:
        if key != "framework":
            collected.leave_open(key)
        collected.report_unresolved(option, reason, word.place)
    collected.unknown += [each for each in with_it.unknown if each not in collected.unknown]


def read_loose_options(
    reading: ScriptReading, folder: ConfigFolder, script: str
) -> Collected | None:
    """The options of a script that only sets variables for another script, or of a file with
    options only."""
    collected = Collected(files=list(reading.sourced))
    words: list[Word] = []
    variables: dict[str, Variable] = {}
    for scope in reading.scopes.values():
        variables |= scope.variables
    for variable in variables.values():
        if variable.words is not None:
            words += list(variable.words) if _is_options(variable.words[:1]) else []
        else:
            split = [Word(one, variable.place) for one in variable.text.split()]
            words += split if _is_options(tuple(split[:1])) else []
    for command in reading.commands:
        if _is_options(command.words[:1]):
            words += command.words
    options = read_options(words, reading.unknowns)
    if not megatron.is_megatron(options):
        return None
    megatron.collect_megatron(options, collected)
    place = options.given[0].place
    collected.set("framework", "megatron-lm", place, options.given[0].name)
    collect_devices_of_variables(variables, collected)
    _finish(reading, folder, collected, variables, script)
    return collected


def _is_options(words: tuple[Word, ...]) -> bool:
    return bool(words) and words[0].plain.startswith("--")


def _variables(launch: Launch, reading: ScriptReading) -> Variables:
    scope = reading.scopes.get(launch.command.script)
    of_script = dict(scope.variables) if scope is not None else {}
    return {**launch.command.environment, **of_script}


def _exported(launch: Launch, reading: ScriptReading) -> Environment:
    """The variables set for the command; unknown values are marked."""
    found: dict[str, str | UnknownValue] = {}
    for name, variable in launch.command.environment.items():
        numbers = unknown_numbers(variable.text)
        found[name] = (
            reading.unknowns[numbers[0]] if numbers else without_place_marks(variable.text)
        )
    return found


def _header(launch: Launch, reading: ScriptReading, folder: ConfigFolder) -> SlurmHeader:
    """The header of the job, that of the first script with one (a script that it starts has only
    comments); options given to `sbatch` override it."""
    options: dict[str, tuple[str, Place]] = {}
    ignored = None
    text = launch.command.text
    inner = (text,) if HERE in text else ()
    for name in (*inner, *reading.sourced, launch.command.script):
        found = slurm_header(name.partition(HERE)[0], folder.text(name) or "")
        ignored = ignored or found.ignored
        if found.options:
            options = found.options
            break
    given = {"SLURM_NNODES": "--nodes", "SLURM_NTASKS_PER_NODE": "--ntasks-per-node",
             "SLURM_GPUS_PER_NODE": "--gpus-per-node", "SLURM_NTASKS": "--ntasks"}  # fmt: skip
    for variable, option in given.items():
        value = launch.command.environment.get(variable)
        written = value is not None and value.place.line > 1 and not unknown_numbers(value.text)
        if value is not None and written and option not in options:
            options[option] = (without_place_marks(value.text), value.place)
    return SlurmHeader(options=options, ignored=ignored)


def _finish(
    reading: ScriptReading,
    folder: ConfigFolder,
    collected: Collected,
    variables: Variables,
    script: str,
) -> None:
    collect_model_file(folder, collected, script)
    for place, chain in reading.cycles:
        collected.report_contradiction(
            "", f"files that source each other: {chain} ({place})", place
        )
    for place, name in reading.missing:
        if not _ENVIRONMENT.search(name):
            collected.report_unresolved("source", f"the file {name!r} is not in the folder", place)
    for command in reading.commands:
        if command.words and re.match(r"--[A-Za-z]", command.words[0].plain):
            collected.report_contradiction(
                "",
                f"{command.words[0].plain} ({command.words[0].place}) is outside any command: "
                "the line before it does not end in a backslash, or is a comment",
                command.words[0].place,
            )
    complete(collected, variables)
