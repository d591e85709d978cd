"""Places and unknown values inside a script's text: `Place`, `Word`, `UnknownValue`.

Both are marked inside the text by characters of Unicode's private use area, so that joining,
cutting and splitting keep them: an unknown value is replaced by a mark with its number, and a
place mark gives the file and line of the text after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

_UNKNOWN = re.compile("\ue000(\\d+)\ue001")
PLACE_MARK = re.compile("\ue002([^\ue003]*):(\\d+)\ue003")
_MARKS = re.compile("[\ue000-\ue1ff]")


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
        """The text without place marks; marks of unknown values stay."""
        return without_place_marks(self.text)


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value that is not in the files.

    kind  `argument`: an argument of the script; `unset`: a variable that nothing sets;
          `required`: a variable without which the script ends (`${NAME:?}`);
          `runtime`: set by a scheduler or launcher; `output`: printed by a command;
          `branch`, `loop`: set in branches or loops, which are not followed;
          `expression`: an arithmetic or parameter expression that is not computed;
          `script`: set by a script that the imported file does not name
    name  the variable, command or expression
    """

    kind: str
    name: str
    place: Place

    @property
    def reason(self) -> str:
        """Why there is no value."""
        reasons = {
            "argument": f"{self.name} is an argument of the script, which no file gives",
            "unset": f"the variable {self.name} is not set in the files",
            "required": f"the variable {self.name} has to be set by the user who starts the script",
            "runtime": f"{self.name} is set by the scheduler or launcher, not in the files",
            "output": f"the output of `{self.name}`, which is not run",
            "branch": f"{self.name} depends on a condition, which is not followed",
            "loop": f"{self.name} changes in a loop, which is not followed",
            "expression": f"`{self.name}` is not computed",
            "script": f"a script sets {self.name}; import the one that starts the run",
        }
        return f"{reasons[self.kind]} ({self.place})"


def unknown_mark(number: int) -> str:
    """The mark of the unknown value with that number."""
    return f"\ue000{number}\ue001"


def place_mark(place: Place) -> str:
    """The text after this mark was written there."""
    return f"\ue002{quote(place.file, safe='')}:{place.line}\ue003"


def place_of(mark: re.Match[str]) -> Place:
    """The place encoded in a place mark."""
    return Place(unquote(mark[1]), int(mark[2]))


def without_marks(text: str) -> str:
    """A file's text without the characters used as marks."""
    return _MARKS.sub("", text)


def without_place_marks(text: str) -> str:
    """The text without place marks."""
    return PLACE_MARK.sub("", text)


def without_unknowns(text: str) -> str:
    """The text with unknown values as empty ones, without place marks."""
    return _UNKNOWN.sub("", without_place_marks(text))


def after_unknowns(text: str) -> str:
    """The part of a text after its last unknown value, without place marks."""
    return without_place_marks(_UNKNOWN.split(text)[-1])


def end_of_path(text: str) -> str | None:
    """The end of a path with an unknown beginning (`$HOME/models/Qwen3-8B`); None for other
    texts."""
    end = after_unknowns(text)
    is_path = end.startswith("/") and re.search("[A-Za-z]", end) is not None
    return end.lstrip("/") if is_path and _UNKNOWN.search(text) else None


def unknown_numbers(text: str) -> tuple[int, ...]:
    """The numbers of the unknown values in a text, in order."""
    return tuple(int(number) for number in _UNKNOWN.findall(text))


def is_unknown(text: str) -> bool:
    """Whether a text is exactly one unknown value."""
    return _UNKNOWN.fullmatch(without_place_marks(text)) is not None


def placed_pieces(text: str, place: Place) -> list[tuple[str, Place]]:
    """The text cut at its place marks, each piece with its place."""
    pieces, current, begin = [], place, 0
    for mark in PLACE_MARK.finditer(text):
        pieces.append((text[begin : mark.start()], current))
        current, begin = place_of(mark), mark.end()
    pieces.append((text[begin:], current))
    return [piece for piece in pieces if piece[0]]
