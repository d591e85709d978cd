"""`Launch`: a command split into launcher with its ranks, program and arguments.

Launchers: torchrun and torch.distributed.launch (PyTorch 2.x, torch/distributed/run.py), deepspeed
(deepspeed/launcher/runner.py), accelerate launch (accelerate/commands/launch.py), srun (Slurm),
mpirun.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Option, Options, read_options, whole
from shardwright_frameworks.frameworks.torchtune import is_recipe
from shardwright_frameworks.reading.slurm_header import SlurmHeader
from shardwright_frameworks.shell.script_reading import Command
from shardwright_frameworks.shell.text_marks import (
    Place,
    UnknownValue,
    Word,
    unknown_numbers,
    without_place_marks,
)
from shardwright_frameworks.shell.variables import Variable

_LAUNCHERS = frozenset(
    {"torchrun", "deepspeed", "srun", "mpirun", "mpiexec", "accelerate", "ds", "prun", "bcprun",
     "horovodrun", "torchx", "composer", "colossalai", "nemorun", "aprun", "jsrun", "tune", "xpk"}
)  # fmt: skip
_LAUNCHING_MODULES = (
    "torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch",
    "torch.distributed.elastic", "deepspeed.launcher.runner", "deepspeed.launcher.launch",
)  # fmt: skip
# Commands that train by themselves: the words behind them are the program's.
_PROGRAMS = ("llamafactory-cli", "axolotl", "swift", "megatron", "nemo", "trl", "primus-cli")
_TRAINING_COMMANDS = frozenset(
    {"sft", "pt", "rlhf", "train", "pretrain", "finetune", "dpo", "grpo", "kto", "reward", "rloo"}
)
# Their commands without training.
_OTHER_COMMANDS = frozenset(
    {"app", "infer", "inference", "deploy", "eval", "export", "sample", "rollout", "chat",
     "webchat", "api", "webui", "web-ui", "merge-lora", "preprocess", "serve", "vllm-serve",
     "fetch"}
)  # fmt: skip
_NODES = ("nnodes", "num_nodes", "num_machines", "nodes", "N")
_EACH = ("nproc_per_node", "num_gpus", "gpus_per_node", "ntasks_per_node")
_TPU = re.compile(r"(v4|v5p|v5e|v5litepod|v6e|tpu7x)-(\d+(?:x\d+)*)")
# The catalog's names of them, where they are not `tpu-` and the word.
_TPU_NAMES = {"v5litepod": "tpu-v5e", "tpu7x": "tpu-v7x"}
_TRAINS = re.compile(
    r"train|finetune|fine_tune|sft|run_clm|run_mlm|recipe|experiment|main|benchmark_runner|"
    r"(^|[/_.])(dpo|grpo|kto|orpo|ppo|rloo)([_.]|$)",
    re.I,
)
_NOT = re.compile(
    r"preprocess|convert|conversion|tokeniz|eval|infer|generat|download|prepare|merge|export|serve|"
    r"(^|[/_])tests?[/_.]|checkpoint_util|ckpt|index|server|monitor|plot|clean|setup\.py|make_",
    re.I,
)

# Variables that wrappers set: `docker exec -e NAME=VALUE`, `mpirun -x NAME=VALUE`.
_GIVEN = re.compile(r"[A-Z_][A-Z0-9_]*=")
# Programs that never train.
_QUIET = frozenset(
    {
        "set", "shopt", "ulimit", "module", "cd", "mkdir", "rm", "cp", "mv", "ln", "echo", "printf",
        "cat", "sleep", "wait", "trap", "umask", "chmod", "touch", "pwd", "hostname", "date",
        "which", "whoami", "nvidia-smi", "ls", "true", "false", ":", "pushd", "popd", "type",
        "command", "alias", "kill", "pkill", "ps", "df", "free", "tee", "sed", "awk", "grep",
        "find", "conda", "pip", "git", "wget", "curl", "tar", "unzip", "scp", "rsync", "ray", "cut",
        "tr", "head", "tail", "sort", "uniq", "basename", "dirname", "realpath", "hash", "builtin",
        "disown", "unalias",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command.

    program    the script or module, "" if the files do not give it
    launcher   options before the program
    words      names of the launchers
    arguments  words after the program
    """

    program: str
    place: Place
    words: tuple[str, ...]
    launcher: Options
    arguments: tuple[Word, ...]
    command: Command

    @property
    def is_distributed(self) -> bool:
        """Whether a launcher of several ranks starts it."""
        return bool(self.words)

    @property
    def weight(self) -> int:
        """Score of how likely the command is a training run; 0 if it is none."""
        name = self.program.rsplit("/", 1)[-1]
        first = self.arguments[0].plain if self.arguments else ""
        if "conversion/" in self.program or (name in _PROGRAMS and first in _OTHER_COMMANDS):
            return 0
        if _NOT.search(name) and not name.startswith(("pretrain", "train", "finetune")):
            return 0
        trains = bool(_TRAINS.search(self.program)) or self.program in _PROGRAMS
        if not trains and not self.is_distributed and self.program:
            return 1 if len(self.arguments) > 8 else 0
        return 2 + 20 * self.is_distributed + 20 * trains + min(len(self.arguments), 40)


