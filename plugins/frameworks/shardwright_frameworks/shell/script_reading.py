"""The results of reading a script: `Command`, `ScriptReading`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shardwright_frameworks.shell.text_marks import Place, UnknownValue, Word
from shardwright_frameworks.shell.variables import Scope, Variable

# Added to the name of a script that is a here-document of another.
HERE = " (here-document)"


@dataclass(frozen=True, slots=True)
class Command:
    """A program that the script starts.

    words        its name and arguments
    environment  variables set only for it, and exported ones
    script       the file that starts it
    text         name of the text in that file which starts it
    """

    words: tuple[Word, ...]
    place: Place
    script: str
    environment: Mapping[str, Variable]
    text: str = ""


@dataclass(slots=True)
class ScriptReading:
    """The result of reading a script.

    commands  in their order
    scopes    the variables at the end, by file
    cycles    files that source each other
    sourced   sourced files
    missing   sourced files that are not in the folder
    """

    unknowns: list[UnknownValue] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    scopes: dict[str, Scope] = field(default_factory=dict)
    cycles: list[tuple[Place, str]] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    missing: list[tuple[Place, str]] = field(default_factory=list)
