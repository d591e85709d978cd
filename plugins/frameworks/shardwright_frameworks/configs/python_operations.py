"""Operators, built-in functions and methods on the values of a Python configuration."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_arguments import is_parser, parser_result
from shardwright_frameworks.configs.python_values import Built, Function, Named, is_literal
from shardwright_frameworks.shell.config_folder import Environment
from shardwright_frameworks.shell.text_marks import Place

_UNKNOWN = Open("it is computed of unknown values")
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_ORDER: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_MOST = 1e12
_TYPES = {"str": str, "int": int, "float": (int, float), "bool": bool, "list": list, "tuple": list}
_TEXT = frozenset(
    {"lower", "upper", "strip", "startswith", "endswith", "replace", "split", "removeprefix",
     "removesuffix", "join", "rsplit", "title", "format", "count", "isdigit"}
)  # fmt: skip
# Functions that make an object of their first argument, a class (nemo_run), and that copy one.
_CONFIGURED = ("run.Config", "run.Partial", "fdl.Config", "fdl.Partial")
_COPIES = ("replace", "deepcopy", "copy")
# Variables that launchers set for each rank or job.
_RUNTIME = re.compile(
    r"(LOCAL_|NODE_|GROUP_)?(RANK|WORLD_SIZE)$|(CUDA|HIP|ROCR|ASCEND_RT)_VISIBLE_DEVICES$|"
    r"(SLURM|OMPI|PMI|PBS|ACCELERATE)_"
)


def truth_value(value: Any) -> bool | None:
    """Whether a value counts as true; None if unknown."""
    if isinstance(value, (Open, Named)):
        return None
    if isinstance(value, Built):
        if value.entries or (value.call and not value.open):
            return True
        return None if value.open or value.is_part else False
    return bool(value)


def compared(operation: ast.cmpop, left: Any, right: Any) -> bool | None:
    """The result of a comparison; None if unknown."""
    if isinstance(operation, (ast.Is, ast.IsNot)):
        unknown = any(isinstance(x, Open) or (isinstance(x, Built) and x.is_unset)
                      for x in (left, right))  # fmt: skip
        if unknown:
            return None
        return (left is right) is isinstance(operation, ast.Is)
    if isinstance(right, Built) and isinstance(operation, (ast.In, ast.NotIn)):
        if right.open or right.is_part or not isinstance(left, (str, int)):
            return None
        return (left in right.entries) is isinstance(operation, ast.In)
    if isinstance(left, Named) and isinstance(right, Named):
        left, right = left.name, right.name
    if not is_literal(left) or not is_literal(right):
        return None
    try:
        return _ORDER[type(operation)](left, right)
    except (TypeError, KeyError):
        return None


def computed(operation: ast.operator, left: Any, right: Any) -> Any:
    """The result of arithmetic, also of texts and lists."""
    if isinstance(left, Built) and isinstance(right, Built) and isinstance(operation, ast.BitOr):
        merged = left.copy()
        merged.entries |= right.entries
        return merged
    if isinstance(left, list) and isinstance(right, list) and isinstance(operation, ast.Add):
        return [*left, *right]
    if not is_literal(left) or not is_literal(right) or type(operation) not in _ARITHMETIC:
        return _UNKNOWN
    sizes = [
        abs(each) if isinstance(each, (int, float)) else len(each or "") for each in (left, right)
    ]
    if max(sizes) > _MOST or (isinstance(operation, ast.Pow) and sizes[1] > 40):
        return _UNKNOWN
    try:
        return _ARITHMETIC[type(operation)](left, right)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError):
        return _UNKNOWN


def variable_of(arguments: list[Any], environment: Environment) -> Any:
    """A variable of the environment: the exported one, otherwise the default of
    `os.environ.get("NAME", default)`. A launcher's variables have none."""
    name, *default = arguments or [None]
    exported = environment.get(str(name))
    if isinstance(exported, str):
        return exported
    if exported is not None:
        return Open(exported.reason)
    known = bool(default) and _RUNTIME.match(str(name)) is None
    return default[0] if known else Open(f"the variable {name} is not set in the files")


