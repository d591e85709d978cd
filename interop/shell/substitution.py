"""What `$(...)` prints, where that follows from the script's text: echo, expr, dirname, basename,
pwd, seq, bc and the like. Of every other command the output is a hole; none is run."""

from __future__ import annotations

import re
from collections.abc import Callable

from interop.shell.arithmetic import ArithmeticFault, evaluate
from interop.shell.expansion import expand_words
from interop.shell.here_document import document
from interop.shell.syntax import Block, Chain, Node, Piped, Simple, parse
from interop.shell.text_places import Place, hole_numbers, without_holes, without_lines
from interop.shell.variables import Scope

_MOST_DEEP = 12
_MOST_COUNTED = 1000


def substitute(text: str, scope: Scope, place: Place, depth: int = 0) -> str:
    """The output of a command as far as its text tells it, else a hole that names the command."""
    block, faults = parse(text)
    own = scope.copy()
    found = None
    if not faults and depth < _MOST_DEEP and block.commands:
        for command in block.commands:
            found = _output(command, "", own, place, depth)
            if found is None:
                break
    if found is None:
        return scope.hole("output", " ".join(without_holes(text).split())[:80], place)
    return found.rstrip("\n")


def _output(node: Node, given: str, scope: Scope, place: Place, depth: int) -> str | None:
    if isinstance(node, Piped) and not node.negated:
        text: str | None = given
        for part in node.parts:
            text = None if text is None else _output(part, text, scope, place, depth)
        return text
    if isinstance(node, Chain):
        # `cd folder && pwd`: each as if the one before it succeeded.
        text = _output(node.first, given, scope, place, depth)
        for operator, part in node.rest:
            if operator == "||" or text is None:
                return text
            text = _output(part, given, scope, place, depth)
        return text
    if isinstance(node, Block):
        found = ""
        for command in node.commands:
            one = _output(command, given, scope, place, depth)
            if one is None:
                return None
            found += one
        return found
    if isinstance(node, Simple):
        return _simple(node, given, scope, place, depth)
    return None


def _simple(node: Simple, given: str, scope: Scope, place: Place, depth: int) -> str | None:
    def inner(text: str, scope: Scope, place: Place) -> str:
        return substitute(text, scope, place, depth + 1)

    if any(token.kind == "array" for token in node.words):
        return None
    words = [word.plain for word in expand_words(node.words, scope, inner)]
    if not words:
        return ""
    name, arguments = words[0].rsplit("/", 1)[-1], words[1:]
    for redirection in node.redirections if name == "cat" and not arguments else ():
        if redirection.operator == "<<" and redirection.target is not None:
            return without_lines(document(redirection.target, scope, inner)[0])
    made = _COMMANDS.get(name)
    if made is None:
        return None
    try:
        return made(arguments, given)
    except (ArithmeticFault, ValueError, IndexError):
        return None


def _echo(arguments: list[str], _: str) -> str | None:
    while arguments and arguments[0] in ("-n", "-e", "-ne", "-en"):
        arguments = arguments[1:]
    return " ".join(arguments) + "\n"


def _printf(arguments: list[str], _: str) -> str | None:
    form, values = arguments[0], arguments[1:]
    if form.count("%") != len(values) or re.search(r"%[^sd]", form):
        return None
    for value in values:
        form = re.sub(r"%[sd]", value.replace("\\", "\\\\"), form, count=1)
    return form.replace("\\n", "\n")


def _expr(arguments: list[str], _: str) -> str | None:
    return _computed(" ".join(arguments))


def _bc(arguments: list[str], given: str) -> str | None:
    return _computed(re.sub(r"scale\s*=\s*0\s*;", "", given))


def _computed(text: str) -> str | None:
    if hole_numbers(text):
        # The number is as unknown as what it is made of.
        return str(re.findall("\ue000\\d+\ue001", text)[0])

    def unknown(name: str) -> int:
        raise ArithmeticFault(name)

    return f"{evaluate(without_lines(text).strip(), unknown)}\n"


def _folder(arguments: list[str], _: str) -> str | None:
    head, slash, _name = arguments[-1].rstrip("/").rpartition("/")
    return (head or ("/" if slash else ".")) + "\n"


def _base(arguments: list[str], _: str) -> str | None:
    name = arguments[0].rstrip("/").rsplit("/", 1)[-1]
    return (name.removesuffix(arguments[1]) if len(arguments) > 1 else name) + "\n"


def _seq(arguments: list[str], _: str) -> str | None:
    numbers = [int(one) for one in arguments]
    first, step, last = ([1, 1, *numbers], [numbers[0], 1, *numbers[1:]], numbers)[len(numbers) - 1]
    counted = range(first, last + 1, step)
    return "".join(f"{n}\n" for n in counted) if len(counted) <= _MOST_COUNTED else None


def _same(arguments: list[str], given: str) -> str | None:
    return given if not arguments else None


_COMMANDS: dict[str, Callable[[list[str], str], str | None]] = {
    "echo": _echo,
    "printf": _printf,
    "expr": _expr,
    "bc": _bc,
    "dirname": _folder,
    "basename": _base,
    "seq": _seq,
    "cat": _same,
    "pwd": lambda arguments, given: ".\n",
    "cd": lambda arguments, given: "",
    "true": lambda arguments, given: "",
    "realpath": lambda arguments, given: arguments[-1] + "\n",
    "readlink": lambda arguments, given: arguments[-1] + "\n",
    "xargs": lambda arguments, given: given.strip() + "\n" if not arguments else None,
}
