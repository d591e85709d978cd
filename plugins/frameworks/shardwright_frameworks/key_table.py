"""`KeyTable`: a framework whose files have one key for each field of a run. One table makes its
reader and its writer; `register` adds both, so that `import`, `export` and `check` know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import Reader, collect_keys
from shardwright_frameworks.exports.agreement import planned_values
from shardwright_frameworks.exports.targets.targets import TARGETS, Target
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.options import unexpressed_options
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.exports.values.yaml_text import yaml_text
from shardwright_frameworks.imported_run import Value
from shardwright_frameworks.reading.keyed_frameworks import (
    FRAMEWORKS,
    KeyedFramework,
    KeyedSource,
)

CONFIG = "config.yaml"
# Fields that follow from others.
_FOLLOWING = ("devices", "dp", "optimizer_offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTable:
    """One framework.

    name, words  name in commands, and in texts
    section      of the file; other frameworks' files do not have it
    program      program in the command that starts the run
    keys         key in the section -> (field of an import, reader of its value)
    """

    name: str
    words: str
    section: str
    program: str
    keys: Mapping[str, tuple[str, Reader]]

    def recognizes(self, file: KeyedFile) -> bool:
        """Whether a file is one of the framework."""
        return any(file.has(self.section, key) for key in self.keys)

    def collect(self, source: KeyedSource) -> str:
        """Collects the values of a file."""
        dotted = {f"{self.section}.{key}": entry for key, entry in self.keys.items()}
        collect_keys(source.file, source.collected, dotted)
        return self.name

    def export(self, planned: PlannedRun) -> Exported:
        """The plan as a file, with the decisions that have no key."""
        values = planned_values(planned)
        written: dict[str, Value] = {
            key: values[field] for key, (field, _) in self.keys.items() if field in values
        }
        fields = {field for field, _ in self.keys.values()}
        left = [
            Unexpressed(
                option=field,
                planned=str(value),
                written="its default",
                why=f"{self.words} has no key for it",
            )
            for field, value in values.items()
            if field not in fields and field not in _FOLLOWING and not field.startswith("model.")
        ]
        data: Mapping[str, Any] = {self.section: written}
        return Exported(
            program=self.program,
            arguments=(f"--config {CONFIG}",),
            files=(ExportedFile(path=CONFIG, text=yaml_text(data)),),
            unexpressed=(*left, *unexpressed_options(planned.run, self.name, can=())),
        )


def register(table: KeyTable) -> None:
    """Adds a framework to the readable and writable ones."""
    FRAMEWORKS[table.name] = KeyedFramework(recognizes=table.recognizes, collect=table.collect)
    TARGETS[table.name] = Target(words=table.words, export=table.export, config=CONFIG)
