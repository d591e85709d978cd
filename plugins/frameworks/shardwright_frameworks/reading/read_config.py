"""`read_config`: the run configured by a file, or by a folder of files that call each other."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import DocumentError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.consistency import complete
from shardwright_frameworks.reading.job_file import environment_of_job, script_of_job
from shardwright_frameworks.reading.launch_source import missing_file
from shardwright_frameworks.reading.read_file import read_keyed_config, read_python_config
from shardwright_frameworks.reading.read_launch import launches_in, read_launch, read_loose_options
from shardwright_frameworks.reading.slurm_header import slurm_header
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.script import read_script
from shardwright_frameworks.shell.script_reading import HERE, ScriptReading
from shardwright_frameworks.shell.text_marks import is_unknown, unknown_numbers, without_unknowns

SCRIPTS = (
    ".sh",
    ".bash",
    ".slurm",
    ".sbatch",
    ".srun",
    ".job",
    ".slrm",
    ".env",
    ".args",
    ".txt",
    ".conf",
    "",
)
# The name of a command line where files have theirs.
COMMAND = "--command"
KEYED = (".yaml", ".yml", ".json", ".toml")


def read_config(path: str | Path, *, devices: int | None = None) -> ImportedRun:
    """The run configured by a file or folder.

    path  a script, a YAML, JSON, TOML or Python file, `file.py:function`, or a folder of them;
          scripts may source and name files of their folder, Python files import those of their
          source tree. Nothing of it is executed.
    devices  number of devices, if it is not in the files

    Raises DocumentError for a file that is missing, binary, too large or no valid YAML, JSON, TOML
    or Python, and for files in which no framework's configuration is recognized.
    """
    named, function = split_recipe(path)
    if named.is_dir():
        return _of_folder(ConfigFolder(root=named), str(path), devices)
    if not named.exists():
        raise DocumentError(f"{path}: no such file or folder")
    folder = ConfigFolder(root=named.parent)
    if folder.text(named.name) is None:
        raise DocumentError(folder.unread.get(named.name, f"{path}: cannot be read"))
    found = _of_file(named.name, folder, function, devices)
    if found is None:
        raise DocumentError(
            f"{path}: no configuration of a known framework was recognized"
            f"{_started(named.name, folder)}; known are "
            "Megatron-LM, Megatron-DeepSpeed, torchtitan, DeepSpeed, accelerate, transformers' "
            "Trainer, nanotron, MaxText, NeMo, NeMo Automodel, NeMo RL, Megatron-Bridge, "
            "GPT-NeoX, LLaMA-Factory, axolotl, llm-foundry, OLMo, OLMo-core, Levanter, InternEvo, "
            "torchtune, ColossalAI, OpenRLHF, verl, slime, ms-swift, FlagScale, Primus. "
            "If a script starts the run in a way that is not followed, give the command that it "
            "starts: shardwright import --command 'torchrun ...'"
        )
    return found


def read_command(command: str, folder: str | Path = ".") -> ImportedRun:
    """The run started by an expanded command line, as printed by `ps` or `set -x`.

    command  `torchrun ... pretrain_gpt.py --tensor-model-parallel-size 4`, after assignments of
             its environment if there are any
    folder   folder of the files that it names

    Raises DocumentError if it starts no training run of a known framework.
    """
    files = ConfigFolder(root=Path(folder), texts={COMMAND: command}, searches=False)
    collected = _of_script(COMMAND, files)
    if collected is None or not collected.placed:
        raise DocumentError(
            f"{COMMAND} {command[:80]!r}: starts no training run of a known framework. Give the "
            "whole command, from torchrun (python, srun, deepspeed, accelerate) on"
        )
    return collected.imported()


def split_recipe(path: str | Path) -> tuple[Path, str]:
    """The file, and the function of `FILE.py:FUNCTION`; "" for any other path.

    >>> split_recipe("recipes/llama.py:llama3_8b")[1]
    'llama3_8b'
    """
    file, colon, function = str(path).rpartition(":")
    if colon and file.endswith(".py") and function.isidentifier():
        return Path(file), function
    return Path(path), ""


def _of_file(
    name: str, folder: ConfigFolder, function: str = "", devices: int | None = None
) -> ImportedRun | None:
    collected = _findings_of(name, folder, function)
    if collected is None or not collected.placed:
        return None
    if devices is not None and collected.get("devices") is None:
        collected.derive("devices", devices, "as asked")
        complete(collected, {})
    return collected.imported()


def _findings_of(name: str, folder: ConfigFolder, function: str = "") -> Collected | None:
    text = folder.text(name)
    if text is None:
        return None
    ending = Path(name).suffix.lower()
    if ending in KEYED:
        return read_keyed_config(name, folder) or _of_job(name, folder)
    if ending == ".py":
        return read_python_config(name, folder, function or None)
    return _of_script(name, folder)


def _of_chart(name: str, file: KeyedFile, folder: ConfigFolder) -> Collected:
    """The run of a Helm chart's values (github.com/AI-Hypercomputer/gpu-recipes): that of the
    launcher next to them, with their variables.

    Raises DocumentError without a launcher.
    """
    launcher = (Path(name).parent / "launcher.sh").as_posix()
    variables = environment_of_job(file)
    reading = read_script(launcher, folder, header=lambda script, text: variables)
    launches = launches_in(reading)
    if not launches:
        raise DocumentError(
            f"{name}: the values of a Helm chart; the run is configured by "
            f"{file.get('workload', 'configFile')!r}, which `helm install --set-file` names. "
            "Import that file, or put the chart's launcher.sh next to the values"
        )
    collected = read_launch(launches, reading, folder, launcher)
    collected.files.append(name)
    place = file.place(("workload", "gpus"))
    collected.set("devices", file.get("workload", "gpus"), place, "workload.gpus", over=False)
    complete(collected, {})
    return collected


def _of_job(name: str, folder: ConfigFolder) -> Collected | None:
    """The run started by a cluster's job file, with places in that file."""
    file = read_keyed(name, folder)
    if file.has("workload", "configFile"):
        return _of_chart(name, file, folder)
    job = script_of_job(file)
    if job is None:
        return None
    script, line = job
    inner = f"{name}{HERE}"
    folder.texts[inner] = script
    folder.written[inner] = (name, line)
    reading = read_script(inner, folder, header=lambda script, text: {}, shown=name, line=line)
    launches = launches_in(reading)
    if not launches:
        return None
    collected = read_launch(launches, reading, folder, name)
    kind = str(file.get("resources", "accelerators") or "").partition(":")[0]
    if kind and collected.get("device") is None:
        collected.set("device", kind, file.place(("resources", "accelerators")), "accelerators")
    return collected


