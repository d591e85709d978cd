"""The arguments of a program: a parser of Python's `argparse` and their defaults."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_values import Built
from shardwright_frameworks.shell.text_marks import Place

_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
# Values of switches without a default.
_SWITCHES = {"store_true": False, "store_false": True}


def is_parser(value: Any) -> bool:
    """Whether a value is a parser."""
    return isinstance(value, Built) and value.call.rpartition(".")[2] == "ArgumentParser"


def parser_result(
    parser: Built, method: str, arguments: list[Any], keywords: Built, place: Place
) -> Any:
    """The result of a parser's method; a group of arguments counts as the parser."""
    if method in _GROUPS:
        return parser
    if method == "add_argument":
        parser.arguments.append(_argument(arguments, keywords, place))
    elif method == "set_defaults":
        parser.arguments += [[str(key), *each] for key, each in keywords.entries.items()]
    elif method in ("parse_args", "parse_known_args"):
        entries = {name: (value, at) for name, value, at in parser.arguments}
        given = Built(call="Namespace", entries=entries, place=place)
        return given if method == "parse_args" else [given, []]
    return None


def _argument(names: list[Any], keywords: Built, place: Place) -> list[Any]:
    """The name of an argument, its default and its place."""
    options = {str(key): value for key, (value, _) in keywords.entries.items()}
    plain = [str(name) for name in names]
    long = next((name for name in plain if name.startswith("--")), plain[0] if plain else "")
    name = str(options.get("dest", long.lstrip("-").replace("-", "_")))
    is_needed = options.get("required") is True or not long.startswith("-")
    if "default" in options:
        return [name, options["default"], place]
    if is_needed:
        return [name, Open(f"the argument {long} of the program is not given"), place]
    return [name, _SWITCHES.get(str(options.get("action"))), place]