def launch_of(command: Command, unknowns: Sequence[UnknownValue]) -> Launch | None:
    """The command as a launch; None if it starts no program that could train."""
    texts = [word.plain for word in command.words]
    names = []
    begin = 0
    while begin < len(texts) and re.match(r"[A-Za-z_]\w*=", texts[begin]):
        begin += 1
    for place in range(begin, len(texts) - 1):
        # Programs that submit a job have its command behind `--`, or behind others there.
        following = texts[place + 1].rsplit("/", 1)[-1]
        if texts[place] in ("--", "&&") and (
            following in _LAUNCHERS or following.startswith("python")
        ):
            words = command.words[place + 1 :]
            if any(text.endswith("mason.py") for text in texts[:place]):
                words = _on_all_nodes(command.words[:place], words, unknowns)
            return launch_of(replace(command, words=words), unknowns)
    if begin >= len(texts) or texts[begin].rsplit("/", 1)[-1] in _QUIET:
        return None
    program, behind = "", len(texts)
    at = begin
    while at < len(texts):
        text = texts[at]
        base = text.rsplit("/", 1)[-1]
        if text in ("-m", "--module") and at + 1 < len(texts):
            module = texts[at + 1]
            if module.startswith(_LAUNCHING_MODULES):
                names.append(module)
                at += 2
                continue
            program, behind = module, at + 2
            break
        if base == "deepy.py":  # GPT-NeoX's
            names.append(base)
        elif re.search(r"\.py$", text) and not text.startswith("-"):
            program, behind = text, at + 1
            break
        if "tune" in names and is_recipe(text):
            program, behind = text, at + 1
            break
        # A container or another wrapper may start it.
        trains = texts[at + 1 : at + 2] and texts[at + 1] in _TRAINING_COMMANDS
        first = at == begin + bool(names) or base == "primus-cli"
        if base in _PROGRAMS and (first or trains):
            program, behind = base, at + 1
            break
        if base in _LAUNCHERS and at - begin <= 60 and not text.startswith("-"):
            names.append(base)
        elif base.endswith((".sh", ".bash")) and not text.startswith("-") and not program:
            program, behind = text, at + 1
            break
        at += 1
    if not program and not names and not (unknown_numbers(texts[begin]) and len(texts) > 12):
        # If the program depends on a condition, its options identify it.
        return None
    before = [word for word in command.words[begin:behind] if word.plain != program]
    arguments = command.words[behind:]
    if not program:
        arguments = command.words[begin + 1 :]
    given = {
        word.plain.partition("=")[0]: Variable(word.text.partition("=")[2], word.place)
        for word in command.words[:behind]
        if _GIVEN.match(word.plain)
    }
    return Launch(
        program=program,
        place=command.words[min(behind, len(texts)) - 1].place,
        words=tuple(names),
        launcher=read_options(before, unknowns),
        arguments=tuple(arguments),
        command=replace(command, environment={**command.environment, **given}),
    )


