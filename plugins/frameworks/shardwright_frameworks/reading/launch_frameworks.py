"""`LAUNCHES`: the programs that start training runs. Each row has a function that recognizes a
command and one that reads it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, whole
from shardwright_frameworks.configs.hydra_defaults import BUILT_IN
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import read_keyed
from shardwright_frameworks.configs.known_options import is_known
from shardwright_frameworks.configs.unused_keys import report_unused
from shardwright_frameworks.frameworks import (
    accelerate,
    colossalai,
    hf_trainer,
    maxtext,
    megatron,
    ms_swift,
    nemo,
    nemo_rl,
    openrlhf,
    slime,
    torchtitan,
    torchtune,
    trainer_program,
    verl,
)
from shardwright_frameworks.frameworks.flavor_source import collect_flavor_of_tree
from shardwright_frameworks.frameworks.objectives import NOT_COUNTED, report_objective
from shardwright_frameworks.reading.consistency import collect_devices_of_variables, visible_devices
from shardwright_frameworks.reading.keyed_frameworks import FRAMEWORKS, KeyedSource
from shardwright_frameworks.reading.launch_source import FILE, LaunchSource, missing_file
from shardwright_frameworks.reading.read_file import collect_keyed, collect_python
from shardwright_frameworks.shell.script import starts_primus

# `swift`, `megatron`, and the files that they start.
_SWIFT = re.compile(r"^swift$|^(megatron)$|swift/cli/(_megatron/)?(?:sft|pt|rlhf|main)\.py$")
# Chips as MaxText's registries of benchmarks name them.
_CHIPS = {"v6e": "trillium", "v5litepod": "v5e"}
# Programs with a file of the run, by words of their names.
_OF_FILES = {"axolotl": "axolotl", "llamafactory": "llama-factory"}
# Names of two letters are too short to find in other words.
_NAMES = "|".join(name for name in NOT_COUNTED if len(name) > 2)
_OBJECTIVE = re.compile(rf"(?:^|[/_.])({_NAMES}|reward\w*)\w*(?:\.py|\.-\S+)?$")
# Megatron-LM's programs of models that are no decoders.
_NO_DECODER = re.compile(r"(?:pretrain|finetune|train)_(t5|bert|ict|retro|vision|vlm|biencoder)")


Recognizes = Callable[[LaunchSource], bool]
# Collects the values; returns the framework's name in an import, None if it is of none.
Collect = Callable[[LaunchSource], str | None]


def collect_command(source: LaunchSource) -> str | None:
    """Collect a command's values; returns its framework, None if unknown."""
    return next(collect for recognizes, collect in LAUNCHES if recognizes(source))(source)


def _read_by(collect: Callable[[Options, Collected], None], name: str) -> Collect:
    """A reader of the options alone."""

    def read(source: LaunchSource) -> str:
        collect(source.options, source.collected)
        return name

    return read


def _collect_benchmark(source: LaunchSource) -> str:
    """Collect a MaxText configuration by name (github.com/AI-Hypercomputer/maxtext, benchmarks)."""
    chip = (source.options.text("device_type") or "").partition("-")[0]
    registry = source.find(f"benchmarks/maxtext_{_CHIPS.get(chip, chip)}_model_configs.py")
    for option in source.options.of("model_name"):
        name = source.options.value_of(option, source.collected)
        if name and registry and source.collect_python(registry, name.replace("-", "_"), []):
            return "maxtext"
        source.collected.set("model.name", name, option.place, option.name)
    source.report_missing("--model_name", "the configuration that it names is in MaxText's files")
    return "maxtext"


def _collect_maxtext(source: LaunchSource) -> str:
    collected, given = source.collected, maxtext.Given()
    for word in source.launch.arguments:
        text = word.plain
        found = source.folder.find(text) if text.endswith((".yml", ".yaml")) else None
        if found is not None:
            collected.files.append(found)
            given |= maxtext.given_by_file(read_keyed(found, source.folder))
        elif text.endswith((".yml", ".yaml")) and not text.endswith("base.yml"):
            source.report_missing("config", f"{text!r} is not in the folder")
    arguments, unknowns = source.launch.arguments, source.reading.unknowns
    given |= maxtext.given_by_words(arguments, unknowns, collected)
    near = collected.files[-1] if collected.files else ""
    maxtext.collect_maxtext(given, collected, maxtext.model_file(given, source.folder, near))
    return "maxtext"


