"""A command that starts a training run: which framework's it is, with its arguments and the
files that they name."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from profiles.errors import DocumentError, UnknownNameError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, read_options
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import read_keyed
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks import (
    accelerate,
    colossalai,
    hf_trainer,
    maxtext,
    megatron,
    nemo,
    nemo_rl,
    openrlhf,
    slime,
    torchtune,
    verl,
)
from shardwright_frameworks.reading.consistency import (
    Variables,
    collect_devices_of_variables,
    complete,
)
from shardwright_frameworks.reading.keyed_frameworks import collect_deepspeed_file
from shardwright_frameworks.reading.launch import Launch, collect_ranks, launch_of
from shardwright_frameworks.reading.read_file import (
    collect_keyed,
    collect_model_file,
    collect_python,
)
from shardwright_frameworks.reading.slurm_header import SlurmHeader, slurm_header
from shardwright_frameworks.reading.swift_launch import collect_swift_launch
from shardwright_frameworks.reading.torchtitan_launch import (
    collect_torchtitan_launch,
    is_torchtitan_launch,
)
from shardwright_frameworks.shell.config_folder import ConfigFolder, Environment
from shardwright_frameworks.shell.script import starts_primus
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

# `swift`, `megatron`, and the files that they start.
_SWIFT = re.compile(r"^swift$|^(megatron)$|swift/cli/(_megatron/)?(?:sft|pt|rlhf|main)\.py$")
_FILE = re.compile(r".*\.(ya?ml|json|toml|py)$", re.I)


def launches_in(reading: ScriptReading) -> list[Launch]:
    """The commands of a script that look like training runs, those most alike first."""
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
    framework = _collect_arguments(launch, reading, folder, collected, variables)
    if framework is None:
        framework = _collect_named(_files_in_program(launch, folder), folder, collected, launch)
    if framework is not None:
        options = read_options(launch.arguments, reading.unknowns)
        for option in options.given:
            value = " ".join(word.plain for word in option.values) or True
            report_unused([(tuple(option.key.split(".")), value, option.place)], collected)
        program = without_unknowns(launch.program).lstrip("/")
        collected.set("framework", framework, launch.place, program or "launcher")
    return collected


def _is_conditional(word: Word, reading: ScriptReading) -> bool:
    """Whether a word is an option that only some branches of the script pass."""
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
    """The options that a script only puts into variables, for another one to start, or that are
    alone in a file."""
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
    """The variables that the command finds set; one that nobody knows is a unknown."""
    found: dict[str, str | UnknownValue] = {}
    for name, variable in launch.command.environment.items():
        numbers = unknown_numbers(variable.text)
        found[name] = (
            reading.unknowns[numbers[0]] if numbers else without_place_marks(variable.text)
        )
    return found


def _header(launch: Launch, reading: ScriptReading, folder: ConfigFolder) -> SlurmHeader:
    """The header of the file with the command, otherwise the first header; options given to
    `sbatch` override both."""
    options: dict[str, tuple[str, Place]] = {}
    for name in (launch.command.text, launch.command.script, *reading.sourced):
        found = slurm_header(name.partition(HERE)[0], folder.text(name) or "").options
        if found:
            options = found
            break
    given = {"SLURM_NNODES": "--nodes", "SLURM_NTASKS_PER_NODE": "--ntasks-per-node",
             "SLURM_GPUS_PER_NODE": "--gpus-per-node", "SLURM_NTASKS": "--ntasks"}  # fmt: skip
    for variable, option in given.items():
        value = launch.command.environment.get(variable)
        written = value is not None and value.place.line > 1 and not unknown_numbers(value.text)
        if value is not None and written and option not in options:
            options[option] = (without_place_marks(value.text), value.place)
    return SlurmHeader(options=options)


def _collect_arguments(
    launch: Launch,
    reading: ScriptReading,
    folder: ConfigFolder,
    collected: Collected,
    variables: Variables,
) -> str | None:
    options = read_options(launch.arguments, reading.unknowns)
    program = launch.program.lower()
    keys = {option.key for option in options.given}
    pairs = maxtext.given_by_words(launch.arguments, reading.unknowns, Collected())
    if "chatlearn" in program:
        return None  # its settings are those of several models
    if program.endswith("benchmark_runner"):
        # MaxText's configurations by name (github.com/AI-Hypercomputer/maxtext benchmarks).
        for option in options.of("model_name"):
            collected.set(
                "model.name", options.value_of(option, collected), option.place, option.name
            )
        collected.report_missing(
            "--model_name", "the configuration that it names is in MaxText's files", launch.place
        )
        return "maxtext"
    if "maxtext" in program or maxtext.is_maxtext(set(pairs)):
        return _collect_maxtext(launch, reading, folder, collected)
    if "tune" in launch.words:
        return _collect_torchtune(launch, options, reading, folder, collected)
    if "openrlhf" in program:
        openrlhf.collect_openrlhf(options, collected, program, launch.place)
        return "openrlhf"
    swift = _SWIFT.search(launch.program)
    if swift is not None:
        named = _named_files(launch, options, folder)
        launch = replace(launch, program="megatron" if swift[1] or swift[2] else "swift")
        started = collect_swift_launch(launch, options, folder, collected)
        _collect_named(named, folder, collected, launch)  # accelerate's
        return started
    if "colossalai" in launch.words:
        colossalai.collect_colossalai(options, collected)
        return "colossalai"
    if is_torchtitan_launch(program, options):
        return collect_torchtitan_launch(options, folder, collected, variables, launch)
    hydra = nemo.values_of_words(launch.arguments, reading.unknowns, collected)
    if verl.is_verl(program, hydra):
        verl.collect_verl(hydra, program, options.text("config_name") or "", collected)
        return "verl"
    if slime.is_slime(options):
        slime.collect_slime(options, collected)
        return "slime"
    if starts_primus(program, launch.command.environment):
        return _collect_primus(launch, options, folder, collected)
    recipe = "model_recipe_name" in keys
    if not recipe and megatron.is_megatron(options, launch.program):
        return _collect_megatron(launch, options, folder, collected)
    named = _named_files(launch, options, folder)
    if nemo_rl.is_program(program):
        return _collect_nemo_rl(launch, options, hydra, named, folder, collected)
    by_recipe = "recipe" in keys and "run_recipe" in program
    if hydra and (
        by_recipe or nemo.is_nemo(list(hydra)) or any("trainer" in path for path in hydra)
    ):
        return _collect_nemo(launch, options, hydra, named, folder, collected)
    if {"tp", "pp", "ng"} & keys or recipe:
        nemo.collect_performance_script(options, collected)
        why = "values that no argument gives are in the framework's own files of the recipe"
        collected.report_missing("recipe", why, launch.place)
        nemo.collect_nemo([hydra], collected, folder.environment)
        return "megatron-bridge" if "recipe" in program or "experiment" in program else "nemo"
    framework = _collect_named(named, folder, collected, launch)
    config = options.last("config", "config_file", "config_path", "cfg")
    written = options.text("config", "config_file", "config_path", "cfg")
    if not named and config is not None and written is not None and _FILE.match(written):
        collected.report_missing(config.name, f"{written!r} is not in the folder", config.place)
    if hf_trainer.is_trainer(keys) or "deepspeed" in keys or "deepspeed_config" in keys:
        given = hf_trainer.given_by_options(options, collected)
        deepspeed = hf_trainer.collect_trainer(given, collected)
        if deepspeed and deepspeed not in named:
            collect_deepspeed_file(
                deepspeed, folder, collected, launch.place, launch.command.script
            )
        bare = options.last("deepspeed")
        has_config = "deepspeed_config" in keys or (bare is not None and not bare.values)
        if has_config or not hf_trainer.is_trainer(keys):
            return "deepspeed" if framework in (None, "accelerate") else framework
        return "transformers"
    if any("accelerate" in word for word in launch.words):
        accelerate.collect_launch_options(options, collected)
        return framework if framework not in (None, "deepspeed") else "accelerate"
    if framework is None and "deepspeed" in launch.words:
        return "deepspeed"
    return framework


def _collect_torchtune(
    launch: Launch,
    options: Options,
    reading: ScriptReading,
    folder: ConfigFolder,
    collected: Collected,
) -> str:
    named = options.last("config")
    config = options.text("config")
    found = None
    if named is not None and config is not None:
        ending = "" if config.endswith((".yaml", ".yml")) else ".yaml"
        found = folder.find(config + ending, near=launch.command.script)
        if found is None:
            collected.report_missing("--config", f"{config!r} is not in the folder", named.place)
        else:
            collected.files.append(found)
    file = None if found is None else read_keyed(found, folder)
    torchtune.collect_torchtune(file, launch.arguments, reading.unknowns, collected)
    if launch.program.endswith("_single_device"):
        collected.set("devices", 1, launch.place, launch.program)
        collected.set("zero_stage", 0, launch.place, launch.program, over=False)
    return "torchtune"


def _collect_megatron(
    launch: Launch, options: Options, folder: ConfigFolder, collected: Collected
) -> str:
    config = options.text("deepspeed_config")
    switched = options.last("deepspeed")
    deepspeed = (switched is not None and options.switched(switched) is not False) or config
    if deepspeed and config:
        option = options.last("deepspeed_config")
        assert option is not None
        collect_deepspeed_file(config, folder, collected, option.place, launch.command.script)
    megatron.collect_megatron(options, collected)
    yaml = options.text("yaml_cfg")
    if yaml is not None:
        _collect_named([yaml], folder, collected, launch)
    return "megatron-deepspeed" if deepspeed else "megatron-lm"


def _collect_primus(
    launch: Launch, options: Options, folder: ConfigFolder, collected: Collected
) -> str | None:
    """Primus's command: a file, whose overrides its further options replace."""
    collected.default("Primus, examples/run_pretrain.sh", nodes=1, devices_per_node=8)
    values: nemo.Values = {
        ("overrides", option.key): (
            options.value_of(option, collected) or Open("its value is unknown"),
            option.place,
        )
        for option in options.given
        if option.key != "config"
    }
    nemo.collect_nemo([values], collected)
    collected.defaults = {
        key: value for key, value in collected.defaults.items() if key.endswith(("node", "nodes"))
    }
    named = _named_files(launch, options, folder)
    if not named and (experiment := launch.command.environment.get("EXP")) is not None:
        found = folder.find(experiment.text, near=launch.command.script)
        named = [found] if found is not None else []
    if not named:
        collected.report_missing("--config", "the file that it names is not there", launch.place)
    return _collect_named(named, folder, collected, launch) or "primus"


