"""`Exported`: a plan in the options of one framework, and the parts that these do not express."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file of the folder, its path from there."""

    path: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Unexpressed:
    """A decision of the plan that the target cannot express.

    option    the planned option
    planned, written   the plan's value, and the value in the exported folder
    why       reason, naming the option that the target does not have
    change    fields of TrainingRun that differ from the planned run; None if the cost model does
              not distinguish the two
    """

    option: str
    planned: str
    written: str
    why: str
    change: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan in the options of one target.

    arguments   of the program, one line of the script each
    program     the program to run on every device or, with `per_node`, once on every node
    files       in addition to the script that runs it
    needs       requirements such as packages, one sentence each
    fill_in     values that only the user knows, one sentence each
    imports_from_start   whether the program imports modules of the folder where the job is started
    environment variables that the run needs
    """

    program: str
    arguments: tuple[str, ...] = ()
    files: tuple[ExportedFile, ...] = ()
    unexpressed: tuple[Unexpressed, ...] = ()
    needs: tuple[str, ...] = ()
    fill_in: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    per_node: bool = False
    imports_from_start: bool = False