def _on_all_nodes(
    before: Sequence[Word], words: tuple[Word, ...], unknowns: Sequence[UnknownValue]
) -> tuple[Word, ...]:
    """A launch with the processes of all nodes, from a command that counts those of one node
    (github.com/allenai/open-instruct, mason.py multiplies `--num_processes` by `--num_nodes`)."""
    nodes = read_options(before, unknowns).number("num_nodes") or 1
    at = next((n for n, word in enumerate(words) if word.plain == "--num_processes"), len(words))
    each = whole(words[at + 1].plain) if at + 1 < len(words) else None
    if each is None:
        return words
    return (*words[: at + 1], Word(str(each * nodes), words[at + 1].place), *words[at + 2 :])


def collect_ranks(launch: Launch, header: SlurmHeader, collected: Collected) -> None:
    """Collect nodes and devices from the launcher, otherwise from the header. Different values are
    a contradiction."""
    nodes = _count_given(launch.launcher, collected, *_NODES)
    each = _count_given(launch.launcher, collected, *_EACH)
    total = _count_given(launch.launcher, collected, "np", "n", "ntasks", "num_processes")
    distributed = {"torchrun", "tune", *_LAUNCHING_MODULES} & set(launch.words)
    elastic = any(name.startswith("torch") for name in launch.words)
    if distributed and nodes is None and "nnodes" not in launch.launcher:
        collected.default("torchrun (PyTorch 2.x)", nodes=1)
    _tpus(launch, collected)
    if "bcprun" in launch.words:
        # NVIDIA Base Command: -n nodes, -p ranks of each.
        launch.launcher.collect_counts(collected, {"n": "nodes", "p": "devices_per_node"})
        total = None
    if "deepspeed" in launch.words and nodes is None and "hostfile" not in launch.launcher:
        collected.default("deepspeed, launcher/runner.py: this node, without a host file", nodes=1)
    header_nodes, header_each = header.number("--nodes"), header.devices_per_node
    if "deepspeed" in launch.words and each is None:
        if header_each is None:
            collected.open_keys.add("devices_per_node")  # all devices of the node
        _include(launch.launcher, collected)
    _gres(launch.launcher, collected)
    tasks = header.number("--ntasks-per-node")
    if header_nodes:
        _compare_with_header(collected, "nodes", nodes, header_nodes, "#SBATCH --nodes")
        if nodes is None and not (
            distributed and "nodes" in collected.defaults and not _srun(launch)
        ):
            nodes = header_nodes[0]
    per_node = header_each or (tasks if tasks and tasks[0] > 1 and not elastic else None)
    if per_node:
        _compare_with_header(collected, "devices_per_node", each, per_node, "#SBATCH")
        each = each if each is not None else per_node[0]
    if total is None and header.number("--ntasks") and not elastic and each is None:
        number, place = header.number("--ntasks") or (1, launch.place)
        collected.set("devices", number, place, "#SBATCH --ntasks")
    has_tasks = any(key in launch.launcher for key in ("ntasks_per_node", "ntasks", "n"))
    if elastic and _srun(launch) and tasks and tasks[0] > 1 and (each or 0) > 1 and not has_tasks:
        collected.report_contradiction(
            "devices_per_node",
            f"srun starts {tasks[0]} tasks on a node (#SBATCH --ntasks-per-node, {tasks[1]}), and "
            f"each starts {each} ranks ({collected.place('devices_per_node')})",
            tasks[1],
            collected.place("devices_per_node"),
        )
    if header.ignored is not None:
        why = f"#SBATCH ({header.ignored}) behind a command has no effect"
        collected.report_contradiction("", why, header.ignored)
    kind = header.device_kind
    if kind:
        collected.set("device", kind[0], kind[1], "#SBATCH --gres")
    if total is not None and not elastic and "deepspeed" not in launch.words:
        option = launch.launcher.last("np", "n", "ntasks", "num_processes")
        if option is not None and total >= (nodes or 1):
            collected.set("devices", total, option.place, option.name)
            return
    _multiply(collected)


