"""Words of a script as the words of a command: parameters, quotes, splitting (POSIX.1-2017, 2.6;
bash manual 5.2, 3.5). Nothing is run: a command in a word is answered where its output follows from
its text alone (shell/substitution.py), else by a hole. Files are not globbed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from interop.shell.arithmetic import ArithmeticFault, evaluate
from interop.shell.lexer import Token, backquote_end, double_quoted_end, matching
from interop.shell.parameter import OPERATOR, operated
from interop.shell.text_places import (
    Place,
    Word,
    hole_numbers,
    line_mark,
    placed_pieces,
    without_holes,
    without_lines,
)
from interop.shell.variables import Scope

Substitute = Callable[[str, Scope, Place], str]
"""Text of a command, variables, place -> its output, marks in it."""

_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BRACED = re.compile(
    r"(?P<name>[A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(?P<index>[^\]]*)\])?(?P<rest>.*)", re.S
)
_MOST_TEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a word: text that splits at blanks or not, or whole words (`"${A[@]}"`)."""

    text: str
    place: Place
    splits: bool = False
    words: tuple[Word, ...] | None = None


def expand_words(raw: tuple[Token, ...], scope: Scope, run: Substitute) -> list[Word]:
    """The words that those of a command become."""
    found: list[Word] = []
    for token in raw:
        found += expand(token.text, Place(scope.script, token.line), scope, run)
    return found


def expand(raw: str, place: Place, scope: Scope, run: Substitute) -> list[Word]:
    """The words that one becomes: none where it is empty and not quoted."""
    parts, quoted = _parts(raw, place, scope, run)
    return _fields(parts, quoted)


def expand_text(raw: str, place: Place, scope: Scope, run: Substitute) -> str:
    """The text that a word becomes without splitting, as in an assignment."""
    parts, _ = _parts(raw, place, scope, run)
    found = []
    for part in parts:
        if part.words is None:
            found.append(part.text)
            continue
        marked = [
            (line_mark(word.place.line) if word.place.file == place.file else "") + word.text
            for word in part.words
        ]
        found.append(" ".join(marked) + (line_mark(place.line) if marked else ""))
    return "".join(found)[:_MOST_TEXT]


def expand_document(body: str, place: Place, scope: Scope, run: Substitute) -> str:
    """The text of a here-document whose end is not quoted; lines stay where they are."""
    lines = []
    for number, line in enumerate(body.split("\n")):
        at = Place(place.file, place.line + number)
        text = "".join(
            p.text if p.words is None else " ".join(word.text for word in p.words)
            for p in _inside(line, at, scope, run)
        )
        lines.append(line_mark(at.line) + text)
    return "\n".join(lines)


def compute(text: str, place: Place, scope: Scope, run: Substitute) -> str:
    """The number of an arithmetic expression as a text, or a hole."""
    expanded = "".join(part.text for part in _inside(text, place, scope, run))
    try:
        return str(
            evaluate(_without_unset(expanded), _number_of(scope, place), _setter(scope, place))
        )
    except ArithmeticFault as fault:
        known = _first_hole(expanded) or _first_hole(str(fault))
        return known or scope.hole("arithmetic", " ".join(without_holes(text).split()), place)


def _without_unset(text: str) -> str:
    if hole_numbers(text):
        raise ArithmeticFault(text)
    return without_lines(text)


def _first_hole(text: str) -> str:
    found = re.search("\ue000\\d+\ue001", text)
    return found[0] if found else ""


def _number_of(scope: Scope, place: Place) -> Callable[[str], int]:
    def number(name: str, depth: int = 0) -> int:
        text = scope.text_of(name)
        if text is None:
            raise ArithmeticFault(scope.unset(name, place))
        text = without_lines(text).strip()
        if hole_numbers(text) or depth > 5:
            raise ArithmeticFault(text)
        return evaluate(text, lambda inner: number(inner, depth + 1)) if text else 0

    return number


def _setter(scope: Scope, place: Place) -> Callable[[str, int], None]:
    return lambda name, value: scope.assign(name, str(value), place)


def _fields(parts: list[_Part], quoted: bool) -> list[Word]:
    found: list[Word] = []
    text, at, begun = "", None, False
    for part in parts:
        if part.words is not None:
            for number, word in enumerate(part.words):
                if number and (text or begun):
                    found.append(Word(text, at or part.place))
                    text, at, begun = "", None, False
                text += word.text
                at, begun = at or word.place, True
            continue
        if not part.splits:
            # Line marks stay: the word may be a text of commands.
            text, at, begun = text + part.text, at or part.place, True
            continue
        for piece, place in placed_pieces(part.text, part.place):
            chunks = re.split(r"[ \t\n]+", piece)
            for number, chunk in enumerate(chunks):
                if number and (text or begun):
                    found.append(Word(text, at or place))
                    text, at, begun = "", None, False
                if chunk:
                    text, at, begun = text + chunk, at or place, True
    if text or begun or (quoted and not found and not any(p.words is not None for p in parts)):
        found.append(Word(text, at or parts[0].place if parts else Place("", 0)))
    return found