def _of_script(name: str, folder: ConfigFolder) -> Collected | None:
    reading = _read(name, folder)
    launches = launches_in(reading)
    if not launches:
        return read_loose_options(reading, folder, name)
    collected = read_launch(launches, reading, folder, name)
    # The devices of an unknown program are not those of a training run.
    return collected if collected.get("framework") is not None else None


def _started(name: str, folder: ConfigFolder) -> str:
    """Text about the started program of an unknown framework."""
    if Path(name).suffix.lower() not in SCRIPTS:
        return ""
    reading = _read(name, folder)
    launches = launches_in(reading)
    program = without_unknowns(launches[0].program) if launches else ""
    if not program:
        first = [each.words[0] for each in reading.commands if is_unknown(each.words[0].plain)]
        whys = [reading.unknowns[unknown_numbers(each.text)[0]].reason for each in first]
        return f": it starts a command that is not known: {whys[-1]}" if whys else ""
    missing = missing_file(launches[0], folder)
    why = f"and {missing!r} is not in the folder" if missing else "which is of none"
    return f": it starts {program} ({launches[0].place}), {why}"


def _read(name: str, folder: ConfigFolder) -> ScriptReading:
    return read_script(
        name, folder, header=lambda script, text: slurm_header(script, text).variables
    )


def _of_folder(folder: ConfigFolder, path: str, devices: int | None) -> ImportedRun:
    """The run of a folder: that of the only script that starts a run and that no other file calls.
    Without such a script, that of the only configuration file."""
    names = folder.names()
    scripts = [n for n in names if Path(n).suffix.lower() in SCRIPTS and folder.text(n)]
    best: tuple[int, int, str] | None = None
    called: set[str] = set()
    weights: dict[str, int] = {}
    for name in scripts:
        if Path(name).suffix.lower() in (".txt", "") and not (
            folder.text(name) or ""
        ).lstrip().startswith(("#!", "torchrun", "python", "srun", "deepspeed", "--")):
            continue
        reading = _read(name, folder)
        called |= set(reading.sourced) - {name}
        launches = launches_in(reading)
        if launches:
            weights[name] = max(launch.weight for launch in launches)
    for place, name in enumerate(scripts):
        if name in weights and name not in called:
            rank = (weights[name], -place, name)
            best = rank if best is None or rank > best else best
    if best is not None:
        found = _of_file(best[2], folder, devices=devices)
        if found is not None:
            return found
    faults = []
    for name in (*_ordered(names), *[n for n in scripts if n not in weights]):
        try:
            found = _of_file(name, folder, devices=devices)
        except DocumentError as error:
            faults.append(str(error))
            continue
        if found is not None and found.framework is not None:
            return found
    why = f" ({'; '.join(faults[:3])})" if faults else ""
    raise DocumentError(
        f"{path}: no configuration of a known framework was recognized in its "
        f"{len(names)} files{why}"
    )


def _ordered(names: tuple[str, ...]) -> list[str]:
    """Configuration files; a model's `config.json` and DeepSpeed's JSON come last."""
    keyed = [name for name in names if Path(name).suffix.lower() in (*KEYED, ".py")]
    return sorted(keyed, key=lambda name: (name.endswith("json"), name.endswith(".py"), name))