def _collect_torchtune(source: LaunchSource) -> str:
    named, config = source.options.last("config"), source.options.text("config")
    file, launch = None, source.launch
    if named is not None and config is not None:
        found = source.find(config + ("" if config.endswith((".yaml", ".yml")) else ".yaml"))
        if found is None:
            source.report_missing("--config", f"{config!r} is not in the folder", named.place)
        else:
            source.collected.files.append(found)
            file = read_keyed(found, source.folder)
    torchtune.collect_torchtune(file, launch.arguments, source.reading.unknowns, source.collected)
    if launch.program.endswith("_single_device"):
        source.collected.set("devices", 1, launch.place, launch.program)
        source.collected.set("zero_stage", 0, launch.place, launch.program, over=False)
    return "torchtune"


def _collect_openrlhf(source: LaunchSource) -> str:
    place = source.launch.place
    openrlhf.collect_openrlhf(source.options, source.collected, source.program, place)
    return "openrlhf"


def _collect_swift(source: LaunchSource) -> str:
    """Collect ms-swift's commands (github.com/modelscope/ms-swift, swift/cli/utils.py): `swift sft`
    on the Trainer, `megatron sft` with Megatron's names."""
    found, options = _SWIFT.search(source.launch.program), source.options
    words = [word.plain for word in source.launch.arguments[:2]]  # `sft`, a file
    for name in [source.find(each) for each in words if FILE.match(each)]:
        if name is None:
            continue
        source.collected.files.append(name)
        own = ms_swift.options_of_file(read_keyed(name, source.folder))
        options = Options((*own, *options.given), options.unknowns)
    sharding = options.file("fsdp") or ""
    found_file = source.find(sharding) if sharding.endswith(".json") else None
    if found_file is not None:  # instead of a strategy
        source.collected.files.append(found_file)
        own = ms_swift.options_of_file(read_keyed(found_file, source.folder))
        for option in options.of("fsdp"):
            source.collected.use(option.name, option.place)
        kept = [each for each in options.given if each.key != "fsdp"]
        options = Options((*own, *kept), options.unknowns)
    # NPROC_PER_NODE and NNODES replace torchrun's options.
    source.collected.default("ms-swift 3.x, swift/cli/utils.py", nodes=1)
    collect_devices_of_variables(source.variables, source.collected)
    _collect_swift_ranks(source)
    if found is not None and (found[1] or found[2]):
        ms_swift.collect_megatron(options, source.collected)
    else:
        deepspeed = ms_swift.collect_swift(options, source.collected, source.launch.place)
        if deepspeed:
            source.collect_deepspeed(deepspeed)
    others = [each for each in source.named if each not in source.collected.files]
    source.collect_files(others)  # accelerate's
    return "ms-swift"


def _collect_swift_ranks(source: LaunchSource) -> None:
    """Collect the ranks; without a number, one process uses all its visible devices."""
    if source.launch.program not in ("swift", "megatron"):
        return
    seen = source.launch.program == "swift" and visible_devices(source.variables)
    for name, about in (("NNODES", "nodes"), ("NPROC_PER_NODE", "devices_per_node")):
        found = source.variables.get(name)
        if found is not None and source.collected.get(about) is None:
            source.collected.leave_open(about, name, "its number is not known", found.place)
        elif found is None and seen and seen[0] > 1 and about == "devices_per_node":
            why = f"one process spreads the model over {seen[0]} devices: not planned"
            source.collected.leave_open(about, seen[1], why, seen[2])


def _is_torchtitan(source: LaunchSource) -> bool:
    by_name = re.search(r"torchtitan|torchtrain|run_train\.sh$", source.program)
    if by_name or "job.config_file" in source.keys:
        return True
    own = ("--parallelism.", "--job.", "--training.", "--model.flavor")
    named = [
        each.key.rpartition(".")[2] for each in source.options.given if each.name.startswith(own)
    ]
    # Other programs have a section `training` too.
    return sum(1 if is_known("torchtitan", key) else -1 for key in named) > 0


