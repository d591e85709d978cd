"""What a Python configuration writes literally, read from its syntax tree; nothing of it is run.

A value counts where it follows from the file's text: a constant, arithmetic of constants, the name
of such a constant, a parameter's default. Values under an `if` or in a loop do not.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.shell.text_marks import Place

Key = tuple[str, ...]
Constants = dict[str, object]
_MOST_DEEP = 20


class _UnknownError(Exception):
    """An expression without a literal value."""


@dataclass(slots=True)
class PythonValues:
    """The values of one function, or of the top of a file.

    values  by the path of keywords and attributes;  calls  called functions, by the path of
    the keyword that it is given to, with literal positional arguments
    """

    name: str
    values: dict[Key, tuple[Any, Place]] = field(default_factory=dict)
    calls: list[tuple[Key, str, tuple[Any, ...], Place]] = field(default_factory=list)
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFile:
    """A file's top level and its functions without those that other modules hold."""

    top: PythonValues
    modules: tuple[str, ...]
    functions: Mapping[str, PythonValues]

    def of(self, name: str) -> PythonValues:
        """A function's values over those of the function that it begins with."""
        chain: list[PythonValues] = []
        while name in self.functions and len(chain) < _MOST_DEEP:
            chain.append(self.functions[name])
            name = self.functions[name].base
        found = PythonValues(chain[0].name if chain else name)
        for each in reversed(chain):
            found.values |= each.values
            found.calls += each.calls
        return found


