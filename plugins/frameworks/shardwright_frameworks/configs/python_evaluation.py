"""Evaluates the effect of a Python function's statements on a configuration, without running it.

A condition with a known value is followed. Values set in the branches of any other condition are
unknown (`Open`), unless they equal the earlier values; the same holds for loops over unknown
values. Calls of functions defined in the files are followed, with their arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.python_arguments import is_parser
from shardwright_frameworks.configs.python_file import OBJECTS, PythonFile, dotted
from shardwright_frameworks.configs.python_operations import (
    BUILTINS,
    attribute_of,
    compared,
    computed,
    configured,
    constructed,
    item_of,
    method_result,
    truth_value,
    variable_of,
)
from shardwright_frameworks.configs.python_values import Built, Function, Module, Named, is_literal
from shardwright_frameworks.shell.config_folder import Environment
from shardwright_frameworks.shell.text_marks import Place

_MOST_STEPS = 60_000
_MOST_DEEP = 40
_MOST_TURNS = 100
# Functions of frameworks that train with a configuration.
_STARTS = ("pretrain", "finetune", "train")
# Functions that read a file of values.
_LOADS = re.compile(r"(^|\.)(yaml\.(safe_|full_)?load|json\.load|OmegaConf\.load|load_yaml)$")
_PARSES = ("parse_args_into_dataclasses", "parse_yaml_file", "parse_json_file", "parse_dict")
_VARIABLE = re.compile(r"(os\.)?(environ\.get|getenv)$")
_NOTHING = object()


class Definitions(Protocol):
    """The meaning of names in a file."""

    def value(self, path: Path, file: PythonFile, name: str) -> Any:
        """The value of a name of a file's top: a literal, an object, a Function, or Named."""

    def defaults(self, path: Path, file: PythonFile, name: str) -> dict[str, tuple[Any, Place]]:
        """The entries in a class's definition."""

    def method(self, path: Path, file: PythonFile, name: str) -> Function | None:
        """The function of a class by `Class.method`; None if no file has it."""

    def composed(self, path: Path, folder: str, name: str) -> Any:
        """The configuration of Hydra in a folder; Open if it is unknown."""

    def loaded(self, path: Path, name: str) -> Any:
        """The content of a YAML or JSON file by its name in a program; Open if it is unknown."""


@dataclass(slots=True)
class _Frame:
    """One call: its file and variables; `unsure` is why the statement at hand may not run."""

    path: Path
    file: PythonFile
    variables: dict[str, Any]
    unsure: str = ""
    returned: list[Any] = field(default_factory=list)

    def place(self, node: ast.AST) -> Place:
        return Place(self.file.name, getattr(node, "lineno", 1))


@dataclass(frozen=True, slots=True)
class _Method:
    holder: Any
    name: str


class Made(NamedTuple):
    """An object made by a program.

    unsure  why that may not happen; "" if it does
    module  that the class is imported from, "" if that is not written
    """

    built: Built
    unsure: str
    module: str = ""


