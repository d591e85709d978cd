"""The resources requested by the first lines of a batch script of Slurm: nodes, tasks, devices
(sbatch manual, 24.05)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from shardwright_frameworks.configs.command_options import whole
from shardwright_frameworks.shell.text_marks import Place, without_place_marks

_LINE = re.compile(r"#SBATCH\s+(.*)")
_SHORT = {"-N": "--nodes", "-n": "--ntasks", "-G": "--gpus", "-C": "--constraint"}
_KIND = re.compile(r"(?i)(nvidia_?)?(a|h|b|v|l|gh|gb|mi|p|t)\d{1,3}[a-z]*([-_]\w+)*$")
_GPUS = re.compile(r"gpus?(?::(?P<kind>[\w.-]*[A-Za-z][\w.-]*))?(?::(?P<count>\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmHeader:
    """The options of `#SBATCH` lines: text and place by name; the last of repeated options
    counts.

    ignored  the first line behind a command
    """

    options: dict[str, tuple[str, Place]]
    ignored: Place | None = None

    def number(self, name: str) -> tuple[int, Place] | None:
        """An option as an integer (`4`, `4-4`)."""
        if name not in self.options:
            return None
        text, place = self.options[name]
        low, _, high = text.partition("-")
        number = whole(low if high in ("", low) else text)
        return None if number is None or number < 1 else (number, place)

    @property
    def devices_per_node(self) -> tuple[int, Place] | None:
        """Accelerators per node, from --gpus-per-node or --gres."""
        for name in ("--gpus-per-node", "--gres"):
            if name in self.options:
                text, place = self.options[name]
                for part in text.split(","):
                    plain = whole(part.rsplit(":", 1)[-1]) if name == "--gpus-per-node" else None
                    found = _GPUS.fullmatch(part.strip())
                    if plain is None and found and found["count"]:
                        plain = int(found["count"])
                    if plain:
                        return plain, place
        return None

    @property
    def device_kind(self) -> tuple[str, Place] | None:
        """The type of accelerator in --gres or --gpus-per-node (`gpu:a100:8`)."""
        for name in ("--gpus-per-node", "--gres"):
            if name in self.options:
                text, place = self.options[name]
                kind = re.match(r"(?:gpus?:)?([A-Za-z][\w.-]*):\d+$", text.strip())
                if kind and kind[1].lower() not in ("gpu", "gpus"):
                    return kind[1], place
        text, place = self.options.get("--constraint", ("", Place("", 0)))
        plain = re.sub(r"[\"'\[\]]", "", text)
        return (plain, place) if _KIND.match(plain) else None

    @property
    def variables(self) -> dict[str, str]:
        """The variables that Slurm sets from the header (sbatch manual, OUTPUT ENVIRONMENT
        VARIABLES)."""
        found: dict[str, str] = {}
        nodes = self.number("--nodes")
        per_node = self.number("--ntasks-per-node")
        tasks = self.number("--ntasks")
        gpus = self.devices_per_node
        if nodes:
            found |= {"SLURM_NNODES": str(nodes[0]), "SLURM_JOB_NUM_NODES": str(nodes[0])}
        if per_node:
            found["SLURM_NTASKS_PER_NODE"] = str(per_node[0])
        count = tasks[0] if tasks else nodes[0] * per_node[0] if nodes and per_node else None
        if count:
            found |= {"SLURM_NTASKS": str(count), "SLURM_NPROCS": str(count)}
        if gpus:
            found |= {"SLURM_GPUS_ON_NODE": str(gpus[0]), "SLURM_GPUS_PER_NODE": str(gpus[0])}
        return found


def slurm_header(name: str, text: str) -> SlurmHeader:
    """The header of a script, up to its first command."""
    options: dict[str, tuple[str, Place]] = {}
    ignored, is_body = None, False
    for number, line in enumerate(without_place_marks(text).split("\n"), 1):
        stripped = line.strip()
        is_body |= bool(stripped) and not stripped.startswith("#")
        if is_body:
            if "<<" in stripped:
                break  # the header of another script
            if ignored is None and line.startswith("#SBATCH"):
                ignored = Place(name, number)
            continue
        found = _LINE.match(stripped)
        if not found:
            continue
        try:
            words = shlex.split(found[1], comments=True)
        except ValueError:
            words = found[1].split()
        while words:
            word = words.pop(0)
            option, equals, value = word.partition("=")
            if re.fullmatch(r"-[A-Za-z]\S+", word) and not word.startswith("--"):
                option, equals, value = word[:2], "=", word[2:].lstrip("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
            options[_SHORT.get(option, option)] = (value, Place(name, number))
    return SlurmHeader(options=options, ignored=ignored)