def read_python(name: str, text: str) -> PythonFile:
    """The literal values of a file; raises DocumentError if it is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise DocumentError(
            f"{name}{f':{line}' if line else ''}: not valid Python: {error}"
        ) from error
    constants: dict[str, object] = {}
    top = PythonValues("")
    functions: dict[str, PythonValues] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            functions[node.name] = _function(node, name, dict(constants))
        elif isinstance(node, ast.If) and _is_main(node):
            for inner in node.body:
                _statement(inner, name, constants, top)
        else:
            _statement(node, name, constants, top)
    modules = [a.name for node in tree.body if isinstance(node, ast.Import) for a in node.names]
    modules += [n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)]
    return PythonFile(top=top, modules=tuple(modules), functions=functions)


def _is_main(node: ast.If) -> bool:
    return isinstance(node.test, ast.Compare) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _function(node: ast.FunctionDef, file: str, constants: Constants) -> PythonValues:
    found = PythonValues(node.name)
    arguments = [*node.args.posonlyargs, *node.args.args]
    defaults = node.args.defaults
    pairs = list(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d]
    for argument, default in pairs:
        try:
            constants[argument.arg] = _literal(default, constants)
        except _UnknownError:
            continue
        found.values[(argument.arg,)] = (constants[argument.arg], Place(file, default.lineno))
    for statement in node.body:
        _statement(statement, file, constants, found)
    return found


def _statement(node: ast.stmt, file: str, constants: Constants, found: PythonValues) -> None:
    if isinstance(node, (ast.Return, ast.Expr)):
        if node.value is not None:
            _expression(node.value, (), file, constants, found)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        _assignment(node.targets[0], node.value, file, constants, found)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        _assignment(node.target, node.value, file, constants, found)
    elif isinstance(node, (ast.ClassDef, ast.With)):
        for inner in node.body:
            _statement(inner, file, constants, found)


def _assignment(
    target: ast.expr, value: ast.expr, file: str, constants: Constants, found: PythonValues
) -> None:
    path = _path(target)
    if path is None:
        return
    try:
        literal = _literal(value, constants)
    except _UnknownError:
        if len(path) == 1:
            constants.pop(path[0], None)
            call = _called(value) if isinstance(value, ast.Call) else ""
            is_plain = call and "." not in call
            if is_plain and path[0] in ("config", "cfg", "recipe", "base", "c"):
                found.base = call
            # The object that everything is set on is not part of paths.
            inner = () if not isinstance(value, ast.Dict) and _is_object(path[0]) else path
            if isinstance(value, ast.Call) and _called(value) == "dict":
                inner = path
            _expression(value, inner, file, constants, found)
            return
        _expression(value, path[1:], file, constants, found)
        found.values.pop(path[1:], None)
        return
    if len(path) == 1:
        constants[path[0]] = literal
        found.values[path] = (literal, Place(file, value.lineno))
        if isinstance(value, (ast.Dict, ast.Call)):
            _expression(value, path, file, constants, found)
    else:
        found.values[path[1:]] = (literal, Place(file, value.lineno))


def _is_object(name: str) -> bool:
    return name in ("config", "cfg", "recipe", "base", "c", "conf", "trainer", "strategy") or (
        name.isupper()
    )


def _expression(
    node: ast.expr, path: Key, file: str, constants: Constants, found: PythonValues
) -> None:
    """The literal values inside an expression: keywords of calls, entries of dictionaries."""
    if len(path) > _MOST_DEEP:
        return
    if isinstance(node, ast.Call):
        place = Place(file, node.lineno)
        literals = []
        for argument in node.args:
            try:
                literals.append(_literal(argument, constants))
            except _UnknownError:
                _expression(argument, path, file, constants, found)
        found.calls.append((path, _called(node), tuple(literals), place))
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
            _expression(node.func.value, path, file, constants, found)  # of `a(...).b()`
        for keyword in node.keywords:
            if keyword.arg is not None:
                _entry(keyword.arg, keyword.value, path, file, constants, found)
            else:
                _expression(keyword.value, path, file, constants, found)
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                _entry(key.value, value, path, file, constants, found)
    elif isinstance(node, (ast.List, ast.Tuple)):
        for item in node.elts:
            _expression(item, path, file, constants, found)


def _entry(
    key: str,
    value: ast.expr,
    path: Key,
    file: str,
    constants: dict[str, object],
    found: PythonValues,
) -> None:
    inner = (*path, key)
    try:
        found.values[inner] = (_literal(value, constants), Place(file, value.lineno))
    except _UnknownError:
        found.values.pop(inner, None)
        _expression(value, inner, file, constants, found)
    else:
        if isinstance(value, (ast.Dict, ast.Call)):
            _expression(value, inner, file, constants, found)


def _path(target: ast.expr) -> Key | None:
    """`a.b.c` of an attribute, `a["b"]` of an item; None for other targets."""
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Attribute):
        inner = _path(target.value)
        return None if inner is None else (*inner, target.attr)
    if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        inner = _path(target.value)
        return None if inner is None else (*inner, str(target.slice.value))
    return None


def _called(node: ast.Call) -> str:
    path = _path(node.func)
    return ".".join(path) if path else ""


def _literal(node: ast.expr, constants: Mapping[str, object], depth: int = 0) -> Any:
    if depth > 50:
        raise _UnknownError
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return constants[node.id]
    if isinstance(node, ast.Attribute):
        path = _path(node)
        if path and path[-1] in ("bfloat16", "float16", "float32") and path[0] == "torch":
            return path[-1]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, constants, depth)
    if isinstance(node, ast.BinOp):
        left = _number(node.left, constants, depth)
        right = _number(node.right, constants, depth)
        return _computed(node.op, left, right)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item, constants, depth + 1) for item in node.elts]
    raise _UnknownError


def _number(node: ast.expr, constants: Mapping[str, object], depth: int) -> int | float:
    value = _literal(node, constants, depth + 1)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _UnknownError
    return value


def _computed(operator: ast.operator, left: int | float, right: int | float) -> int | float:
    if max(abs(left), abs(right)) > 1e12:
        raise _UnknownError
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Pow) and 0 <= right <= 40 and abs(left) <= 64:
        return float(left) ** right if isinstance(left, float) else left ** int(right)
    if isinstance(operator, (ast.FloorDiv, ast.Div)) and right:
        return left // right if isinstance(operator, ast.FloorDiv) else left / right
    raise _UnknownError
