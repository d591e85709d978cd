"""The configuration returned by a Python function, followed through the functions and modules it
calls.

Recipes call others, change the result, and pass it to functions of other files. Files are found by
their modules' names in the folders above; nothing is run.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from posixpath import normpath
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.interpolation import Open, plain_value, resolved
from shardwright_frameworks.configs.keyed_file import read_keyed
from shardwright_frameworks.configs.python_evaluation import Evaluation, Made
from shardwright_frameworks.configs.python_file import ImportedName, PythonFile, read_python
from shardwright_frameworks.configs.python_values import (
    Built,
    Function,
    Module,
    Named,
    PythonValues,
    flattened,
)
from shardwright_frameworks.shell.config_folder import ConfigFolder, Environment, read_config_text
from shardwright_frameworks.shell.text_marks import Place, unknown_numbers

_MOST_FILES = 200
_MOST_IMPORTS = 10
_WORDS = {"true": True, "false": False, "null": None}
_HYDRA = re.compile(r"(?<!\S)--config-(name|path)[= ](\S+)")
# Functions that return a model for a name; callers need only the name.
_NAMED = ("model_registry",)


@dataclass(slots=True)
class PythonRecipes:
    """The Python files of a source tree.

    environment  the variables exported to the program
    words        the words of its command behind its name
    """

    environment: Environment = field(default_factory=dict)
    words: Sequence[str] = ()
    files: dict[Path, PythonFile | None] = field(default_factory=dict)
    _tops: dict[Path, dict[str, Any]] = field(default_factory=dict)
    _defaults: dict[tuple[Path, str], dict[str, tuple[Any, Place]]] = field(default_factory=dict)
    _evaluation: Evaluation = field(init=False)

    def __post_init__(self) -> None:
        self._evaluation = Evaluation(self, environment=self.environment, words=self.words)

    def configuration(self, path: Path, file: PythonFile, function: str) -> PythonValues:
        """The values of a function of the file at a path."""
        self.files[path] = file
        called = Function(path, file, file.functions[function])
        return flattened(function, self._evaluation.call(called, (), {}))

    def top(self, path: Path, file: PythonFile) -> PythonValues:
        """The object that recipes fill in at the top of a file, otherwise the variables by name."""
        self.files[path] = file
        place = Place(file.name, 1)
        variables = self._top(path, file)
        for found in map(variables.get, ("recipe", "config", "cfg")):
            if isinstance(found, Built) and found.call:
                return flattened("", found)
        return flattened("", Built(entries={n: (each, place) for n, each in variables.items()}))

    def started(self, path: Path, file: PythonFile) -> PythonValues | None:
        """The values of the configuration that a program starts with nemo_run; None if it starts
        none or several."""
        found = [
            each.arguments[-1]
            for each, unsure, _ in self.made(path, file, {})
            if each.arguments and each.call in ("run.run", "add") and not unsure
        ]
        configured = [each for each in found if isinstance(each, Built)]
        return flattened("", configured[0]) if len(configured) == len(found) == 1 else None

    def made(
        self, path: Path, file: PythonFile, arguments: dict[str, tuple[Any, Place]]
    ) -> list[Made]:
        """The objects of other modules' classes that a program makes, given its arguments."""
        self.files[path], self._evaluation.arguments = file, arguments
        self._top(path, file)
        return self._evaluation.made

    def unread(self) -> set[str]:
        """Names of attributes that only branches read which the program passes over, such as the
        options behind a switch that is off."""
        nodes = [n for each in self.files.values() if each is not None for n in each.nodes()]
        passed = _reads(self._evaluation.passed - self._evaluation.taken)
        return {name for name, count in passed.items() if count >= _reads(nodes)[name]}

    def call(self, path: Path, file: PythonFile, function: str, named: dict[str, Any]) -> None:
        """Evaluate a function of the file for the objects that it makes."""
        self._evaluation.call(Function(path, file, file.functions[function]), (), named)

    def defined(
        self, path: Path, file: PythonFile, name: str, depth: int = 0
    ) -> tuple[Path, PythonFile, str] | None:
        """The file that defines a function or class: this one, or the one it is imported from. None
        if no file does."""
        self.files.setdefault(path, file)
        if name in file.functions or name in file.classes:
            return path, file, name
        imported = file.imports.get(name)
        for each in file.stars if imported is None else (imported,):
            source = self._imported(path, each) if depth < _MOST_IMPORTS else None
            own = name if imported is None else imported.name
            found = self.defined(*source, own, depth + 1) if source is not None else None
            if found is not None:
                return found
        return None

    def value(self, path: Path, file: PythonFile, name: str) -> Any:
        """The value of a top-level name of a file."""
        if name.endswith(_NAMED):
            return Named(name)
        top = self._top(path, file)
        if name in top:
            return top[name]
        origin = self.defined(path, file, name)
        if origin is not None:
            where, other, own = origin
            if own in other.functions:
                return Function(where, other, other.functions[own])
            return Named(name)
        return self._module_or_constant(path, file, name, 0) or Named(name)

    def _module_or_constant(self, path: Path, file: PythonFile, name: str, depth: int) -> Any:
        """An imported module, or a top-level variable of a module; None for neither."""
        imported = file.imports.get(name)
        for each in file.stars if imported is None else (imported,):
            own = name if imported is None else each.name
            module = ".".join(part for part in (each.module, own) if part)
            found = self._imported(path, replace(each, module=module))
            if found is not None:
                return Module(*found)
            source = self._imported(path, each) if depth < _MOST_IMPORTS else None
            if source is not None:
                top = self._top(*source)
                if own in top:
                    return top[own]
                inner = self._module_or_constant(*source, own, depth + 1)
                if inner is not None:
                    return inner
        return None

    def defaults(self, path: Path, file: PythonFile, name: str) -> dict[str, tuple[Any, Place]]:
        """The constants in the definition of a class and of its bases."""
        if (path, name) in self._defaults:
            return self._defaults[path, name]
        found: dict[str, tuple[Any, Place]] = {}
        self._defaults[path, name] = found
        outer, _, inner = name.partition(".")
        origin = self.defined(path, file, outer) if outer[:1].isupper() else None
        if origin is None or origin[2] not in origin[1].classes:
            return found
        where, other, own = origin
        node = other.classes[own]
        if inner:
            nested = [each for each in node.body if isinstance(each, ast.ClassDef)]
            node = next((each for each in nested if each.name == inner), node)
        for base in reversed(node.bases):
            found |= self.defaults(where, other, ast.unparse(base))
        for each in node.body:
            value = each.value if isinstance(each, ast.AnnAssign) else None
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
                value = next((one.value for one in value.keywords if one.arg == "default"), None)
            if isinstance(each, ast.AnnAssign) and isinstance(value, ast.Constant):
                found[ast.unparse(each.target)] = (value.value, Place(other.name, each.lineno))
        return found

    def method(self, path: Path, file: PythonFile, name: str) -> Function | None:
        """The function of a class by `Class.method`; None if no file has it."""
        outer, _, own = name.rpartition(".")
        origin = self.defined(path, file, outer) if outer[:1].isupper() else None
        if origin is None or origin[2] not in origin[1].classes:
            return None
        where, other, kind = origin
        body = other.classes[kind].body
        found = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == own]
        return Function(where, other, found[0]) if len(found) == 1 else None

    def loaded(self, path: Path, name: str) -> Any:
        """The content of a YAML or JSON file, named from the program's folder or one above it in
        its repository."""
        return self._content(path, name, ())

    def composed(self, path: Path, folder: str, name: str) -> Any:
        """The configuration of Hydra in a folder, with the groups and values of the command."""
        options = dict(_HYDRA.findall(" ".join(self.words)))
        folder, name = options.get("path", folder), options.get("name", name)
        ending = "" if name.endswith((".yaml", ".yml")) else ".yaml"
        return self._content(path, f"{folder}/{name}{ending}", self.words)

    def _content(self, path: Path, named: str, words: Sequence[str]) -> Any:
        folder, name = ConfigFolder(root=path.parent), re.sub(r"^(\.\./)+", "", normpath(named))
        readable = name.endswith((".yaml", ".yml", ".json"))
        if not readable or folder.text_from_root(name) is None:
            return Open(f"the file {name!r} is not read")
        given = dict(word.split("=", 1) for word in words if re.match(r"[+~]*[\w.@/]+=", word))
        try:
            parts = hydra_parts(read_keyed(name, folder), folder, given).parts
        except DocumentError as error:
            return Open(str(error))
        values = {(*p, *k): (v, f.place(k)) for p, f in parts for k, v in f.values.items()}
        place = Place(name, 1)
        for key, text in given.items():
            inside = tuple(key.lstrip("+~").split("."))
            if unknown_numbers(text):
                values[inside] = (Open(f"{key} is unknown in the command"), place)
            elif inside in values or len(inside) > 1:
                values[inside] = (_WORDS.get(text.lower(), plain_value(text)), place)
        written = {key: value for key, (value, _) in values.items()}
        whole = Built(place=place)
        for keys, (_, at) in values.items():
            part = whole
            for key in keys[:-1]:
                inner = part.entries.setdefault(key, (Built(place=at), at))[0]
                part = inner if isinstance(inner, Built) else Built()
            if keys:
                part.entries[keys[-1]] = (resolved(keys, written, self.environment), at)
        return whole

    def _top(self, path: Path, file: PythonFile) -> dict[str, Any]:
        if path not in self._tops:
            self._tops[path] = {}  # filled by statement: functions called there use it
            self._evaluation.top(path, file, self._tops[path])
        return self._tops[path]

    def _imported(self, near: Path, imported: ImportedName) -> tuple[Path, PythonFile] | None:
        """The file of an imported module: below the folder of the importing file's package, or
        below one of its parent folders or their `src`."""
        parts = [part for part in imported.module.split(".") if part]
        level, roots = imported.level, list(near.parents)
        sources = [each for root in roots for each in (root, root / "src")]
        for root in roots[level - 1 : level] if level else sources:
            base = root.joinpath(*parts)
            for path in (base.with_suffix(".py"), base / "__init__.py"):
                file = self._read(path)
                if file is not None:
                    return path, file
        return None

    def _read(self, path: Path) -> PythonFile | None:
        if path not in self.files:
            if len(self.files) >= _MOST_FILES or not path.is_file():
                return None
            try:
                name = "/".join(path.parts[-3:])
                self.files[path] = read_python(name, read_config_text(path))
            except DocumentError:
                self.files[path] = None
        return self.files[path]


def _reads(nodes: Iterable[ast.AST]) -> Counter[str]:
    attributes = (each for node in nodes for each in ast.walk(node))
    return Counter(each.attr for each in attributes if isinstance(each, ast.Attribute))
