"""`tokens_of`: the words and operators of a shell script, quotes removed.

The text is first prepared for `shlex`, which cuts it: continued lines are joined, comments dropped,
and everything that begins with `$` or a backquote, and every here-document, is replaced by a
reference to a table. So quotes are removed, but the parts to expand are still known.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from shardwright_frameworks.shell.text_marks import PLACE_MARK, Place, place_mark, place_of

REFERENCE = re.compile("\ue004(\\d+)\ue005")
_OPERATOR_CHARACTERS = ";&|()<>\n"
_OPERATORS = re.compile(r"&>>|&>|>&|<&|>>|>\||<<<|<<|&&|\|\||\|&|;;&|;;|;&|[;&|()<>\n]")
# Characters that mean something to shlex, as others that mean nothing to it.
_HIDDEN = {ord(char): 0xE100 + ord(char) for char in f"{_OPERATOR_CHARACTERS} \t'\"\\#"}
_SHOWN = {hidden: char for char, hidden in _HIDDEN.items()}
_LEADING_MARKS = re.compile(f"(?:{PLACE_MARK.pattern})+")
_NAME = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")
_DOCUMENT = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([\w.!-]+)['\"]?")


@dataclass(frozen=True, slots=True)
class Reference:
    """A `$...`, a backquoted command, or the body of a here-document.

    quoted    in double quotes; of a document: its end is quoted, so nothing in it is expanded
    document  whether it is a here-document
    """

    text: str
    place: Place
    quoted: bool
    document: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A word with marks of references and places, or an operator."""

    text: str
    place: Place
    is_operator: bool = False


def tokens_of(text: str, place: Place, references: list[Reference]) -> list[Token]:
    """The tokens of a script that begins at a place; references are appended to the list."""
    prepared = prepare(text, place, references)
    lexer = shlex.shlex(prepared, posix=True, punctuation_chars=_OPERATOR_CHARACTERS)
    lexer.whitespace, lexer.whitespace_split = " \t\r", True
    lexer.commenters = lexer.escape = ""
    found: list[Token] = []
    for word in lexer:
        if word and all(char in _OPERATOR_CHARACTERS for char in word):
            found += (Token(one, place, True) for one in _OPERATORS.findall(word))
            continue
        leading = _LEADING_MARKS.match(word)
        if leading is not None:
            place = _last_place(word[: leading.end()], place)
        rest = word[leading.end() :] if leading is not None else word
        if rest or leading is None:
            found.append(Token(rest, place))
            place = _last_place(rest, place)
    return found


def shown(text: str) -> str:
    """A token's text with the characters hidden from shlex restored."""
    return text.translate(_SHOWN)


def prepare(
    text: str, place: Place, references: list[Reference], *, is_document: bool = False
) -> str:
    """The text with references, place marks and hidden characters.

    is_document  the text is a here-document: expanded as in double quotes, but quotes are literal
    """
    scanner = _Scanner(text, place, references, is_document)
    while scanner.at < len(text):
        scanner.step()
    if scanner.in_quotes and not is_document:
        scanner.out.append('"')
    return "".join(scanner.out)


