"""A job of a cluster (Kubernetes, SkyPilot, Beaker, ...) as the shell script that it starts.

Their YAML files differ. The training command is a text or a list of words in them that contains a
launcher. Environment variables are `name`/`value` pairs or under `envs`.
"""

from __future__ import annotations

import re
import shlex

from shardwright_frameworks.configs.keyed_file import KeyedFile

_STARTS = re.compile(
    r"(?m)(^|[\s;&|/])(torchrun|accelerate launch|deepspeed|srun|mpirun|"
    r"python3? -m torch\.distributed|"
    r"python3? (-\w+ )*\S*(train|finetune|run_(sft|grpo|dpo))\S*\.py|"
    r"(swift|megatron) (sft|pt|rlhf)|(llamafactory-cli|axolotl) train|"
    r"python3? -m \S*train\S*)(\s|$)"
)
_SCRIPT = re.compile(r"(^|[\s;&|/])(bash|sh) \S+\.sh(\s|$)")
_SHELL_FLAGS = ("-c", "-lc", "-ec", "-xc")


def script_of_job(file: KeyedFile) -> tuple[str, int] | None:
    """The script of a job, otherwise the command that starts one, and the line on which it begins;
    None for a file without a command."""
    return _command(file, _STARTS) or _command(file, _SCRIPT)


def _command(file: KeyedFile, starts: re.Pattern[str]) -> tuple[str, int] | None:
    for path, value in file.values.items():
        text = None
        rest = file.values.get((*path[:-1], "args")) if path[-1:] == ("command",) else None
        listed = [*value, *(rest if isinstance(rest, list) else ())] if type(value) is list else []
        if listed and all(isinstance(one, (str, int, float)) for one in listed):
            words = [str(one) for one in listed]
            shell = next((n for n, word in enumerate(words) if word in _SHELL_FLAGS), None)
            text = words[shell + 1] if shell is not None and shell + 1 < len(words) else None
            if text is None:
                text = " ".join(one if re.search(r"\s", one) else shlex.quote(one) for one in words)
        elif isinstance(value, str):
            text = value
        if text and len(text.split()) > 1 and starts.search(text):
            # A folded text has lost the line breaks of its continuations.
            script = re.sub(r"\\\s+(?=--)", " ", text) if "\n" not in text else text
            line = file.place(path).line
            variables = environment_of_job(file).items()
            before = "".join(f"export {key}={shlex.quote(each)}; " for key, each in variables)
            return before + script + "\n", line
    return None


def environment_of_job(file: KeyedFile) -> dict[str, str]:
    """The variables that a job sets; TPUs as GKE names them
    (docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus)."""
    found: dict[str, str] = {}
    for path, value in file.values.items():
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        if not plain or not path:
            continue
        if path[-1] == "value" and isinstance(file.values.get((*path[:-1], "name")), str):
            found[str(file.values[(*path[:-1], "name")])] = str(value)
        elif len(path) == 2 and path[0] in ("envs", "env", "environment"):
            found[path[1]] = str(value)
        elif path[-1] == "cloud.google.com/gke-tpu-topology":
            kind = str(file.values.get((*path[:-1], "cloud.google.com/gke-tpu-accelerator"), ""))
            kind = re.sub(r"^tpu-|-(slice|podslice|device)$", "", kind).replace("5-lite", "5e")
            found["TPU_ACCELERATOR_TYPE"] = f"{kind}-{value}"
            slices = file.values.get(("spec", "replicatedJobs", "0", "replicas"))
            found["MEGASCALE_NUM_SLICES"] = str(slices or 1)
    resources = str(file.values.get(("resources", "accelerators"), ""))
    count = resources.partition(":")[2]
    if ("num_nodes",) in file.values:
        found["SKYPILOT_NUM_NODES"] = str(file.values[("num_nodes",)])
    if count.isdigit():
        found["SKYPILOT_NUM_GPUS_PER_NODE"] = count
    return {k: v for k, v in found.items() if re.fullmatch(r"[A-Za-z_]\w*", k)}