def _collect_torchtitan(source: LaunchSource) -> str:
    """Collect torchtitan's TOML, or a function of a Python registry, and the overrides."""
    options, collected, place = source.options, source.collected, source.launch.place
    overrides = torchtitan.values_of_options(options, collected)
    config = options.file("job.config_file", "config_file") or source.variable("CONFIG_FILE")
    given = []
    if config is not None:
        found = source.find(config)
        if found is None:
            source.report_missing("--job.config_file", f"{config!r} is not in the folder")
        elif found.endswith(".toml"):
            collected.files.append(found)
            given.append(torchtitan.values_of_file(read_keyed(found, source.folder)))
    requested = options.text("config") or source.variable("CONFIG")
    module = options.text("module") or source.variable("MODULE")
    ranks = source.variable("NGPU")
    if ranks and ranks.isdigit() and not source.launch.is_distributed:
        collected.set("devices", int(ranks), source.variables["NGPU"].place, "NGPU")
    find = source.folder.find
    registry = find(f"{module}/config_registry.py") or find("config_registry.py")
    if requested and registry is not None and not given:
        collect_python(
            registry, source.folder, collected, requested=requested, overrides=[overrides]
        )
        return "torchtitan"
    if requested and not given:
        source.report_missing("--config", f"the registry of {requested!r} is not in the folder")
    if requested and module and not given:
        flavor = requested.removeprefix(f"{module}_")
        named = (("name", module), ("flavor", flavor))
        overrides = {**{("model", key): (value, place) for key, value in named}, **overrides}
    if config is None and not requested:
        source.report_missing("--job.config_file", "the command names no file that is known")
    torchtitan.collect_torchtitan([*given, overrides], collected)
    collect_flavor_of_tree(source.folder, collected)
    return "torchtitan"


def _collect_verl(source: LaunchSource) -> str:
    config = source.options.text("config_name") or ""
    path = verl.own_config(source.hydra, source.program, config)
    own = source.folder.find(path)
    base: nemo.Values = {}
    if own is None and not (config and BUILT_IN.search(path)):
        source.report_missing_config()
    if verl.is_easyr1(source.hydra):  # `config=FILE`
        config, own = str(source.hydra.get(("config",), ("", None))[0]), None
        if config and not source.named:
            source.report_missing("config", f"{config!r} is not in the folder")
    named = [each for each in source.named if config and Path(each).stem == Path(config).stem]
    for name in named[:1] or ([own] if own is not None else []):
        base = source.values_of_file(name)
    environment = source.folder.environment
    verl.collect_verl(source.hydra, source.program, config, source.collected, base, environment)
    return "verl"


def _collect_primus(source: LaunchSource) -> str:
    """Collect Primus's command: a file, and options that replace its overrides."""
    options, collected = source.options, source.collected
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
    experiment = source.launch.command.environment.get("EXP")
    found = source.find(experiment.text) if experiment is not None else None
    named = source.named or ([found] if found is not None else [])
    if not named:
        source.report_missing("--config", "the file that it names is not there")
    return source.collect_files(named) or "primus"


def _is_megatron(source: LaunchSource) -> bool:
    by_recipe = "model_recipe_name" in source.keys
    in_file = "yaml_cfg" in source.keys and "pretrain_" in source.program
    is_own = in_file or megatron.is_megatron(source.options, source.launch.program)
    return not by_recipe and is_own


def _collect_megatron(source: LaunchSource) -> str:
    options = source.options
    yaml = source.find(options.file("yaml_cfg") or "")
    file = read_keyed(yaml, source.folder) if yaml is not None else None
    if file is not None:
        source.collected.files.append(file.name)
        for ignored in options.given:  # megatron/training/yaml_arguments.py
            if megatron.field_of(ignored.key):
                why = "no effect with --yaml-cfg"
                source.collected.report_unused(ignored.key, ignored.place, why)
        values = {path: (value, file.place(path)) for path, value in file.values.items()}
        options = megatron.options_of_keys(values, source.collected)
    config, named = options.text("deepspeed_config"), options.last("deepspeed_config")
    switched = options.last("deepspeed")
    if config and named is not None:
        source.collect_deepspeed(config, named.place)
    megatron.collect_megatron(options, source.collected)
    if file is not None:
        others = (each for each in file.values.items() if each[0][-1] not in megatron.CORE_NAMES)
        report_unused(((path, v, file.place(path)) for path, v in others), source.collected)
    found = _NO_DECODER.search(source.program)
    if found is not None:
        program, place = source.launch.program, source.launch.place
        source.collected.report_unresolved(program, "its encoder is not priced as one", place)
        if found[1] in ("t5", "ict", "retro", "biencoder"):  # each stack has these layers
            source.collected.leave_open("model.num_layers")
    deepspeed = switched is not None and options.switched(switched) is not False
    return "megatron-deepspeed" if deepspeed or config else "megatron-lm"