def attribute_of(holder: Any, name: str, place: Place) -> Any:
    """An attribute; a missing part of an object is created, for later assignments."""
    if isinstance(holder, Named):
        if name in ("bfloat16", "float16", "float32", "half") and holder.name == "torch":
            return name.replace("half", "float16")
        return Named(f"{holder.name}.{name}")
    if not isinstance(holder, Built):
        return Open(f"{name} of an unknown value")
    if name in holder.entries:
        return holder.entries[name][0]
    if name in holder.defaults:
        return holder.defaults[name][0]
    part = Built(open=holder.open, is_part=True, place=place)
    holder.entries[name] = (part, place)
    return part


def item_of(holder: Any, key: Any, place: Place) -> Any:
    """An item of a list or dictionary."""
    if isinstance(holder, Built) and isinstance(key, (str, int, list)):
        name = tuple(key) if isinstance(key, list) else key
        if name in holder.entries:
            return holder.entries[name][0]
        return attribute_of(holder, name, place) if isinstance(name, str) else _UNKNOWN
    if (
        isinstance(holder, (list, str))
        and isinstance(key, int)
        and -len(holder) <= key < len(holder)
    ):
        return holder[key]
    return _UNKNOWN


def constructed(
    name: str,
    arguments: list[Any],
    keywords: Built,
    place: Place,
    defaults: dict[str, tuple[Any, Place]],
    *,
    is_configured: bool = False,
) -> Any:
    """The result of a class, or of a function that is not in the files. The latter may set any
    entry, unless only its arguments are configured."""
    last = name.rpartition(".")[2]
    if last in _COPIES and arguments:
        original = arguments[0]
        if not isinstance(original, Built):
            return original if last != "replace" else _UNKNOWN
        copied = original.copy()
        copied.entries |= keywords.entries
        return copied
    if name in ("fields", "dataclasses.fields") and arguments:
        return _fields(arguments[0], place)
    if last == "partial" and arguments and isinstance(arguments[0], Function):
        function = arguments[0]
        given = {str(key): value for key, (value, _) in keywords.entries.items()}
        return Function(function.path, function.file, function.node, {**function.given, **given})
    why = keywords.open
    if not is_configured and not _is_class(name):
        why = why or f"{name}(...) is not in the files"
    return Built(call=name, arguments=arguments, entries=keywords.entries, defaults=defaults,
                 open=why, place=place)  # fmt: skip


def configured(name: str, arguments: list[Any]) -> tuple[str, list[Any], bool]:
    """The class of `run.Config(Class, ...)` with its arguments, and whether it is one; the name
    and arguments of any other call."""
    if name not in _CONFIGURED or not arguments:
        return name, arguments, False
    first = arguments[0]
    if isinstance(first, Function):
        return first.node.name, arguments[1:], True
    return first.name if isinstance(first, Named) else name, arguments[1:], True


def _is_class(name: str) -> bool:
    return any(part.lstrip("_")[:1].isupper() for part in name.split("."))


def _fields(value: Any, place: Place) -> Any:
    if not isinstance(value, Built):
        return _UNKNOWN
    names = [Built(entries={"name": (key, place)}, place=place) for key in value.entries]
    unknown = value.open or ("it is not set in the files" if value.is_part else "")
    return [*names, Open(unknown)] if unknown else names


def method_result(
    holder: Any, name: str, arguments: list[Any], keywords: Built, place: Place, unsure: str
) -> Any:
    """The result of a value's method, which may change the value."""
    if isinstance(holder, str) and name in _TEXT and is_literal(arguments) and not keywords.entries:
        try:
            return getattr(holder, name)(*(map(_as_tuple, arguments)))
        except (TypeError, ValueError, IndexError):
            return _UNKNOWN
    if isinstance(holder, list):
        added = arguments[0] if name == "extend" and arguments else arguments
        known = name in ("append", "extend") and isinstance(added, list) and not unsure
        holder += added if known else [Open(unsure or "an unknown list")]
        return None
    if not isinstance(holder, Built):
        return _UNKNOWN
    if is_parser(holder):
        return parser_result(holder, name, arguments, keywords, place)
    if name in ("items", "keys", "values", "get", "update", "pop", "setdefault") and (
        not holder.call or name == "update"
    ):
        return _dictionary_method(holder, name, arguments, keywords, unsure)
    # `Bridge.from_hf_pretrained("name").to_provider(...)`: an object made of another.
    made = Built(call=name, arguments=[holder, *arguments], entries=keywords.entries, place=place)
    made.open = keywords.open
    return made