def _collect_maxtext(
    launch: Launch, reading: ScriptReading, folder: ConfigFolder, collected: Collected
) -> str:
    given: maxtext.Given = {}
    for word in launch.arguments:
        text = word.plain
        found = folder.find(text) if text.endswith((".yml", ".yaml")) else None
        if found is not None:
            collected.files.append(found)
            given |= maxtext.given_by_file(read_keyed(found, folder))
        elif text.endswith((".yml", ".yaml")) and not text.endswith("base.yml"):
            collected.report_missing("config", f"{text!r} is not in the folder", launch.place)
    given |= maxtext.given_by_words(launch.arguments, reading.unknowns, collected)
    model = maxtext.named_model(given)
    own = folder.find(f"models/{model}.yml", near=collected.files[0]) if collected.files else None
    maxtext.collect_maxtext(given, collected, read_keyed(own, folder) if model and own else None)
    return "maxtext"


def _collect_nemo(
    launch: Launch,
    options: Options,
    hydra: nemo.Values,
    named: list[str],
    folder: ConfigFolder,
    collected: Collected,
) -> str:
    given: list[nemo.Values] = []
    factory = next((word for word in launch.arguments if word.plain == "--factory"), None)
    if factory is not None and not named:
        called = folder.find(launch.program, near=launch.command.script)
        function = (options.text("factory") or "").partition("(")[0]
        if called is not None and function and collect_python(
            called, folder, collected, requested=function, overrides=[hydra]
        ):  # fmt: skip
            return "nemo"
        collected.report_missing(
            "--factory", "the recipe that it calls is not in the folder", factory.place
        )
    group, place = hydra.get(("training",), (None, launch.place))
    if isinstance(group, str) and "/" in group:  # NeMo's launcher
        why = f"the configuration {group!r} is in the launcher's files"
        collected.report_missing("training", why, place)
    for name in named:
        collected.files.append(name)
        if name.endswith((".yaml", ".yml")):
            file = read_keyed(name, folder)
            read = hydra_parts(file, folder, _chosen(launch))
            collected.files += [part.name for _, part in read.parts if part.name != name]
            for why in read.missing:
                collected.report_missing("defaults", why, file.place(("defaults",)))
            given.append(nemo.values_of_files(read.parts))
    option = options.last("recipe")
    if option is not None:
        name = options.value_of(option, collected) or ""
        registry = folder.find(nemo.REGISTRY, near=launch.command.script)
        overrides = [*given, hydra]
        try:
            if not name or registry != nemo.REGISTRY:
                raise UnknownNameError("recipe", name, (), where=nemo.REGISTRY)
            collect_python(registry, folder, collected, requested=name, overrides=overrides)
        except UnknownNameError:
            why = f"the recipe {name} is not in the folder" if name else "it is not known"
            collected.report_missing(option.name, why, option.place)
            nemo.collect_nemo(overrides, collected, folder.environment)
        if (model := nemo.model_of_recipe(name)) is not None:
            collected.derive("model.name", model, f"the recipe's name {name}")
        return "megatron-bridge"
    nemo.collect_nemo([*given, hydra], collected, folder.environment)
    recipe = "recipe" in launch.program or any(
        path[0] == "train" for path in hydra if len(path) > 1
    )
    return "megatron-bridge" if recipe else "nemo"