def _is_nemo_rl(source: LaunchSource) -> bool:
    """Whether Ray starts its driver, which names no launcher of ranks; other frameworks have
    programs of the same names."""
    ranks = {"accelerate", "torchrun", "deepspeed"} & {*source.launch.words}
    own = "nemo_rl" in source.text or not (source.text or hf_trainer.is_trainer(source.keys))
    return nemo_rl.is_program(source.program) and own and not ranks


def _collect_nemo_rl(source: LaunchSource) -> str:
    launch, named = source.launch, source.named
    source.collected.forget_ranks()
    suite = nemo_rl.config_of_suite(launch.program, launch.command.script, source.folder)
    if not named and suite is not None:
        named = [suite]
    if not named:
        source.report_missing("--config", "the file that it names is not there")
    return source.collect_files(named, source.hydra) or "nemo-rl"


def _is_nemo(source: LaunchSource) -> bool:
    paths = list(source.hydra)
    launcher = source.program.endswith("launcher_scripts/main.py")  # NeMo's
    lightning = {("trainer", key) for key in ("devices", "num_nodes", "precision", "max_steps")}
    return launcher or nemo.is_nemo(paths) or any(path[-2:] in lightning for path in paths)


def _collect_nemo(source: LaunchSource) -> str:
    options, folder, collected = source.options, source.folder, source.collected
    launch, hydra, given = source.launch, source.hydra, list[nemo.Values]()
    factory = next((word for word in launch.arguments if word.plain == "--factory"), None)
    if factory is not None and not source.named:
        called = source.find(launch.program)
        function = (options.text("factory") or "").partition("(")[0]
        if called is not None and function and source.collect_python(called, function, [hydra]):
            return "nemo"
        why = "the recipe that it calls is not in the folder"
        source.report_missing("--factory", why, factory.place)
    group, place = hydra.get(("training",), (None, launch.place))
    if isinstance(group, str) and "/" in group:  # NeMo's launcher
        why = f"the configuration {group!r} is in the launcher's files"
        source.report_missing("training", why, place)
    source.report_missing_config()
    for name in source.named:
        if name.endswith((".yaml", ".yml")):
            given.append(source.values_of_file(name))
        else:
            collected.files.append(name)
    overrides = [*given, hydra]
    nemo.collect_nemo(overrides, collected, folder.environment)
    recipe = any(path[0] == "train" for path in hydra if len(path) > 1)
    return "megatron-bridge" if recipe or "recipe" in launch.program else "nemo"


def _collect_neox(source: LaunchSource) -> str:
    """Collect the files of GPT-NeoX's launcher, which are one configuration (deepy.py)."""
    at, found = source.options.file("d", "conf_dir") or "", list[str]()
    words = source.launch.arguments
    for before, word in zip((None, *words), words, strict=False):
        if not word.plain.startswith("-") and not (before and before.plain.startswith("-")):
            ending = "" if word.plain.endswith((".yml", ".yaml", ".json")) else ".yml"
            name = source.find(f"{at}/{word.plain}{ending}".lstrip("/"))
            if name is None:
                why = "a file that the command names is not in the folder"
                source.report_missing("conf_file", why, word.place)
            else:
                found.append(name)
    if found:
        collect_keyed(
            found[0], source.folder, source.collected, otherwise="gpt-neox", others=found[1:]
        )
    return "gpt-neox"


def _is_recipe(source: LaunchSource) -> bool:
    own = ("run_recipe.py", "launch_with_nemo_run.py", "setup_experiment.py")
    by_program = source.program.endswith(own) and {"recipe", "model"} & source.keys
    others = source.text and not re.search("nemo|megatron", source.text)  # with such options
    by_keys = {"tp", "pp", "ng", "model_recipe_name"} & source.keys
    return bool(by_program or (by_keys and not others))


