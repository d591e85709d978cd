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
    """The result of a parser's method; a group of arguments counts as the parser. The parser's
    defaults are the arguments of the command."""
    if method in _GROUPS:
        return parser
    if method == "add_argument":
        parser.arguments.append(_argument(arguments, keywords, place))
    elif method == "set_defaults":
        parser.arguments += [[str(key), *each] for key, each in keywords.entries.items()]
    elif method in ("parse_args", "parse_known_args"):
        entries = {}
        for name, value, at, *rest in parser.arguments:
            action, *names = rest or (None, name)
            given = [parser.defaults[each] for each in names if each in parser.defaults]
            entries[name] = given[-1] if given else (value, at)
            if given and action == "store_false":
                entries[name] = (False, given[-1][1])
        parsed = Built(call="Namespace", entries=entries, place=place)
        return parsed if method == "parse_args" else [parsed, []]
    return None


def _argument(names: list[Any], keywords: Built, place: Place) -> list[Any]:
    """The name of an argument, its default and place, its action, and its names in options."""
    options = {str(key): value for key, (value, _) in keywords.entries.items()}
    plain = [str(name) for name in names]
    long = next((name for name in plain if name.startswith("--")), plain[0] if plain else "")
    name = str(options.get("dest", long.lstrip("-").replace("-", "_")))
    is_needed = options.get("required") is True or not long.startswith("-")
    action = str(options.get("action"))
    default = options.get("default", _SWITCHES.get(action))
    if "default" not in options and is_needed:
        default = Open(f"the argument {long} of the program is not given")
    return [name, default, place, action, *(each.lstrip("-").replace("-", "_") for each in plain)]
