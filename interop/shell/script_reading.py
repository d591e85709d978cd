"""What reading a script finds: `Command`, `ScriptReading`."""

from __future__ import annotations

from dataclasses import dataclass, field

from interop.shell.text_places import Hole, Place, Word
from interop.shell.variables import Scope, Variable

# Behind the name of a script that is a here-document of another.
HERE = " (here-document)"


@dataclass(frozen=True, slots=True)
class Command:
    """A program that would be started.

    words        its name and arguments
    environment  what is set for it alone, and the exported variables
    decided      false where it stands in a branch that the files do not decide
    script       the file it stands in
    """

    words: tuple[Word, ...]
    place: Place
    script: str
    environment: dict[str, Variable]
    decided: bool = True


@dataclass(slots=True)
class ScriptReading:
    """What reading a script found.

    commands  in their order
    scopes    the variables at the end, by file
    faults    lines that are no commands
    cycles    files that source each other
    sourced   the files that were read
    """

    holes: list[Hole] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    scopes: dict[str, Scope] = field(default_factory=dict)
    faults: list[Place] = field(default_factory=list)
    cycles: list[tuple[Place, str]] = field(default_factory=list)
    sourced: list[str] = field(default_factory=list)
    missing: list[tuple[Place, str]] = field(default_factory=list)