def matching(text: str, at: int, opening: str, closing: str) -> int:
    """Index after the bracket that closes the one at `at`; the end of the text if none does."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'":
            end = text.find("'", at + 1)
            at = end if end > 0 else at
        elif char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if not depth:
                return at + 1
        at += 1
    return len(text)


class _Scanner:
    """One pass over a text; `step` reads the element at `at`."""

    def __init__(
        self, text: str, place: Place, references: list[Reference], is_document: bool
    ) -> None:
        self.text, self.file, self.line = text, place.file, place.line
        self.references, self.is_document = references, is_document
        self.at, self.in_quotes = 0, is_document
        self.out: list[str] = [place_mark(place)]
        self._documents: list[tuple[int, re.Match[str]]] = []

    def step(self) -> None:
        char = self.text[self.at]
        if char == "\\":
            self._escape()
        elif char in "$`":
            self._dollar()
        elif char == "\n":
            self._newline()
        elif self.is_document:
            self._take(1, hide=True)
        elif char == '"':
            self.in_quotes = not self.in_quotes
            self._take(1)
        elif self.in_quotes:
            self._take(1, hide=char in _OPERATOR_CHARACTERS or char in "'#")
        elif char == "'":
            self._single_quotes()
        elif char == "#" and (not self.at or self.text[self.at - 1] in " \t\n;(&|\ue003"):
            end = self.text.find("\n", self.at)
            self.at = end if end >= 0 else len(self.text)
        elif char in "<>":
            self._redirection(char)
        elif self.text.startswith("((", self.at) and self.text[self.at - 1 : self.at] in (
            "", " ", "\t", "\n", ";",
        ):  # fmt: skip
            self._refer(matching(self.text, self.at, "(", ")"))
        else:
            self._take(1, hide=char == "#")

    def _take(self, size: int, *, hide: bool = False) -> None:
        text = self.text[self.at : self.at + size]
        self.out.append(text.translate(_HIDDEN) if hide else text)
        self.at += size

    def _mark(self) -> str:
        return place_mark(Place(self.file, self.line))

    def _escape(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            self.line += 1
            self.out.append(self._mark())
        elif (
            self.in_quotes
            and following not in ("$", "`", "\\")
            and (following != '"' or self.is_document)
        ):
            self.out.append(f"\\{following}".translate(_HIDDEN))
        else:
            self.out.append(following.translate(_HIDDEN))
        self.at += 2

    def _single_quotes(self) -> None:
        end = self.text.find("'", self.at + 1)
        body = self.text[self.at + 1 : end if end >= 0 else len(self.text)]
        lines = []
        for number, line in enumerate(body.split("\n")):
            mark = place_mark(Place(self.file, self.line + number)) if number else ""
            lines.append(mark + line.translate(_HIDDEN))
        self.out.append("'" + "\n".translate(_HIDDEN).join(lines) + "'")
        self.line += body.count("\n")
        self.at += len(body) + 2

    def _dollar(self) -> None:
        text, at = self.text, self.at
        if text.startswith("$'", at) and not self.in_quotes:
            self.at += 1
        elif text[at] == "`":
            end = re.compile(r"(?:\\.|[^`\\])*`", re.S).match(text, at + 1)
            self._refer(end.end() if end else len(text))
        elif text.startswith(("$(", "${", "$["), at):
            opening = text[at + 1]
            self._refer(matching(text, at + 1, opening, {"(": ")", "{": "}", "[": "]"}[opening]))
        elif (name := _NAME.match(text, at)) is not None:
            self._refer(name.end())
        else:
            self._take(1)

    def _refer(self, end: int) -> None:
        place = Place(self.file, self.line)
        text = self.text[self.at : end]
        self.out.append(self._reference(Reference(text, place, self.in_quotes)))
        self.line += text.count("\n")
        if "\n" in text:
            self.out.append(self._mark())
        self.at = end

    def _reference(self, reference: Reference) -> str:
        self.references.append(reference)
        return f"\ue004{len(self.references) - 1}\ue005"

    def _redirection(self, char: str) -> None:
        document = _DOCUMENT.match(self.text, self.at)
        if document is not None and not self.text.startswith("<<<", self.at):
            self._documents.append((len(self.references), document))
            mark = self._reference(Reference("", Place(self.file, self.line), False, True))
            self.out.append(f" << {mark} ")
            self.at = document.end()
            return
        if self.text.startswith("(", self.at + 1):
            self._refer(matching(self.text, self.at + 1, "(", ")"))
            return
        # `2>&1`: the digit is no word.
        before = self.text[max(0, self.at - 2) : self.at]
        if before[-1:].isdigit() and (len(before) < 2 or before[0] in " \t"):
            self.out.pop()
        self._take(1)

    def _newline(self) -> None:
        self.at += 1
        self.line += 1
        self.out.append("\n".translate(_HIDDEN) if self.in_quotes else "\n")
        if not self.in_quotes:
            for number, document in self._documents:
                self._read_document(number, document)
            self._documents = []
        self.out.append(self._mark())

    def _read_document(self, number: int, document: re.Match[str]) -> None:
        """The lines up to the one that ends a here-document."""
        lines: list[str] = []
        place = Place(self.file, self.line)
        while self.at < len(self.text):
            end = self.text.find("\n", self.at)
            end = len(self.text) if end < 0 else end
            line = self.text[self.at : end]
            self.at, self.line = min(end + 1, len(self.text)), self.line + 1
            if (line.lstrip("\t") if document[1] else line).rstrip("\r") == document[3]:
                break
            lines.append(line.lstrip("\t") if document[1] else line)
        body = "".join(f"{line}\n" for line in lines)
        self.references[number] = Reference(body, place, bool(document[2]), True)


def _last_place(text: str, place: Place) -> Place:
    marks: Iterator[re.Match[str]] = PLACE_MARK.finditer(text)
    for mark in marks:
        place = place_of(mark)
    return place