def _collect_recipe(source: LaunchSource) -> str:
    """Collect a recipe of Megatron-Bridge by its name or by a model (scripts/training,
    scripts/performance), with overrides of the command; also NeMo's performance scripts."""
    options, collected, environment = source.options, source.collected, source.folder.environment
    option, name = (
        options.last("recipe", "model", "model_recipe_name", "mr"),
        nemo.recipe_of(options),
    )
    files = [read_keyed(file, source.folder) for file in source.named if not file.endswith(".py")]
    collected.files += [file.name for file in files]
    overrides = [*(nemo.values_of_files([((), file)]) for file in files), source.hydra]
    found = [each for each in map(source.find, nemo.registries(source.folder, name or "")) if each]
    if not any(name and source.collect_python(each, name, overrides) for each in found):
        why = f"the recipe {name or 'that it names'} is not in the folder; it has all other values"
        source.report_missing("recipe", why, option.place if option is not None else None)
        nemo.collect_nemo(overrides, collected, environment)
        collected.derived.pop("model.name", None)
        nemo.collect_model_of_recipe(name, options, collected)
    tuned = collected.derived.pop("devices", (None, ""))
    with collected.overriding_files():
        nemo.collect_performance_script(options, collected)
    nodes, each = collected.count_or_default("nodes"), collected.count("devices_per_node")
    devices = collected.count("devices") or (nodes * each if nodes and each else None)
    if devices is None:
        collected.derive("devices", *tuned)
    elif tuned[0] not in (None, devices) and found[0] != nemo.REGISTRY:
        why = f"the recipe has that of {tuned[0]} devices, which is scaled with their number"
        collected.leave_open("global_batch", "recipe", why, source.launch.place)
    bridge = "recipe" in source.program or "experiment" in source.program
    return "megatron-bridge" if bridge or (name or "").endswith("_config") else "nemo"


def _report_objective(source: LaunchSource) -> None:
    """Report the objective in the name of TRL's program (`grpo.py`), or after `trl`; its classes
    have other defaults than the Trainer's."""
    launch, program = source.launch, source.program
    is_trl = program.partition(".")[0] == "trl"
    if is_trl or trainer_program.OF_TRL.search(source.text):
        source.collected.open_keys |= {"precision", "recompute"} - source.collected.placed.keys()
    if is_trl:
        program += "." + launch.arguments[0].plain if launch.arguments else ""
    if (found := _OBJECTIVE.search(program)) is not None:
        report_objective(found[1], launch.program, launch.place, source.collected)
    for option in source.options.of("rlhf_type", "actor_zero_stage"):
        word = source.options.text(option.key) if option.key == "rlhf_type" else "ppo"
        report_objective(word, option.name, option.place, source.collected)


def _collect_llama_factory(source: LaunchSource) -> str:
    """Collect LLaMA-Factory's options, which are the keys of its files."""
    file = source.options_as_file()
    parts = (((), file),)
    return FRAMEWORKS["llama-factory"].collect(
        KeyedSource(file=file, folder=source.folder, collected=source.collected, parts=parts)
    )


