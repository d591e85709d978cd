"""The tokens of a shell script: words as written, operators, arrays, here-documents.

A subset of the POSIX shell's and bash's token rules (POSIX.1-2017, Shell Command Language, 2.3;
bash manual 5.2, 3.1 and 6.7). What they refuse is read as far as it goes: examples hold
placeholders such as `<partition>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPERATORS = (
    "&>>", "<<<", "<<-", "&&", "||", ";;", "|&", "&>", "<<", ">>", ">&", "<&", ">|",
    ";", "|", "&", "(", ")", "<", ">",
)  # fmt: skip
REDIRECTIONS = frozenset({"&>>", "<<<", "<<-", "&>", "<<", ">>", ">&", "<&", ">|", "<", ">"})
# A line mark (text_places.py) stands at the beginning of a line.
_ENDS_WORD = frozenset(" \t\n;&|<>()\ue002")
_LINE_MARK = re.compile("\ue002(\\d+)\ue003")
_CONTINUED = re.compile(r"\\[ \t]*\n")
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=$")


@dataclass(frozen=True, slots=True)
class Token:
    """One token.

    kind   `word`, `op`, `newline`, `array` (`NAME=(...)`: text is `NAME=`), `arith` (`((...))`)
           or `here` (a here-document: text is its body, `quoted` where nothing in it is expanded)
    items  an array's words
    """

    kind: str
    text: str
    line: int
    items: tuple[Token, ...] = ()
    quoted: bool = False


def tokens(text: str, line: int = 1) -> list[Token]:
    """The tokens of a script that begins in `line`, its last a newline."""
    return _Lexer(text.replace("\r\n", "\n").replace("\r", "\n"), line).all()


def matching(text: str, begin: int, opening: str, closing: str) -> int:
    """Index behind the bracket that closes the one at `begin`; the text's end where none does."""
    depth, at = 0, begin
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
            continue
        if char == "'":
            at = _behind(text, "'", at + 1)
            continue
        if char == '"':
            at = double_quoted_end(text, at)
            continue
        if char == "`":
            at = backquote_end(text, at)
            continue
        if char == opening:
            depth += 1
        elif char == closing:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


def backquote_end(text: str, begin: int) -> int:
    """Index behind the closing backquote."""
    at = begin + 1
    while at < len(text) and text[at] != "`":
        at += 2 if text[at] == "\\" else 1
    return min(at + 1, len(text))


def double_quoted_end(text: str, begin: int) -> int:
    """Index behind the closing double quote."""
    at = begin + 1
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 2
        elif char == '"':
            return at + 1
        elif char == "$" and text[at + 1 : at + 2] == "(":
            at = matching(text, at + 1, "(", ")")
        elif char == "$" and text[at + 1 : at + 2] == "{":
            at = matching(text, at + 1, "{", "}")
        elif char == "`":
            at = backquote_end(text, at)
        else:
            at += 1
    return len(text)


def _behind(text: str, what: str, begin: int) -> int:
    found = text.find(what, begin)
    return len(text) if found < 0 else found + len(what)


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self._text, self._at, self._line = text, 0, line
        self._waiting: list[tuple[str, bool, bool]] = []  # here-documents: end, quoted, tabs

    def all(self) -> list[Token]:
        found: list[Token] = []
        while self._at < len(self._text):
            token = self._next()
            if token is None:
                continue
            found.append(token)
            if token.kind == "op" and token.text in ("<<", "<<-"):
                self._expect_document(token.text == "<<-")
            if token.kind == "newline":
                found += self._documents()
        found.append(Token("newline", "\n", self._line))
        return found + self._documents()

    def _next(self) -> Token | None:
        text, at, line = self._text, self._at, self._line
        char = text[at]
        if char in " \t":
            self._at += 1
            return None
        marked = _LINE_MARK.match(text, at)
        if marked:
            self._at, self._line = marked.end(), int(marked[1])
            return None
        continued = _CONTINUED.match(text, at)
        if continued:
            self._go(continued.end())
            return None
        if char == "\n":
            self._go(at + 1)
            return Token("newline", "\n", line)
        if char == "#":
            end = text.find("\n", at)
            self._at = len(text) if end < 0 else end
            return None
        if text.startswith("((", at):
            end = matching(text, at, "(", ")")
            if text[end - 2 : end] == "))":
                self._go(end)
                return Token("arith", text[at + 2 : end - 2], line)
        for operator in _OPERATORS:
            if text.startswith(operator, at):
                self._at += len(operator)
                return Token("op", operator, line)
        return self._word()

    def _go(self, end: int) -> None:
        self._line += self._text.count("\n", self._at, end)
        self._at = end

    def _word(self) -> Token | None:
        text, begin, line = self._text, self._at, self._line
        at = begin
        while at < len(text) and text[at] not in _ENDS_WORD:
            char = text[at]
            if char == "\\":
                at += 2
            elif char == "'":
                at = _behind(text, "'", at + 1)
            elif char == '"':
                at = double_quoted_end(text, at)
            elif char == "`":
                at = backquote_end(text, at)
            elif char == "$" and text[at + 1 : at + 2] == "(":
                at = matching(text, at + 1, "(", ")")
            elif char == "$" and text[at + 1 : at + 2] == "{":
                at = matching(text, at + 1, "{", "}")
            elif char == "$" and text[at + 1 : at + 2] == "'":
                at = _behind(text, "'", at + 2)
            else:
                at += 1
        at = min(at, len(text))
        word = text[begin:at]
        if at < len(text) and text[at] == "(" and _ARRAY.search(word):
            self._go(at + 1)
            return self._array(word, line)
        self._go(at)
        if word.isdigit() and at < len(text) and text[at] in "<>":
            return None  # the descriptor of a redirection
        return Token("word", word, line)

    def _array(self, name: str, line: int) -> Token:
        items: list[Token] = []
        while self._at < len(self._text):
            if self._text[self._at] == ")":
                self._at += 1
                break
            token = self._next()
            if token is not None and token.kind == "word":
                items.append(token)
        return Token("array", name, line, tuple(items))

    def _expect_document(self, tabs: bool) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        word = self._word()
        if word is not None:
            end = re.sub(r"[\"'\\]", "", word.text)
            self._waiting.append((end, end != word.text, tabs))

    def _documents(self) -> list[Token]:
        found = []
        for end, quoted, tabs in self._waiting:
            line, kept = self._line, []
            while self._at < len(self._text):
                stop = _behind(self._text, "\n", self._at)
                one = self._text[self._at : stop].rstrip("\n")
                self._go(stop)
                one = one.lstrip("\t") if tabs else one
                if one == end:
                    break
                kept.append(one)
            body = "".join(f"{one}\n" for one in kept)
            found.append(Token("here", body, line, quoted=quoted))
        self._waiting = []
        return found