@dataclass(slots=True)
class Evaluation:
    """The evaluation of one configuration, with limits on its length.

    made         the objects of classes that are not in the files, in their order
    arguments    those given to the program, by name
    environment  the variables exported to it
    words        the words of its command behind its name
    taken, passed  the parts of branches that a known condition takes, or passes over
    """

    definitions: Definitions
    made: list[Made] = field(default_factory=list)
    arguments: dict[str, tuple[Any, Place]] = field(default_factory=dict)
    environment: Environment = field(default_factory=dict)
    words: Sequence[str] = ()
    taken: set[ast.AST] = field(default_factory=set)
    passed: set[ast.AST] = field(default_factory=set)
    steps: int = 0
    depth: int = 0

    def top(self, path: Path, file: PythonFile, variables: dict[str, Any]) -> None:
        """Evaluate the top level of a file and set its variables."""
        self._run(file.body, _Frame(path, file, variables))

    def call(
        self, function: Function, arguments: Sequence[Any], named: dict[str, Any], unsure: str = ""
    ) -> Any:
        """The result of a function for arguments; Open if unknown."""
        node, given = function.node, dict(function.given)
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        given |= dict(zip(names, arguments, strict=False)) | named
        if names and not given and (composed := self._of_hydra(function)) is not None:
            given[names[0]] = composed
        frame = _Frame(function.path, function.file, {}, unsure)
        defaults = node.args.defaults
        pairs = list(zip(names[len(names) - len(defaults) :], defaults, strict=True))
        keyword_only = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        pairs += [(each.arg, default) for each, default in keyword_only if default is not None]
        known = {*names, *(each.arg for each in node.args.kwonlyargs)}
        frame.variables = {
            name: Open(f"the parameter {name} of {node.name} is not given") for name in known
        }
        frame.variables |= {name: self._value(default, frame) for name, default in pairs}
        frame.variables |= {name: value for name, value in given.items() if name in known}
        if node.args.vararg is not None:
            frame.variables[node.args.vararg.arg] = list(arguments)[len(names) :]
        if node.args.kwarg is not None:
            place = frame.place(node)
            others = {name: (v, place) for name, v in given.items() if name not in known}
            frame.variables[node.args.kwarg.arg] = Built(entries=others, place=place)
        if self.depth >= _MOST_DEEP:
            return Open(f"{node.name}(...) is too deep")
        self.depth += 1
        result = self._run(node.body, frame)
        self.depth -= 1
        if result is _NOTHING and not self.depth:  # a program without a result
            built = [frame.variables[name] for name in OBJECTS & frame.variables.keys()]
            result = built[0] if len(built) == 1 else None
        result = None if result is _NOTHING else result
        if any(not _same(each, result) for each in frame.returned):
            result = Open(f"the result of {node.name}(...) depends on a condition")
        if isinstance(result, Built) and result.open and not result.call:
            result = Open(f"the result of {node.name}(...) is not followed")
        if isinstance(result, Open) and is_literal(list(arguments)):
            # Its name and arguments may be enough.
            return Built(
                call=node.name, arguments=list(arguments), open=result.why, place=frame.place(node)
            )
        return result

    def _of_hydra(self, function: Function) -> Any:
        """The configuration that `@hydra.main(config_path=..., config_name=...)` passes; None for
        other functions."""
        for call in function.node.decorator_list:
            if isinstance(call, ast.Call) and dotted(call.func) in ("hydra.main", "hydra_runner"):
                frame = _Frame(function.path, function.file, {})
                given = {each.arg: self._value(each.value, frame) for each in call.keywords}
                folder, name = given.get("config_path") or ".", given.get("config_name")
                if isinstance(folder, str) and isinstance(name, str):
                    return self.definitions.composed(function.path, folder, name)
        return None

    def _run(self, body: Iterable[ast.stmt], frame: _Frame) -> Any:
        for statement in body:
            self.steps += 1
            if self.steps > _MOST_STEPS:
                return Open("the configuration is too long to follow")
            result = self._statement(statement, frame)
            if result is not _NOTHING:
                return result
        return _NOTHING

    def _statement(self, node: ast.stmt, frame: _Frame) -> Any:
        if isinstance(node, ast.Return):
            result = None if node.value is None else self._value(node.value, frame)
            if not frame.unsure:
                return result
            frame.returned.append(result)
        elif isinstance(node, ast.Expr):
            function = node.value.func if isinstance(node.value, ast.Call) else None
            called = function.id if isinstance(function, ast.Name) else ""
            if called not in _STARTS or called in frame.file.functions:
                self._value(node.value, frame)
        elif isinstance(node, ast.Assign):
            value = self._value(node.value, frame)
            for target in node.targets:
                self._assign(target, value, frame, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, self._value(node.value, frame), frame, node.value)
        elif isinstance(node, ast.AugAssign):
            read = ast.copy_location(ast.BinOp(_loaded(node.target), node.op, node.value), node)
            self._assign(node.target, self._value(read, frame), frame, node.value)
        elif isinstance(node, ast.If):
            return self._branches(node, frame)
        elif isinstance(node, (ast.For, ast.While)):
            return self._loop(node, frame)
        elif isinstance(node, ast.With):
            for each in node.items:
                value = self._value(each.context_expr, frame)
                if each.optional_vars is not None:
                    self._assign(each.optional_vars, value, frame, each.context_expr)
            return self._run(node.body, frame)
        elif isinstance(node, ast.Try):
            return self._run([*node.body, *node.orelse, *node.finalbody], frame)
        elif isinstance(node, ast.FunctionDef):
            frame.variables[node.name] = Function(frame.path, frame.file, node)
        elif isinstance(node, (ast.Raise, ast.Continue, ast.Break)) and not frame.unsure:
            return None if isinstance(node, ast.Raise) else _NOTHING
        elif isinstance(node, ast.Match):
            self._unsure([case.body for case in node.cases], frame, frame.place(node))
        return _NOTHING

    def _branches(self, node: ast.If, frame: _Frame) -> Any:
        known = truth_value(self._value(node.test, frame))
        if known is None:
            self._unsure([node.body, node.orelse], frame, frame.place(node))
            return _NOTHING
        taken, passed = (node.body, node.orelse) if known else (node.orelse, node.body)
        self.taken |= set(taken)
        self.passed |= set(passed)
        return self._run(taken, frame)

    def _loop(self, node: ast.For | ast.While, frame: _Frame) -> Any:
        items = self._value(node.iter, frame) if isinstance(node, ast.For) else None
        if not isinstance(items, list) or len(items) > _MOST_TURNS or isinstance(node, ast.While):
            self._unsure([node.body], frame, frame.place(node))
            return _NOTHING
        for item in items:
            self._assign(node.target, item, frame, node.iter)
            result = self._run(node.body, frame)
            if result is not _NOTHING:
                return result
        return _NOTHING

    def _unsure(self, bodies: Iterable[list[ast.stmt]], frame: _Frame, place: Place) -> None:
        before = frame.unsure
        frame.unsure = before or f"it depends on a condition, which is not followed ({place})"
        for body in bodies:
            self._run(body, frame)
        frame.unsure = before

    def _assign(self, target: ast.expr, value: Any, frame: _Frame, source: ast.expr) -> None:
        place = frame.place(source)
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value if isinstance(value, list) and len(value) == len(target.elts) else None
            for number, each in enumerate(target.elts):
                part = parts[number] if parts else Open("a part of an unknown value")
                self._assign(each, part, frame, source)
        elif isinstance(target, ast.Name):
            old = frame.variables.get(target.id, _NOTHING)
            if frame.unsure and not _same(old, value):
                value = Open(frame.unsure)
            frame.variables[target.id] = value
        elif isinstance(target, (ast.Attribute, ast.Subscript)):
            holder = self._value(target.value, frame)
            key = (
                target.attr
                if isinstance(target, ast.Attribute)
                else self._value(target.slice, frame)
            )
            if isinstance(holder, Built) and isinstance(key, (str, int)):
                set_entry(holder, key, value, place, frame.unsure)
            elif isinstance(holder, Built):
                holder.open = holder.open or "a key of it is unknown"

    def _value(self, node: ast.expr, frame: _Frame) -> Any:
        self.steps += 1
        if self.steps > _MOST_STEPS:
            return Open("the configuration is too long to follow")
        read: Callable[[Any, _Frame], Any] | None = getattr(self, f"_{type(node).__name__}", None)
        if read is None:
            return Open(f"{ast.unparse(node)[:60]!r} is not followed")
        return read(node, frame)

    def _Constant(self, node: ast.Constant, frame: _Frame) -> Any:
        return node.value

    def _Name(self, node: ast.Name, frame: _Frame) -> Any:
        if node.id in frame.variables:
            return frame.variables[node.id]
        return self.definitions.value(frame.path, frame.file, node.id)

    def _Attribute(self, node: ast.Attribute, frame: _Frame) -> Any:
        holder = self._value(node.value, frame)
        if holder == Named("sys") and node.attr == "argv" and self.words:
            return ["", *self.words]
        if isinstance(holder, Module):
            return self.definitions.value(holder.path, holder.file, node.attr)
        return attribute_of(holder, node.attr, frame.place(node))

    def _Subscript(self, node: ast.Subscript, frame: _Frame) -> Any:
        holder = self._value(node.value, frame)
        if isinstance(node.slice, ast.Slice):
            ends = (node.slice.lower, node.slice.upper, node.slice.step)
            given = [None if end is None else self._value(end, frame) for end in ends]
            known = isinstance(holder, (list, str)) and is_literal(given)
            return holder[slice(*given)] if known else Open("a part of an unknown value")
        return item_of(holder, self._value(node.slice, frame), frame.place(node))

    def _List(self, node: ast.List | ast.Tuple | ast.Set, frame: _Frame) -> Any:
        found: list[Any] = []
        for each in node.elts:
            if isinstance(each, ast.Starred):
                inner = self._value(each.value, frame)
                found += inner if isinstance(inner, list) else [Open("an unknown list")]
            else:
                found.append(self._value(each, frame))
        return found

    _Tuple = _List
    _Set = _List

    def _Dict(self, node: ast.Dict, frame: _Frame) -> Any:
        built = Built(place=frame.place(node))
        for key, each in zip(node.keys, node.values, strict=True):
            value = self._value(each, frame)
            if key is None:
                _merge(built, value)
                continue
            name = self._value(key, frame)
            name = tuple(name) if isinstance(name, list) and is_literal(name) else name
            if isinstance(name, (str, int, tuple)):
                built.entries[name] = (value, frame.place(each))
            else:
                built.open = "a key of it is unknown"
        return built

    def _BinOp(self, node: ast.BinOp, frame: _Frame) -> Any:
        return computed(node.op, self._value(node.left, frame), self._value(node.right, frame))

    def _UnaryOp(self, node: ast.UnaryOp, frame: _Frame) -> Any:
        value = self._value(node.operand, frame)
        if isinstance(node.op, ast.Not):
            known = truth_value(value)
            return Open("an unknown condition") if known is None else not known
        is_number = isinstance(value, (int, float))
        return -value if isinstance(node.op, ast.USub) and is_number else value

    def _BoolOp(self, node: ast.BoolOp, frame: _Frame) -> Any:
        stops = isinstance(node.op, ast.Or)
        value: Any = None
        for each in node.values:
            value = self._value(each, frame)
            known = truth_value(value)
            if known is None:
                return Open("an unknown condition")
            if known is stops:
                return value
        return value

    def _Compare(self, node: ast.Compare, frame: _Frame) -> Any:
        left = self._value(node.left, frame)
        for operator, each in zip(node.ops, node.comparators, strict=True):
            right = self._value(each, frame)
            known = compared(operator, left, right)
            if known is not True:
                return Open("an unknown condition") if known is None else False
            left = right
        return True

    def _IfExp(self, node: ast.IfExp, frame: _Frame) -> Any:
        known = truth_value(self._value(node.test, frame))
        if known is not None:
            taken, passed = (node.body, node.orelse) if known else (node.orelse, node.body)
            self.taken.add(taken)
            self.passed.add(passed)
            return self._value(taken, frame)
        first, second = self._value(node.body, frame), self._value(node.orelse, frame)
        return first if _same(first, second) else Open("it depends on an unknown condition")

    def _JoinedStr(self, node: ast.JoinedStr, frame: _Frame) -> Any:
        parts = [
            self._value(each.value if isinstance(each, ast.FormattedValue) else each, frame)
            for each in node.values
        ]
        known = all(isinstance(part, (str, int, float)) for part in parts)
        return "".join(map(str, parts)) if known else Open("a text with an unknown part")

    def _NamedExpr(self, node: ast.NamedExpr, frame: _Frame) -> Any:
        value = self._value(node.value, frame)
        self._assign(node.target, value, frame, node.value)
        return value

    def _Starred(self, node: ast.Starred, frame: _Frame) -> Any:
        return self._value(node.value, frame)

    def _ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp, frame: _Frame) -> Any:
        found = [self._value(node.elt, each) for each in self._turns(node.generators, frame)]
        return found if self._is_known(node.generators, frame) else Open("an unknown list")

    _GeneratorExp = _ListComp
    _SetComp = _ListComp

    def _DictComp(self, node: ast.DictComp, frame: _Frame) -> Any:
        built = Built(place=frame.place(node))
        for each in self._turns(node.generators, frame):
            key = self._value(node.key, each)
            if isinstance(key, (str, int)):
                built.entries[key] = (self._value(node.value, each), each.place(node.value))
        items = self._value(node.generators[0].iter, frame)
        if not isinstance(items, list) or any(isinstance(item, Open) for item in items):
            built.open = "it is made of unknown entries"
        return built

    def _is_known(self, generators: list[ast.comprehension], frame: _Frame) -> bool:
        return isinstance(self._value(generators[0].iter, frame), list) and len(generators) == 1

    def _turns(self, generators: list[ast.comprehension], frame: _Frame) -> list[_Frame]:
        """The variables of each turn of a comprehension over one known list."""
        first = generators[0]
        items = self._value(first.iter, frame)
        if len(generators) > 1 or not isinstance(items, list) or len(items) > _MOST_TURNS:
            return []
        turns = []
        for item in items:
            inner = _Frame(frame.path, frame.file, dict(frame.variables))
            self._assign(first.target, item, inner, first.iter)
            if all(truth_value(self._value(test, inner)) for test in first.ifs):
                turns.append(inner)
        return turns

    def _Call(self, node: ast.Call, frame: _Frame) -> Any:
        place = frame.place(node)
        arguments: list[Any] = []
        for each in node.args:
            value = self._value(each, frame)
            spread = isinstance(each, ast.Starred) and isinstance(value, list)
            arguments += value if spread else [value]
        keywords = Built(place=place)
        for keyword in node.keywords:
            value = self._value(keyword.value, frame)
            if keyword.arg is None:
                _merge(keywords, value)
            else:
                set_entry(keywords, keyword.arg, value, frame.place(keyword.value), "")
        if (plain := ast.unparse(node.func)) in BUILTINS:
            imported = frame.file.imports.get(plain)
            is_own = imported is None or imported.module == "typing"
            if plain not in frame.file.functions and is_own:
                return BUILTINS[plain](arguments, keywords, place, frame.unsure)
        named = {str(key): value for key, (value, _) in keywords.entries.items()}
        function = self._function(node.func, frame)
        if isinstance(function, _Method) and function.name in _PARSES:
            source = [*arguments, *named.values()]
            return self._parsed(function.holder, source[0] if source else None, frame)
        if isinstance(function, _Method):
            holder = function.holder
            own = f"{holder.call}.{function.name}" if isinstance(holder, Built) else ""
            if (method := self._method(own, frame, of_class=False)) and not keywords.open:
                return self.call(method, [holder, *arguments], named, frame.unsure)
            result = method_result(
                function.holder, function.name, arguments, keywords, place, frame.unsure
            )
            if isinstance(result, Built):
                self.made.append(Made(result, frame.unsure))
            return result
        if isinstance(function, Function):
            if keywords.open:
                return Open(keywords.open)
            return self.call(function, arguments, named, frame.unsure)
        name = function.name if isinstance(function, Named) else dotted(node.func)
        if (method := self._method(name, frame, of_class=True)) is not None and not keywords.open:
            return self.call(
                method, [Named(name.rpartition(".")[0]), *arguments], named, frame.unsure
            )
        if name.endswith("Fire") and arguments and isinstance(arguments[0], Function):
            given = {key: value for key, (value, _) in self.arguments.items()}
            return self.call(arguments[0], (), given, frame.unsure)
        if _VARIABLE.match(name):
            return variable_of(arguments, self.environment)
        if _LOADS.search(name) and arguments and not frame.unsure:
            opened = arguments[0]
            is_open = isinstance(opened, Built) and opened.call == "open" and opened.arguments
            written = opened.arguments[0] if is_open else opened
            if isinstance(written, str):
                return self.definitions.loaded(frame.path, written)
        name, arguments, is_configured = configured(name, arguments)
        defaults = self.definitions.defaults(frame.path, frame.file, name)
        result = constructed(
            name, arguments, keywords, place, defaults, is_configured=is_configured
        )
        if is_parser(result):
            result.defaults = self.arguments
        if isinstance(result, Built):
            imported = frame.file.imports.get(name)
            module = imported.module if imported is not None else ""
            self.made.append(Made(result, frame.unsure, module))
        return result

    def _parsed(self, parser: Any, source: Any, frame: _Frame) -> Any:
        """The objects of transformers' parser: the classes' defaults and the given arguments, or
        the values of a file."""
        read = self.definitions.loaded(frame.path, source) if isinstance(source, str) else source
        if source is not None and not isinstance(read, Built):
            return Open("the file of the parser is unknown")
        given = self.arguments if source is None else read.entries
        kinds = parser.arguments[0] if isinstance(parser, Built) and parser.arguments else None
        if not isinstance(kinds, (list, Named)):
            return Open("the parser's classes are unknown")
        return [
            Built(
                entries=self.definitions.defaults(frame.path, frame.file, kind.name) | given,
                open="an argument without a default in the files",
            )
            if isinstance(kind, Named)
            else Open("a class of the parser is unknown")
            for kind in (kinds if isinstance(kinds, list) else [kinds])
        ]

    def _method(self, name: str, frame: _Frame, *, of_class: bool) -> Function | None:
        """The method `Class.method` of the files: one of the class itself, or of its objects."""
        found = self.definitions.method(frame.path, frame.file, name)
        decorators = [] if found is None else list(map(ast.unparse, found.node.decorator_list))
        return found if decorators == ["classmethod"] * of_class else None

    def _function(self, node: ast.expr, frame: _Frame) -> Any:
        """The callee: a function, a name that is not in the files, or a value's method."""
        if isinstance(node, ast.Attribute):
            holder = self._value(node.value, frame)
            is_entry = isinstance(holder, Built) and node.attr in holder.entries
            if not isinstance(holder, (Named, Module)) and not is_entry:
                return _Method(holder, node.attr)
        return self._value(node, frame)


def set_entry(built: Built, key: str | int, value: Any, place: Place, unsure: str) -> None:
    """Set an entry of an object; the other entries of a new part are unknown."""
    if isinstance(value, Built) and value.is_unset:
        value = Open(value.open or "it is not set in the files")
    if unsure:
        old = built.entries.get(key, (_NOTHING, place))[0]
        value = value if _same(old, value) else Open(unsure)
    built.entries[key] = (value, place)


def _merge(built: Built, value: Any) -> None:
    if isinstance(value, Built):
        built.entries |= value.entries
        built.open = built.open or value.open
    else:
        built.open = built.open or "it has unknown entries"


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return (
        is_literal(first) and is_literal(second) and type(first) is type(second) and first == second
    )


def _loaded(target: ast.expr) -> ast.expr:
    """The target of `x += 1` as a value."""
    return ast.parse(ast.unparse(target), mode="eval").body