def _tpus(launch: Launch, collected: Collected) -> None:
    """Collect TPU chips from `--device-type v6e-128 --num-slices 2` of xpk and MaxText's benchmark
    runner. A single number after v4 and v5p counts cores, two per chip; a topology (v4-4x4x4)
    counts chips (docs.cloud.google.com/tpu/docs/v4, v5p, v6e, tpu7x)."""
    given = (
        *launch.launcher.given,
        *read_options(launch.arguments, launch.launcher.unknowns).given,
    )
    named = [(o.values[0].plain, o.place, o.name) for o in given
             if o.key in ("device_type", "tpu_type") and o.values]  # fmt: skip
    slices = [o.values[0].plain for o in given if o.key == "num_slices" and o.values]
    for name, variable in launch.command.environment.items():  # of a pod
        if name == "TPU_ACCELERATOR_TYPE":
            named.append((without_place_marks(variable.text), variable.place, name))
        elif name == "MEGASCALE_NUM_SLICES":
            slices.append(without_place_marks(variable.text))
    count = whole(slices[0]) if slices else 1
    for text, place, name in named:
        found = _TPU.fullmatch(text)
        if found is None or not count:
            continue
        chips = math.prod(int(part) for part in found[2].split("x"))
        if found[1] in ("v4", "v5p") and "x" not in found[2]:
            chips //= 2
        device = _TPU_NAMES.get(found[1], f"tpu-{found[1]}")
        collected.set("device", device, place, name)
        if found[1] == "tpu7x":
            name += f" ({chips * count} chips, which JAX counts as {2 * chips * count} devices)"
        collected.set("devices", chips * count, place, name)


def _srun(launch: Launch) -> bool:
    return "srun" in launch.words


def _multiply(collected: Collected) -> None:
    nodes, each = collected.count_or_default("nodes"), collected.count("devices_per_node")
    if nodes is not None and each is not None:
        how = f"{nodes} nodes x {each} devices"
        collected.derive("devices", nodes * each, how)


def _count_given(options: Options, collected: Collected, *keys: str) -> int | None:
    option = options.last(*keys)
    if option is None:
        return None
    text = options.value_of(option, collected)
    if text is None and option.key in _EACH:
        collected.leave_open("devices_per_node")
    if text is None:
        return None
    # An elastic range `1:4`, or `gpu`, `auto`, is no number of nodes.
    number = whole(text)
    if number is None:
        collected.report_unresolved(option.name, f"{text!r} is not one number", option.place)
        return None
    if number > 0 and option.key in (*_NODES, *_EACH):
        about = "nodes" if option.key in _NODES else "devices_per_node"
        collected.set(about, number, option.place, option.name)
    return number


def _include(options: Options, collected: Collected) -> None:
    """Collect the devices in deepspeed's `--include host:0,1@host2:0,1`."""
    named, text = options.last("include", "i"), options.text("include", "i")
    slots = [host.partition(":")[2].split(",") for host in (text or "").split("@")]
    if named is not None and all(map(all, slots)):
        collected.set("devices", sum(map(len, slots)), named.place, named.name)
        collected.set("nodes", len(slots), named.place, named.name)


def _gres(options: Options, collected: Collected) -> None:
    option: Option | None = options.last("gres")
    if option is not None and option.values and not unknown_numbers(option.values[0].text):
        count = whole(option.values[0].plain.rsplit(":", 1)[-1])
        if count and collected.count("devices_per_node") is None:
            collected.set("devices_per_node", count, option.place, option.name)


def _compare_with_header(
    collected: Collected, key: str, placed: int | None, header: tuple[int, Place], option: str
) -> None:
    """Use a header's number if the body has none; different numbers are a contradiction."""
    number, place = header
    if placed is None:
        collected.set(key, number, place, option, over=False)
    elif placed != number:
        body = collected.place(key)
        collected.report_contradiction(
            key,
            f"{key.replace('_', ' ')}: the header asks for {number} ({option}, {place}), the body "
            f"starts {placed} ({body}); {placed} is taken",
            place,
            body,
        )