def _dictionary_method(
    holder: Built, name: str, arguments: list[Any], keywords: Built, unsure: str
) -> Any:
    entries = holder.entries
    if name in ("items", "keys", "values"):
        listed = [[key, value] for key, (value, _) in entries.items()]
        if holder.open or holder.is_part:
            return _UNKNOWN
        return listed if name == "items" else [pair[name == "values"] for pair in listed]
    if name == "update":
        new = dict(keywords.entries)
        if arguments and isinstance(arguments[0], Built):
            new = {**arguments[0].entries, **new}
        for key, (value, place) in new.items():
            entries[key] = (Open(unsure) if unsure else value, place)
        return None
    key = arguments[0] if arguments else None
    if not isinstance(key, (str, int)):
        return _UNKNOWN
    default = arguments[1] if len(arguments) > 1 else None
    found = entries.get(key, (_UNKNOWN if holder.open else default, holder.place))
    if name == "setdefault":
        entries.setdefault(key, found)
    elif name == "pop":
        entries.pop(key, None)
    return found[0]


def _as_tuple(value: Any) -> Any:
    return (
        tuple(value)
        if isinstance(value, list) and all(isinstance(x, str) for x in value)
        else value
    )


def _get(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    if len(arguments) < 2 or not isinstance(arguments[1], str):
        return _UNKNOWN
    holder, name = arguments[:2]
    if isinstance(holder, Built) and name not in holder.entries and len(arguments) > 2:
        is_complete = not holder.open and not holder.is_part and not holder.call
        return arguments[2] if is_complete else _UNKNOWN
    return attribute_of(holder, name, place)


def _set(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    if len(arguments) == 3 and isinstance(arguments[0], Built):
        holder, name, value = arguments
        if isinstance(name, str):
            holder.entries[name] = (Open(unsure) if unsure else value, place)
        else:
            holder.open = holder.open or "a key of it is unknown"
    return None


def _has(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    if (
        len(arguments) == 2
        and isinstance(arguments[0], Built)
        and arguments[1] in arguments[0].entries
    ):
        return True
    return _UNKNOWN


def _is_instance(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    if len(arguments) != 2:
        return _UNKNOWN
    value, kinds = arguments[0], arguments[1]
    names = [getattr(kind, "name", "") for kind in (kinds if isinstance(kinds, list) else [kinds])]
    if isinstance(value, Built):
        if value.call and any(value.call.split(".")[-1] == n.split(".")[-1] and n for n in names):
            return True
        return False if all(name in _TYPES for name in names) and value.call else _UNKNOWN
    if not is_literal(value):
        return _UNKNOWN
    types = tuple(_TYPES[name] for name in names if name in _TYPES)
    return isinstance(value, types)  # type: ignore[arg-type] # the table holds types alone


def _plain(function: Callable[..., Any]) -> Callable[[list[Any], Built, Place, str], Any]:
    def result(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
        if not is_literal(arguments) or keywords.entries:
            return _UNKNOWN
        try:
            return function(*arguments)
        except (TypeError, ValueError):
            return _UNKNOWN

    return result


def _listed(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    if not arguments:
        return []
    first = arguments[0]
    return list(first) if isinstance(first, list) else _UNKNOWN


def _dictionary(arguments: list[Any], keywords: Built, place: Place, unsure: str) -> Any:
    built = Built(place=place)
    if arguments and isinstance(arguments[0], Built):
        built = arguments[0].copy()
    elif arguments:
        built.open = "it is made of unknown entries"
    built.entries |= keywords.entries
    built.open = built.open or keywords.open
    return built


BUILTINS: Mapping[str, Callable[[list[Any], Built, Place, str], Any]] = {
    "getattr": _get,
    "setattr": _set,
    "hasattr": _has,
    "isinstance": _is_instance,
    "dict": _dictionary,
    "list": _listed,
    "tuple": _listed,
    **{
        each.__name__: _plain(each)
        for each in (int, float, str, bool, len, min, max, sum, abs, round, any, all, sorted)
    },
    "range": _plain(lambda *ends: list(range(*ends)) if len(range(*ends)) < 10_000 else None),
    "print": lambda *_: None,
    **{f"math.{each.__name__}": _plain(each) for each in (math.ceil, math.floor, math.prod)},
    **dict.fromkeys(
        ("os.path.abspath", "os.path.expanduser", "OmegaConf.to_container"),
        lambda arguments, *_: arguments[0] if arguments else None,
    ),
    "cast": lambda arguments, *_: arguments[-1] if arguments else None,
}
"""Functions of Python and of modules by name."""
