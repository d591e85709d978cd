"""What a condition of a script comes to: true, false, or None where the files do not tell.

`[ ... ]`, `test` and `[[ ... ]]` (POSIX.1-2017, test; bash manual 5.2, 6.4). A variable that
nothing sets is empty, as it is when the script is started as it stands; files are not looked for.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from interop.shell.arithmetic import ArithmeticFault, evaluate
from interop.shell.text_places import Hole, hole_numbers, without_holes, without_lines

_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_TEXTS = ("=", "==", "!=", "=~", "<", ">")
_FILE_LETTERS = "abcdefghkprstuwxLOGSN"
_OF_FILES = frozenset({f"-{letter}" for letter in _FILE_LETTERS} | {"-nt", "-ot"})


def condition(
    words: Sequence[str], holes: Sequence[Hole], *, patterns: bool = False
) -> bool | None:
    """The truth of a test's words, operators among them.

    holes     what the holes in the words stand for
    patterns  the right of `=` is a pattern, as in `[[ ... ]]`
    """
    reader = _Reader([without_lines(word) for word in words], holes, patterns)
    value = reader.either()
    return value if reader.at == len(reader.words) else None


def negated(value: bool | None) -> bool | None:
    """Not, of three values."""
    return None if value is None else not value


def both(one: bool | None, other: bool | None) -> bool | None:
    """And, of three values."""
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def any_of(one: bool | None, other: bool | None) -> bool | None:
    """Or, of three values."""
    return negated(both(negated(one), negated(other)))


class _Reader:
    def __init__(self, words: list[str], holes: Sequence[Hole], patterns: bool) -> None:
        self.words, self.at = words, 0
        self._holes, self._patterns = holes, patterns

    def _peek(self, ahead: int = 0) -> str:
        place = self.at + ahead
        return self.words[place] if place < len(self.words) else ""

    def either(self) -> bool | None:
        value = self._all()
        while self._peek() in ("||", "-o"):
            self.at += 1
            value = any_of(value, self._all())
        return value

    def _all(self) -> bool | None:
        value = self._one()
        while self._peek() in ("&&", "-a"):
            self.at += 1
            value = both(value, self._one())
        return value

    def _one(self) -> bool | None:
        left = len(self.words) - self.at
        if left <= 0:
            return False
        word = self._peek()
        if word == "!" and left > 1:
            self.at += 1
            return negated(self._one())
        if word == "(" and left > 1:
            self.at += 1
            value = self.either()
            self.at += 1
            return value
        if left >= 3 and (self._peek(1) in _TEXTS or self._peek(1) in _NUMBERS):
            self.at += 3
            return self._compared(word, self.words[self.at - 2], self.words[self.at - 1])
        if word in ("-z", "-n", "-v") and left >= 2:
            self.at += 2
            text = self._text(self.words[self.at - 1])
            if text is None:
                return None
            return (text == "") == (word == "-z")
        if word in _OF_FILES and left >= 2:
            self.at += 2
            return None
        if left >= 3 and self._peek(1) in _OF_FILES:
            self.at += 3
            return None
        self.at += 1
        text = self._text(word)
        return None if text is None else text != ""

    def _text(self, word: str) -> str | None:
        """The text where unset variables are empty; None where another hole is in it."""
        if any(self._holes[n].kind != "unset" for n in hole_numbers(word)):
            return None
        return without_holes(word)

    def _compared(self, one: str, operator: str, other: str) -> bool | None:
        left, right = self._text(one), self._text(other)
        if left is None or right is None:
            return None
        if operator in _NUMBERS:
            if self._patterns:
                left, right = left or "0", right or "0"
            try:
                return bool(_NUMBERS[operator](_number(left), _number(right)))
            except ArithmeticFault:
                return None if left and right else False
        if operator == "=~":
            try:
                return re.search(right, left) is not None if len(left) < 10_000 else None
            except re.error:
                return None
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        same = fnmatch.fnmatchcase(left, right) if self._patterns else left == right
        return same if operator != "!=" else not same


def _number(text: str) -> int:
    def unknown(name: str) -> int:
        raise ArithmeticFault(name)

    return evaluate(text, unknown) if text.strip() else _fault(text)


def _fault(text: str) -> int:
    raise ArithmeticFault(text)