def _collect_nemo_rl(
    launch: Launch,
    options: Options,
    hydra: nemo.Values,
    named: list[str],
    folder: ConfigFolder,
    collected: Collected,
) -> str:
    suite = nemo_rl.config_of_suite(launch.program, launch.command.script, folder)
    if not named and suite is not None:
        named = [suite]
    if not named:
        option = options.last("config")
        place = option.place if option is not None else launch.place
        collected.report_missing("--config", "the file that it names is not there", place)
        return "nemo-rl"
    return _collect_named(named, folder, collected, launch, hydra) or "nemo-rl"


def _chosen(launch: Launch) -> dict[str, str]:
    """The words `group=option` of a command line."""
    pairs = (word.plain.partition("=") for word in launch.arguments)
    return {key: option.strip("'\"") for key, equals, option in pairs if equals and key[:1] != "-"}


def _named_files(launch: Launch, options: Options, folder: ConfigFolder) -> list[str]:
    """The files of the folder that arguments name, accelerate's first."""
    found: list[str] = []
    words = [word for option in launch.launcher.given for word in option.values]
    words += list(launch.arguments)
    config, folder_named = options.text("config_name"), options.text("config_path") or ""
    if config is not None:
        ending = "" if config.endswith((".yaml", ".yml")) else ".yaml"
        words.append(Word(f"{folder_named}/{config}{ending}", launch.place))
    for word in words:
        text = word.plain.rpartition("=")[2]
        if _FILE.match(text):
            name = folder.find(text, near=launch.command.script)
            if name is not None and name not in found and name != launch.program:
                found.append(name)
    return found