def _collect_others(source: LaunchSource) -> str | None:
    """Collect the files named in a command, and options of transformers' Trainer, DeepSpeed and
    accelerate."""
    options, keys, words = source.options, source.keys, source.launch.words
    options_file = source.options_as_file()
    dotted = {
        tuple(key[0].split(".")): (value, options_file.place(key))
        for key, value in options_file.values.items()
    }
    overrides, program = {**source.hydra, **dotted}, source.program_file
    framework = source.collect_files(source.named, overrides)
    kind = next((name for word, name in _OF_FILES.items() if word in source.program), None)
    if kind is not None and (missing := missing_file(source.launch, source.folder)):
        source.report_missing(source.launch.program, f"{missing!r} is not in the folder")
        framework = framework or (kind if source.hydra else None)  # its overrides
    learners = options.last("num_learners_per_node", "actor_num_gpus_per_node")  # open-instruct's
    counts = [whole(word.plain) or 0 for word in learners.values] if learners is not None else []
    if learners is not None and all(counts):
        source.collected.set("devices", sum(counts), learners.place, learners.name)
    is_trainer = hf_trainer.is_trainer(keys)
    of_trainer = hf_trainer.has_trainers_defaults(keys, source.program)
    of_file = framework in ("transformers", "llama-factory", "axolotl")
    if is_trainer or of_file:
        _report_objective(source)
    by_program = None
    if program is not None and framework in (None, "accelerate", "deepspeed"):
        by_program = source.collect_program(program, overrides)
    if of_file:
        given = hf_trainer.given_by_options(options, source.collected)
        pairs = [(path[0], *each, path[0]) for path, each in source.hydra.items()]
        with source.collected.overriding_files():
            if any(key == "deepspeed" for key, *_ in (*given, *pairs)):
                source.collected.forget("zero_stage", "optimizer_offload")
                source.collected.default("the command switches DeepSpeed off", zero_stage=0)
            named = hf_trainer.collect_trainer([*given, *pairs], source.collected, defaults=False)
        if named:
            source.collect_deepspeed(named)
        if framework == "transformers":
            own, _, made = source.defaults_of_program()
            decided = source.collected.placed.keys() | source.collected.open_keys
            own = [each for each in own if hf_trainer.field_of(each[0]) not in decided]
            hf_trainer.collect_trainer(own, source.collected, defaults=False)
            trainer_program.collect_objects(made, source.collected)
    elif by_program is None and (is_trainer or {"deepspeed", "deepspeed_config"} & keys):
        given = hf_trainer.given_by_options(options, source.collected)
        own, is_own, made = source.defaults_of_program()
        of_trainer = of_trainer and not is_own
        source.collected.overriding = framework is not None
        given = [*own, *given]
        deepspeed = hf_trainer.collect_trainer(given, source.collected, defaults=of_trainer)
        trainer_program.collect_objects(made, source.collected)
        if is_trainer and not of_trainer and framework is None:
            why = "its options are not all the Trainer's, whose defaults are not used"
            source.collected.report_unresolved(source.launch.program, why, source.launch.place)
        source.collected.overriding = False
        if deepspeed and source.find(deepspeed) not in source.collected.files:
            source.collect_deepspeed(deepspeed)
        bare = options.last("deepspeed")
        has_config = "deepspeed_config" in keys or (bare is not None and not bare.values)
        if has_config or not is_trainer:
            return "deepspeed" if framework in (None, "accelerate") else framework
        return "transformers"
    if by_program is None and framework == "accelerate":  # an own loop
        own, _, made = source.defaults_of_program()
        given = [*own, *hf_trainer.given_by_options(options, source.collected)]
        with source.collected.overriding_files():
            hf_trainer.collect_trainer(given, source.collected, defaults=False)
        trainer_program.collect_objects(made, source.collected)
    framework = by_program or framework
    if any("accelerate" in word for word in words):
        accelerate.collect_launch_options(options, source.collected)
        return framework if framework not in (None, "deepspeed") else "accelerate"
    return framework or ("deepspeed" if "deepspeed" in words else None)


LAUNCHES: tuple[tuple[Recognizes, Collect], ...] = (
    # Settings of several models, and of diffusion.
    (
        lambda each: any(word in each.program for word in ("chatlearn", "maxdiffusion")),
        lambda each: None,
    ),
    (lambda each: each.program.endswith("benchmark_runner"), _collect_benchmark),
    (lambda each: "maxtext" in each.program or maxtext.is_maxtext(each.pairs), _collect_maxtext),
    (lambda each: "tune" in each.launch.words, _collect_torchtune),
    (lambda each: "openrlhf" in each.program, _collect_openrlhf),
    (
        lambda each: bool(
            _SWIFT.search(each.launch.program) or {"rlhf_type", "sft_type"} & each.keys
        ),
        _collect_swift,
    ),
    (lambda each: {"finetuning_type", "model_name_or_path"} <= each.keys, _collect_llama_factory),
    (
        lambda each: "colossalai" in each.launch.words,
        _read_by(colossalai.collect_colossalai, "colossalai"),
    ),
    (_is_torchtitan, _collect_torchtitan),
    (lambda each: verl.is_verl(each.program, each.hydra), _collect_verl),
    (lambda each: slime.is_slime(each.options), _read_by(slime.collect_slime, "slime")),
    (lambda each: starts_primus(each.program, each.launch.command.environment), _collect_primus),
    (_is_megatron, _collect_megatron),
    (_is_nemo_rl, _collect_nemo_rl),
    (_is_recipe, _collect_recipe),
    (_is_nemo, _collect_nemo),
    (lambda each: "deepy.py" in each.launch.words, _collect_neox),
    (lambda each: True, _collect_others),
)
"""(recognizer, reader) per program; the first row that recognizes a command reads it."""