def _parts(raw: str, place: Place, scope: Scope, run: Substitute) -> tuple[list[_Part], bool]:
    """The pieces of a word as written, and whether a part of it is quoted."""
    parts: list[_Part] = []
    quoted, at, line = False, 0, place.line
    here = place
    while at < len(raw):
        char = raw[at]
        if char == "\\":
            if raw[at + 1 : at + 2] != "\n":
                parts.append(_Part(raw[at + 1 : at + 2], here))
            end = at + 2
        elif char == "'":
            end = raw.find("'", at + 1)
            end = len(raw) if end < 0 else end + 1
            parts.append(_Part(_with_lines(raw[at + 1 : end - 1], line), here))
            quoted = True
        elif char == '"':
            end = double_quoted_end(raw, at)
            parts += _inside(raw[at + 1 : end - 1], here, scope, run) or [_Part("", here)]
            quoted = True
        elif char == "$" and raw[at + 1 : at + 2] == "'":
            end = raw.find("'", at + 2)
            end = len(raw) if end < 0 else end + 1
            parts.append(_Part(raw[at + 2 : end - 1], here))
        elif char in "$`":
            part, end = _dollar(raw, at, here, scope, run, quoted=False)
            parts.append(part)
        elif char == "~" and at == 0:
            end = at + 1
            parts.append(_Part("~", here))
        else:
            end = at + 1
            while end < len(raw) and raw[end] not in "\\'\"$`":
                end += 1
            parts.append(_Part(raw[at:end], here))
        line += raw.count("\n", at, end)
        here = Place(place.file, line)
        at = end
    return parts, quoted


def _inside(raw: str, place: Place, scope: Scope, run: Substitute) -> list[_Part]:
    """The pieces of a text in double quotes."""
    parts: list[_Part] = []
    at, line = 0, place.line
    while at < len(raw):
        char, here = raw[at], Place(place.file, line)
        if char == "\\" and raw[at + 1 : at + 2] in tuple('$`"\\\n'):
            text = "" if raw[at + 1] == "\n" else raw[at + 1]
            end = at + 2
            line += raw.count("\n", at, end)
            parts.append(_Part(text if text else line_mark(line), here))
        elif char in "$`":
            part, end = _dollar(raw, at, here, scope, run, quoted=True)
            parts.append(part)
            line += raw.count("\n", at, end)
        else:
            end = at + 1
            while end < len(raw) and raw[end] not in "\\$`":
                end += 1
            parts.append(_Part(_with_lines(raw[at:end], line), here))
            line += raw.count("\n", at, end)
        at = end
    return parts


def _with_lines(text: str, line: int) -> str:
    """A text of several lines with the line of each."""
    first, *rest = text.split("\n")
    return first + "".join(f"\n{line_mark(line + n)}{one}" for n, one in enumerate(rest, 1))


def _dollar(
    raw: str, at: int, place: Place, scope: Scope, run: Substitute, *, quoted: bool
) -> tuple[_Part, int]:
    """What begins with `$` or a backquote, and where it ends."""
    if raw[at] == "`":
        end = backquote_end(raw, at)
        command = re.sub(r"\\([`$\\])", r"\1", raw[at + 1 : end - 1])
        return _Part(run(command, scope, place), place, splits=not quoted), end
    if raw.startswith("$((", at):
        end = matching(raw, at + 1, "(", ")")
        if raw[end - 2 : end] == "))":
            return _Part(compute(raw[at + 3 : end - 2], place, scope, run), place), end
    if raw.startswith("$(", at):
        end = matching(raw, at + 1, "(", ")")
        return _Part(run(raw[at + 2 : end - 1], scope, place), place, splits=not quoted), end
    if raw.startswith("$[", at):
        end = matching(raw, at + 1, "[", "]")
        return _Part(compute(raw[at + 2 : end - 1], place, scope, run), place), end
    if raw.startswith("${", at):
        end = matching(raw, at + 1, "{", "}")
        return _braced(raw[at + 2 : end - 1], place, scope, run, quoted=quoted), end
    found = _NAME.match(raw, at + 1)
    if found is None:
        return _Part("$", place), at + 1
    return _variable(found[0], place, scope, quoted=quoted), found.end()


