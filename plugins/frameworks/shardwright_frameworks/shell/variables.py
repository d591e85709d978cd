"""`Scope`: the variables of a script, and their values after undecided branches."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright_frameworks.shell.text_marks import (
    Place,
    UnknownValue,
    Word,
    is_unknown,
    place_mark,
    placed_pieces,
    unknown_mark,
    unknown_numbers,
    without_place_marks,
    without_unknowns,
)
from shardwright_frameworks.shell.tokens import Reference

# Set by Slurm, torchrun, mpirun or a cluster's job controller when a job runs.
_RUNTIME = ("SLURM_", "OMPI_", "PMI_", "PBS_", "LSB_", "JOB_COMPLETION", "VC_", "PET_")
_RUNTIME_NAMES = frozenset({"RANK", "LOCAL_RANK", "HOSTNAME", "RANDOM", "BASHPID", "UID"})
# Kinds of unknown values in whose place a default counts, as in `${1:-8}`.
DEFAULTED = ("unset", "runtime", "argument")
# Commands that start another one with the same ranks and options.
_WRAPPERS = ("taskset", "numactl", "nice", "ionice", "nohup", "stdbuf", "time", "timeout", "env")


@dataclass(frozen=True, slots=True)
class Variable:
    """A text, an array of words, or a table of texts, and where it was set."""

    text: str
    place: Place
    words: tuple[Word, ...] | None = None
    exported: bool = False
    table: Mapping[str, str] | None = None

    @property
    def value(self) -> tuple[str, ...]:
        """The text, or the array's words, without the marks of their lines in the script."""
        texts = [self.text] if self.words is None else [word.text for word in self.words]
        return tuple(without_place_marks(text) for text in texts)


@dataclass(slots=True)
class Scope:
    """Variables and arguments of a script.

    unknowns    unknown values referred to in texts, shared by all scopes of one reading
    references  references in texts, shared in the same way
    optional    files whose existence the script tests, shared in the same way
    called      whether the arguments come from a caller in the files
    ended       `exit`, `return`, `break` or `continue`, once one was read
    output      the text printed by a command, if the files contain it
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    arguments: tuple[Word, ...] = ()
    unknowns: list[UnknownValue] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    script: str = ""
    called: bool = False
    ended: str = ""
    output: Callable[[str, Scope], str | None] = lambda command, scope: None

    def copy(self) -> Scope:
        """A scope with the same variables."""
        return replace(self, variables=dict(self.variables))

    def unknown(self, kind: str, name: str, place: Place) -> str:
        """The mark of a new unknown value."""
        value = UnknownValue(kind, name, place)
        if value in self.unknowns[-50:]:
            return unknown_mark(len(self.unknowns) - 1 - self.unknowns[::-1].index(value))
        self.unknowns.append(value)
        return unknown_mark(len(self.unknowns) - 1)

    def kinds(self, text: str) -> tuple[str, ...]:
        """The kinds of the unknown values in a text."""
        return tuple(self.unknowns[number].kind for number in unknown_numbers(text))

    def is_defaulted(self, text: str) -> bool:
        """Whether a text is an unknown value for which a default is used."""
        return is_unknown(text) and self.kinds(text)[0] in DEFAULTED

    def unset(self, name: str, place: Place) -> str:
        """The value of a variable or argument that is not set in the files."""
        if name.startswith("$"):
            return self.unknown("argument", name, place)
        if name == "PWD":
            return "."
        runtime = name in _RUNTIME_NAMES or name.startswith(_RUNTIME)
        return self.unknown("runtime" if runtime else "unset", name, place)

    def text_of(self, name: str) -> str | None:
        """A variable's text, for an array its first word; None if it is not set."""
        found = self.variables.get(name)
        if found is None or found.words is None:
            return None if found is None else found.text
        return found.words[0].text if found.words else ""

    def assign(self, name: str, text: str, place: Place, *, add: bool = False) -> None:
        """Set a variable, or append to it (`NAME+=`)."""
        old = self.variables.get(name)
        if add and old is not None and old.words is None:
            text, place = old.text + text, old.place
        self.variables[name] = Variable(text, place, exported=old is not None and old.exported)

    def assign_words(
        self, name: str, words: tuple[Word, ...], place: Place, *, add: bool = False
    ) -> None:
        """Set an array, or append to it."""
        old = self.variables.get(name)
        if add and old is not None:
            before = old.words if old.words is not None else (Word(old.text, old.place),)
            words = (*before, *words)
        self.variables[name] = Variable("", place, words=words)

    def export(self, name: str) -> None:
        """Export a variable to the commands of the script."""
        if name in self.variables:
            self.variables[name] = replace(self.variables[name], exported=True)

    def exported(self) -> dict[str, Variable]:
        """The exported variables."""
        return {name: each for name, each in self.variables.items() if each.exported}


