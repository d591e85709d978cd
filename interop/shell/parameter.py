"""What `${NAME<operator>...}` makes of a parameter's text (POSIX.1-2017, 2.6.2; bash manual 5.2,
3.5.3)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable

from interop.shell.text_places import Place, hole_numbers, without_holes, without_lines
from interop.shell.variables import Scope

OPERATOR = re.compile(r":?[-=?+]|%%|%|##|#|//|/|\^\^|\^|,,|,|:|@")
_ONE_HOLE = re.compile("\ue000\\d+\ue001")


def operated(
    operator: str,
    rest: str,
    name: str,
    text: str,
    place: Place,
    scope: Scope,
    *,
    expand: Callable[[str], str],
    compute: Callable[[str], str],
) -> str:
    """The text of `${NAME<operator>rest}`, that of NAME being `text`.

    expand, compute  a word without splitting, and an arithmetic expression, as texts
    """
    holes = [scope.holes[n] for n in hole_numbers(text)]
    # What a scheduler may set has its default here: that is what the files say.
    whole = _ONE_HOLE.fullmatch(without_lines(text))
    is_set = not (whole and holes[0].kind in ("unset", "runtime", "argument"))
    full = is_set and (bool(text) or not operator.startswith(":"))
    if operator in (":-", "-", ":=", "="):
        if full:
            return text
        found = expand(rest)
        if operator in (":=", "=") and not name.isdigit():
            scope.assign(name, found, place)
        return found
    if operator in (":+", "+"):
        return expand(rest) if full else ""
    if operator in (":?", "?") and not full:
        # Who starts the script has to set it: what it is nobody knows, but it is something.
        required = scope.hole("required", name, place)
        if not name.isdigit():
            scope.assign(name, required, place)
        return required
    if operator in (":?", "?") or holes:
        return text
    text = without_lines(text)
    if operator in ("^^", "^", ",,", ","):
        change = str.upper if operator[0] == "^" else str.lower
        return change(text) if len(operator) == 2 else change(text[:1]) + text[1:]
    if operator == ":":
        return _cut(text, rest, compute, scope, place)
    if operator == "@":
        return text
    pattern, _, replacement = rest.partition("/")
    pattern = without_holes(expand(pattern))
    if operator in ("/", "//"):
        new = expand(replacement)
        return re.sub(_glob(pattern), lambda _: new, text, count=int(operator == "/"))
    pattern = without_holes(expand(rest))
    lengths = range(len(text) + 1)
    if operator in ("#", "##"):
        for size in lengths if operator == "#" else reversed(lengths):
            if fnmatch.fnmatchcase(text[:size], pattern):
                return text[size:]
        return text
    for size in lengths if operator == "%" else reversed(lengths):
        if fnmatch.fnmatchcase(text[len(text) - size :], pattern):
            return text[: len(text) - size]
    return text


def _glob(pattern: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern) or r"(?!)"


def _cut(text: str, rest: str, compute: Callable[[str], str], scope: Scope, place: Place) -> str:
    begin, _, length = rest.partition(":")
    numbers = [compute(one) for one in (begin, length or "999999")]
    if any(hole_numbers(one) for one in numbers):
        return scope.hole("arithmetic", rest, place)
    first, count = int(numbers[0]), int(numbers[1])
    first = max(0, len(text) + first) if first < 0 else first
    return text[first : first + count] if count >= 0 else text[first:count]