def _files_in_program(launch: Launch, folder: ConfigFolder) -> list[str]:
    """The configurations of the folder whose names are in the program's text."""
    name = folder.find(launch.program, near=launch.command.script)
    if name is None or not name.endswith(".py"):
        return []
    try:
        tree = ast.parse(folder.text(name) or "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            plain = node.value if _FILE.fullmatch(node.value) else ""
            one = folder.find(plain, near=name) if plain and len(plain) < 200 else None
            if one is not None and one not in found and not one.endswith(".py"):
                found.append(one)
    return found


def _collect_named(
    named: list[str],
    folder: ConfigFolder,
    collected: Collected,
    launch: Launch,
    overrides: nemo.Values | None = None,
) -> str | None:
    framework = None
    for name in named:
        try:
            if name.endswith(".py"):
                placed = collect_python(name, folder, collected, requested=None, overrides=[])
            else:
                # The command line overrides the files that it names.
                of_file = Collected()
                placed = collect_keyed(name, folder, of_file, _chosen(launch), overrides)
                if placed == "deepspeed":
                    collected.take(of_file)
                else:
                    with collected.overriding_files():
                        collected.take(of_file)
        except DocumentError as error:
            collected.report_unresolved(name, str(error), launch.place)
            continue
        if placed is not None and (framework is None or framework in ("accelerate", "deepspeed")):
            framework = placed
    if any("accelerate" in word for word in launch.words):
        accelerate.collect_launch_options(launch.launcher, collected)
        config = launch.launcher.last("deepspeed_config_file")
        written = launch.launcher.value_of(config, collected) if config is not None else None
        if config is not None and written and written not in named:
            collect_deepspeed_file(written, folder, collected, config.place, launch.command.script)
    return framework


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