def _variable(name: str, place: Place, scope: Scope, *, quoted: bool) -> _Part:
    if name in ("@", "*"):
        if quoted and name == "@":
            return _Part("", place, words=scope.arguments)
        text = " ".join(word.text for word in scope.arguments)
        return _Part(text, place, splits=not quoted)
    if name == "#":
        # Who starts the first script gives it what arguments they like.
        count = str(len(scope.arguments)) if scope.called else scope.hole("argument", "$#", place)
        return _Part(count, place)
    if name == "0":
        return _Part(scope.script, place)
    if name.isdigit():
        number = int(name)
        if number <= len(scope.arguments):
            return _Part(scope.arguments[number - 1].text, place, splits=not quoted)
        return _Part("" if scope.called else scope.unset(f"${number}", place), place, splits=True)
    if name in "?!$-":
        return _Part("0" if name == "?" else scope.hole("runtime", f"${name}", place), place)
    found = scope.text_of(name)
    if found is None:
        return _Part(scope.unset(name, place), place)
    variable = scope.variables[name]
    several = not quoted and bool(re.search(r"\s", found.strip()))
    return _Part(found, variable.place if several else place, splits=not quoted)


def _braced(body: str, place: Place, scope: Scope, run: Substitute, *, quoted: bool) -> _Part:
    if body.startswith("#") and len(body) > 1:
        return _Part(_length(body[1:], scope), place)
    if body.startswith("!"):
        return _indirect(body[1:], place, scope, quoted=quoted)
    found = _BRACED.fullmatch(body)
    if found is None:
        return _Part(scope.hole("arithmetic", "${" + body + "}", place), place)
    name, index, rest = found["name"], found["index"], found["rest"]
    part = (
        _variable(name, place, scope, quoted=quoted)
        if index is None
        else _element(name, index, place, scope, run, quoted=quoted)
    )
    if not rest:
        return part
    operator = OPERATOR.match(rest)
    if operator is None or part.words is not None:
        return part
    text = operated(
        operator[0],
        rest[operator.end() :],
        name,
        part.text,
        place,
        scope,
        expand=lambda raw: expand_text(raw, place, scope, run),
        compute=lambda raw: compute(raw, place, scope, run),
    )
    return _Part(text, place, splits=not quoted)


def _length(name: str, scope: Scope) -> str:
    base, bracket, _ = name.partition("[")
    if name in ("@", "*"):
        return str(len(scope.arguments))
    variable = scope.variables.get(base)
    if variable is None:
        return "0"
    if bracket:
        return str(len(variable.words or variable.table or ()))
    return str(len(without_holes(variable.text)))


def _indirect(name: str, place: Place, scope: Scope, *, quoted: bool) -> _Part:
    base, _, _ = name.partition("[")
    variable = scope.variables.get(base)
    if name.endswith("[@]") and variable is not None:
        keys = variable.table or [str(n) for n in range(len(variable.words or ()))]
        return _Part("", place, words=tuple(Word(key, place) for key in keys))
    text = scope.text_of(base)
    if text is None or hole_numbers(text):
        return _Part(text or scope.unset(base, place), place)
    array, bracket, _ = without_lines(text).partition("[")
    if bracket:
        inner = scope.variables.get(array)
        return _Part("", place, words=inner.words if inner and inner.words else ())
    return _variable(array, place, scope, quoted=quoted) if array else _Part("", place)


def _element(
    name: str, index: str, place: Place, scope: Scope, run: Substitute, *, quoted: bool
) -> _Part:
    variable = scope.variables.get(name)
    if variable is None:
        # An array that nothing sets has no words.
        return _Part("" if index in ("@", "*") else scope.unset(name, place), place, splits=True)
    words = variable.words
    if variable.table is not None:
        if index in ("@", "*"):
            return _Part("", place, words=tuple(Word(v, place) for v in variable.table.values()))
        key = without_holes(expand_text(index, place, scope, run))
        text = variable.table.get(key)
        return _Part(scope.unset(f"{name}[{key}]", place) if text is None else text, place)
    if words is None:
        return _variable(name, place, scope, quoted=quoted)
    if index in ("@", "*"):
        if quoted and index == "@":
            return _Part("", place, words=words)
        split = tuple(one for word in words for one in _split(word))
        return (
            _Part("", place, words=split)
            if not quoted
            else _Part(" ".join(word.text for word in words), place)
        )
    number = compute(index, place, scope, run)
    if hole_numbers(number):
        return _Part(number, place)
    at = int(number)
    if -len(words) <= at < len(words):
        return _Part(words[at].text, words[at].place, splits=not quoted)
    return _Part(scope.unset(f"{name}[{at}]", place), place)


def _split(word: Word) -> list[Word]:
    return [
        Word(one, place)
        for piece, place in placed_pieces(word.text, word.place)
        for one in piece.split()
    ]