def merge(before: Scope, outcomes: Sequence[Scope], place: Place, kind: str = "branch") -> None:
    """Set the variables of a scope to the values common to all outcomes of a condition.

    Other variables are unknown. Options that only some outcomes add to a list of options are kept
    with an unknown value.
    """
    names = sorted({name for each in outcomes for name in each.variables})
    for name in names:
        values = [each.variables.get(name) for each in outcomes]
        before.variables[name] = _merged(name, values, before, place, kind)


def _merged(
    name: str, values: Sequence[Variable | None], scope: Scope, place: Place, kind: str
) -> Variable:
    known = [each for each in values if each is not None]
    given = [each for each in known if each.words is not None or not _is_argument(each, scope)]
    first = known[0]
    if len(known) == len(values) and all(each.value == first.value for each in known):
        return first
    if not given and len(known) < len(values):
        return first
    shortest = min(known, key=lambda each: len(each.value))
    if len(known) == len(values) and all(_wraps(each, shortest) for each in known):
        return shortest
    begins = {_beginning(each) for each in known}
    if begins == {()} or (len(begins) == 1 and len(known) == len(values)):
        return _options_merged(name, known, len(known) < len(values), scope, place, kind)
    return Variable(scope.unknown(kind, name, place), place)


def _wraps(variable: Variable, inner: Variable) -> bool:
    """Whether an array is a command, or that behind a wrapper: `("${COMMAND[@]}")`,
    `(taskset -c 0-7 "${COMMAND[@]}")`."""
    both = variable.words is not None and bool(inner.words)
    before = variable.value[: -len(inner.value)] if both else ("",)
    same = both and variable.value[len(before) :] == inner.value
    return same and (not before or before[0] in _WRAPPERS)


def _is_argument(variable: Variable, scope: Scope) -> bool:
    return is_unknown(variable.text) and scope.kinds(variable.text)[0] == "argument"


def _beginning(variable: Variable) -> tuple[str, ...]:
    """The words before the first option: those of a command, or a value that is no list."""
    words = itertools.takewhile(lambda word: not _begins_option(word), _words_of(variable))
    return tuple(word.plain for word in words)


def _begins_option(word: Word) -> bool:
    return re.match(r"-|\+{0,2}[\w./-]+=", word.plain) is not None


def _words_of(variable: Variable) -> tuple[Word, ...]:
    """The words of an array or text; a word with an option and its values is split at blanks."""
    words = variable.words
    if words is None:
        words = (Word(variable.text, variable.place),)
    found: list[Word] = []
    for word in words:
        if variable.words is not None and not word.plain.lstrip().startswith("-"):
            found.append(word)
            continue
        for piece, place in placed_pieces(word.text, word.place):
            found += (Word(one, place) for one in piece.split())
    return tuple(found)


def _options_of(words: Sequence[Word]) -> dict[tuple[str, ...], tuple[Word, ...]]:
    """The words of each option with its values, by their texts."""
    options: list[list[Word]] = []
    for word in words:
        if _begins_option(word) or not options:
            options.append([])
        options[-1].append(word)
    return {tuple(word.plain for word in option): tuple(option) for option in options}


def _options_merged(
    name: str, known: Sequence[Variable], may_be_unset: bool, scope: Scope, place: Place, kind: str
) -> Variable:
    """The options that all lists have, and the others with an unknown value."""
    lists = [_options_of(_words_of(each)) for each in known]
    if may_be_unset:
        lists.append({})
    words: dict[tuple[str, ...], tuple[Word, ...]] = {}
    for option in [option for each in lists for option in each.items()]:
        texts, written = option
        if not all(texts in each for each in lists):
            first = written[0].plain.partition("=")[0]
            shown = without_unknowns(" ".join(texts))
            value = scope.unknown(kind, f"`{shown}`", written[0].place)
            texts, written = (first,), (Word(f"{first}={value}", written[0].place),)
        words.setdefault(texts, written)
    merged = tuple(word for option in words.values() for word in option)
    exported = known[0].exported
    if any(each.words is not None for each in known):
        return Variable("", place, words=merged, exported=exported)
    text = " ".join(place_mark(word.place) + word.text for word in merged)
    return Variable(text, place, exported=exported)
