"""Values of the references in a script's words: variables, defaults, arrays, plain arithmetic.

`${A:-x}`, `${A:=x}`, `${A:+x}`, `${A:?}`, `${A[@]}`, `${A[0]}` and `$((...))` of whole numbers are
followed (POSIX.1-2017, 2.6; bash manual 5.2, 3.5); a command's output and every other expansion
is an unknown value. Files are not globbed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence

from shardwright_frameworks.shell.text_marks import (
    Place,
    Word,
    is_unknown,
    place_mark,
    placed_pieces,
    unknown_mark,
    unknown_numbers,
    without_place_marks,
    without_unknowns,
)
from shardwright_frameworks.shell.tokens import (
    REFERENCE,
    Reference,
    Token,
    prepare,
    shown,
    tokens_of,
)
from shardwright_frameworks.shell.variables import Scope

_BRACED = re.compile(r"(\w+|[@*#?])(?:\[([^][]+)\])?(?:(:?)([-=+?])(.*))?", re.S)
_ARITHMETIC_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_DOCUMENT = re.compile(r"(\$\()\s*cat\s*<<")
_EXPR = re.compile(r"expr [\w${} ]+( (\\\*|[-+/%]) [\w${} ]+)+")
# A text that filters of white space print.
_FILTER = r"""xargs|tr (-s )?['"](\\n| )['"]( ['"] ['"])?|sed 's/[ \\+*]+/ /g'"""
_PRINTED = re.compile(rf"echo ([^|;&<>]+?)( ?\| ?({_FILTER}))*")
_COMMAND = ("$(", "`", "<(", ">(")
_MOST_TEXT = 1_000_000
_MOST_NUMBER = 10**18
_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


def expand_words(tokens: Sequence[Token], scope: Scope) -> list[Word]:
    """The expanded words of tokens; an empty one that is not quoted vanishes."""
    return [word for token in tokens for word in _expanded(token, scope)]


def expand_text(token: Token, scope: Scope) -> str:
    """The expanded text of a token without splitting, as in an assignment."""
    return _joined(token.text, token.place, scope)


def expand_document(reference: Reference, scope: Scope) -> str:
    """The text of a here-document."""
    if reference.quoted:
        return reference.text
    prepared = prepare(reference.text, reference.place, scope.references, is_document=True)
    return _joined(prepared, reference.place, scope)


def documents_of(token: Token, scope: Scope) -> list[Reference]:
    """The here-documents that a token refers to."""
    found = [scope.references[int(each[1])] for each in REFERENCE.finditer(token.text)]
    return [reference for reference in found if reference.document]


def _pieces(text: str, scope: Scope) -> Iterator[tuple[str, Reference | None]]:
    """Literal texts, and the reference behind each."""
    begin = 0
    for found in REFERENCE.finditer(text):
        yield shown(text[begin : found.start()]), scope.references[int(found[1])]
        begin = found.end()
    yield shown(text[begin:]), None


def _joined(text: str, place: Place, scope: Scope) -> str:
    found = []
    for literal, reference in _pieces(text, scope):
        found.append(literal)
        if reference is None:
            continue
        value = _value(reference, scope)
        if isinstance(value, str):
            found.append(value)
        elif value:
            words = [place_mark(word.place) + word.text for word in value]
            found.append(" ".join(words) + place_mark(place))
    return "".join(found)[:_MOST_TEXT]


def _expanded(token: Token, scope: Scope) -> list[Word]:
    fields: list[Word] = []
    text, place, begun = "", token.place, not token.text

    def end_field() -> None:
        nonlocal text, place, begun
        if begun:
            fields.append(Word(text[:_MOST_TEXT], place))
        text, place, begun = "", token.place, False

    for literal, reference in _pieces(token.text, scope):
        if literal:
            text, begun = text + literal, True
        if reference is None:
            continue
        value = _value(reference, scope)
        if isinstance(value, str) and reference.quoted:
            text, begun = text + value, True
            continue
        words = (Word(value, token.place),) if isinstance(value, str) else value
        for number, word in enumerate(words):
            if number:
                end_field()
            if reference.quoted:
                place = place if begun else word.place
                text, begun = text + word.text, True
                continue
            for piece, at in placed_pieces(word.text, word.place):
                for chunk in re.split(r"(\s+)", piece):
                    if chunk.isspace():
                        end_field()
                    elif chunk:
                        place = place if begun else at
                        text, begun = text + chunk, True
    end_field()
    return fields


def _value(reference: Reference, scope: Scope) -> str | tuple[Word, ...]:
    """The text of a reference, or the words of an array."""
    text, place = reference.text, reference.place
    if reference.document:
        return ""
    if text.startswith("$((") and text.endswith("))"):
        return arithmetic(text[3:-2], place, scope)
    if text.startswith("$["):  # its older form
        return arithmetic(text[2:-1], place, scope)
    if text.startswith("(("):
        return scope.unknown("expression", " ".join(text.split()), place)
    if (document := _DOCUMENT.match(text)) is not None:
        inner = tokens_of(text[document.end(1) : -1], place, scope.references)
        return "".join(
            expand_document(one, scope) for token in inner for one in documents_of(token, scope)
        ).rstrip("\n")
    if text.startswith(_COMMAND):
        command = " ".join(text.lstrip("$<>").strip("`()").split())
        if _EXPR.fullmatch(command):
            return arithmetic(command.removeprefix("expr ").replace("\\*", "*"), place, scope)
        if (echoed := _PRINTED.fullmatch(command)) is not None:
            prepared = prepare(echoed[1], place, scope.references).replace('"', "")
            return " ".join(_joined(prepared.replace("'", ""), place, scope).split())
        printed = "." if command == "pwd" else scope.output(command, scope)
        return scope.unknown("output", command[:80], place) if printed is None else printed
    if not text.startswith("${"):
        return _variable(text[1:], None, place, scope)
    found = _BRACED.fullmatch(text[2:-1])
    if found is None:
        return scope.unknown("expression", text, place)
    name, index, colon, sign, word = found.groups()
    if index not in (None, "@", "*"):
        index = _default(index, place, scope)
    value = _variable(name, index, place, scope)
    if sign is None or not isinstance(value, str):
        return value
    is_set = not scope.is_defaulted(value) and bool(without_place_marks(value) or not colon)
    if sign == "+":
        return _default(word, place, scope) if is_set else ""
    if is_set:
        return value
    required = sign == "?"
    value = scope.unknown("required", name, place) if required else _default(word, place, scope)
    if sign in "=?" and not name.isdigit():
        scope.assign(name, value, place)
    return value


def _default(word: str, place: Place, scope: Scope) -> str:
    """The text after an operator, without quotes."""
    prepared = prepare(word, place, scope.references).replace('"', "").replace("'", "")
    return without_place_marks(_joined(prepared, place, scope))


def _variable(name: str, index: str | None, place: Place, scope: Scope) -> str | tuple[Word, ...]:
    if name in ("@", "*"):
        return scope.arguments if name == "@" else " ".join(w.text for w in scope.arguments)
    if name == "#":
        return str(len(scope.arguments)) if scope.called else scope.unset("$#", place)
    if name == "0":
        return scope.script
    if name.isdigit():
        if int(name) <= len(scope.arguments):
            return scope.arguments[int(name) - 1].text
        return "" if scope.called else scope.unset(f"${name}", place)
    if name in "?!$-":
        return scope.unknown("runtime", f"${name}", place)
    variable = scope.variables.get(name)
    if variable is None:
        return () if index == "@" else scope.unset(name, place)
    if index == "@" and variable.words is not None:
        return variable.words
    if index == "*" and variable.words is not None:
        return " ".join(word.text for word in variable.words)
    if index is not None and variable.table is not None and not is_unknown(index):
        return variable.table.get(index, "")
    if index is not None and variable.words is not None and not index.isdigit():
        index = arithmetic(index, place, scope)
    if index not in (None, "@", "*") and (variable.words is None or not index.isdigit()):
        return scope.unknown("expression", f"${{{name}[...]}}", place)
    if index is not None and index.isdigit() and variable.words is not None:
        number = int(index)
        return variable.words[number].text if number < len(variable.words) else ""
    text = scope.text_of(name) or ""
    if re.search(r"\s", text.strip()):
        # Each word keeps the line in which it was written.
        return place_mark(variable.place) + text + place_mark(place)
    return text


def arithmetic(text: str, place: Place, scope: Scope) -> str:
    """The number of an arithmetic expression as a text, or the mark of an unknown value."""
    prepared = prepare(text, place, scope.references, is_document=True)
    filled = without_place_marks(_joined(prepared, place, scope))

    def number(found: re.Match[str]) -> str:
        value = scope.text_of(found[0])
        return scope.unset(found[0], place) if value is None else without_place_marks(value)

    filled = _ARITHMETIC_NAME.sub(number, filled)
    unknown = unknown_numbers(filled)
    if unknown:
        return unknown_mark(unknown[0])
    try:
        return str(_whole(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return scope.unknown("expression", " ".join(without_unknowns(text).split()), place)


def _whole(node: ast.expr) -> int:
    """The integer of an expression valid in Python and the shell; raises ValueError for others."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _whole(node.left), _whole(node.right)
        if isinstance(node.op, (ast.Div, ast.Mod)) and min(left, right) < 0:
            raise ValueError(f"{left}, {right}: a shell rounds towards zero")
        found = _OPERATORS[type(node.op)](left, right)
        if abs(found) <= _MOST_NUMBER:
            return found
    raise ValueError("not arithmetic of whole numbers")
