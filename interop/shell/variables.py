"""`Scope`: the variables of a running script, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from interop.shell.text_places import Hole, Place, Word, hole_mark, hole_numbers, without_lines

# Set by Slurm, torchrun, mpirun or a cluster's job controller when a job runs.
_OF_THE_RUN = ("SLURM_", "OMPI_", "PMI_", "PBS_", "LSB_", "JOB_COMPLETION", "VC_", "PET_")
_OF_EVERY_RANK = frozenset({"RANK", "LOCAL_RANK", "HOSTNAME", "RANDOM", "BASHPID", "UID"})


@dataclass(frozen=True, slots=True)
class Variable:
    """A text, an array of words (`words`), or words by key (`table`), and where it was set."""

    text: str
    place: Place
    words: tuple[Word, ...] | None = None
    table: dict[str, str] | None = None
    exported: bool = False


@dataclass(slots=True)
class Scope:
    """Variables, positional arguments and the holes that texts refer to.

    holes   shared by all scopes of one reading
    called  the arguments are those of a caller in the files
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    holes: list[Hole] = field(default_factory=list)
    script: str = ""
    called: bool = False

    def copy(self) -> Scope:
        """The same, to be changed alone."""
        return Scope(dict(self.variables), self.arguments, self.holes, self.script, self.called)

    def hole(self, kind: str, name: str, place: Place) -> str:
        """The text that stands for a value nobody knows."""
        hole = Hole(kind, name, place)
        if hole in self.holes[-50:]:
            return hole_mark(len(self.holes) - 1 - self.holes[::-1].index(hole))
        self.holes.append(hole)
        return hole_mark(len(self.holes) - 1)

    def unset(self, name: str, place: Place) -> str:
        """What a variable without a value is: empty in a shell, but not known to us."""
        if name.startswith("$"):
            return self.hole("argument", name, place)
        if name == "PWD":
            return "."
        runtime = name in _OF_EVERY_RANK or name.startswith(_OF_THE_RUN)
        return self.hole("runtime" if runtime else "unset", name, place)

    def assign(self, name: str, text: str, place: Place, *, add: bool = False) -> None:
        """Sets, or (`NAME+=`) lengthens, a variable."""
        old = self.variables.get(name)
        exported = old is not None and old.exported
        if add and old is not None and old.words is not None:
            first, *rest = old.words or (Word("", place),)
            words = (replace(first, text=first.text + text), *rest)
            self.variables[name] = replace(old, words=words)
            return
        if add and old is not None:
            text = old.text + text
            place = old.place
        self.variables[name] = Variable(text, place, exported=exported)

    def assign_words(
        self, name: str, words: tuple[Word, ...], place: Place, *, add: bool = False
    ) -> None:
        """Sets, or lengthens, an array."""
        old = self.variables.get(name)
        if add and old is not None:
            before = old.words if old.words is not None else (Word(old.text, old.place),)
            words = (*before, *words)
        self.variables[name] = Variable("", place, words=words)

    def export(self, name: str, place: Place) -> None:
        """The variable reaches the commands that the script starts."""
        old = self.variables.get(name)
        if old is not None:
            self.variables[name] = replace(old, exported=True)

    def inherited(self) -> dict[str, Variable]:
        """The variables that a command started from here sees."""
        return {name: v for name, v in self.variables.items() if v.exported}

    def text_of(self, name: str) -> str | None:
        """A variable's text, that of an array's first word; None where it is not set."""
        found = self.variables.get(name)
        if found is None:
            return None
        if found.words is not None:
            return found.words[0].text if found.words else ""
        return found.text


def merged(first: Scope, second: Scope, place: Place) -> Scope:
    """The scope behind a condition that nobody can decide: what both branches agree on.

    Of arrays and texts that one branch only lengthens the common beginning is kept.
    """
    found: dict[str, Variable] = {}
    for name in first.variables.keys() | second.variables.keys():
        one, other = first.variables.get(name), second.variables.get(name)
        if one is None or other is None:
            known = one or other
            assert known is not None
            found[name] = Variable(first.hole("branch", name, place), place)
            continue
        if one == other or (
            one.words is None
            and other.words is None
            and without_lines(one.text) == without_lines(other.text)
        ):
            found[name] = one
        elif one.words is not None and other.words is not None:
            found[name] = replace(one, words=_common(one.words, other.words))
        elif one.text and other.text.startswith(one.text):
            found[name] = one
        elif other.text and one.text.startswith(other.text):
            found[name] = other
        elif one.words is None and other.words is None and _is_argument(other, first):
            found[name] = one
        elif one.words is None and other.words is None and _is_argument(one, first):
            found[name] = other
        else:
            found[name] = Variable(first.hole("branch", name, place), place)
    scope = first.copy()
    scope.variables = found
    return scope


def _is_argument(variable: Variable, scope: Scope) -> bool:
    """Whether an argument of the script alone is its value: what stands beside it is the default,
    as in `${1:-default}`."""
    numbers = hole_numbers(variable.text)
    alone = len(numbers) == 1 and without_lines(variable.text) == hole_mark(numbers[0])
    return alone and scope.holes[numbers[0]].kind == "argument"


def _common(one: tuple[Word, ...], other: tuple[Word, ...]) -> tuple[Word, ...]:
    kept = []
    for left, right in zip(one, other, strict=False):
        if left.text != right.text:
            break
        kept.append(left)
    return tuple(kept)
