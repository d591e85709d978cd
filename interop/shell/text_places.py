"""Where a text of a script stands, and what of it nobody knows: `Place`, `Word`, `Hole`.

Both travel inside the text itself as marks of Unicode's private use area, so that joining, cutting
and splitting keep them: a hole stands for a value that only a run would tell, a line mark says in
which line the rest of a text of several lines was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HOLE = re.compile("\ue000(\\d+)\ue001")
_LINE = re.compile("\ue002(\\d+)\ue003")
_MARKS = re.compile("[\ue000-\ue003]")


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of a file; the file by its name in the folder that is read.

    >>> str(Place("train.sh", 12))
    'train.sh:12'
    """

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command after expansion, and where it was written."""

    text: str
    place: Place

    @property
    def plain(self) -> str:
        """The text without line marks; holes stay."""
        return without_lines(self.text)


@dataclass(frozen=True, slots=True)
class Hole:
    """A value that the files do not tell.

    kind  `argument`: one that the script is started with; `unset`: a variable that nothing sets;
          `required`: one that the script ends without (`${NAME:?}`);
          `runtime`: one that a scheduler or launcher sets; `output`: what a command would print;
          `branch`: set one way or the other by a condition that the files do not decide;
          `arithmetic`: an expression that cannot be computed
    name  the variable, command or expression
    """

    kind: str
    name: str
    place: Place

    @property
    def words(self) -> str:
        """Why there is no value, in words."""
        said = {
            "argument": f"{self.name} is an argument of the script, which no file gives",
            "unset": f"the variable {self.name} is not set in the files",
            "required": f"the variable {self.name} has to be set by who starts the script",
            "runtime": f"{self.name} is set by the scheduler or launcher, not in the files",
            "output": f"the output of `{self.name}`, which is not run",
            "branch": f"{self.name} depends on a condition that the files do not decide",
            "arithmetic": f"`{self.name}` cannot be computed",
        }
        return said[self.kind]


def hole_mark(number: int) -> str:
    """The mark of the hole with that number."""
    return f"\ue000{number}\ue001"


def line_mark(line: int) -> str:
    """What follows was written in that line."""
    return f"\ue002{line}\ue003"


def without_marks(text: str) -> str:
    """A script's own text, in which the marks have no meaning."""
    return _MARKS.sub("", text)


def without_lines(text: str) -> str:
    """The text without line marks."""
    return _LINE.sub("", text)


def without_holes(text: str) -> str:
    """The text as a shell has it where unset variables are empty."""
    return _HOLE.sub("", without_lines(text))


def hole_numbers(text: str) -> tuple[int, ...]:
    """The holes of a text, in order."""
    return tuple(int(number) for number in _HOLE.findall(text))


def placed_pieces(text: str, place: Place) -> list[tuple[str, Place]]:
    """The text cut at its line marks, each piece with its place."""
    pieces, at, begin = [], place, 0
    for mark in _LINE.finditer(text):
        pieces.append((text[begin : mark.start()], at))
        at, begin = Place(place.file, int(mark[1])), mark.end()
    pieces.append((text[begin:], at))
    return [piece for piece in pieces if piece[0]]
