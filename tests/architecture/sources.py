"""What the shipped modules import, define and mention: each file is parsed once per process."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")


@dataclass(frozen=True, slots=True)
class Class:
    """A class: annotations of its fields by name, and its methods."""

    name: str
    fields: dict[str, str]
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Names in a source text."""

    imports: list[str] = field(default_factory=list)
    """Modules imported anywhere in it."""
    imported: list[str] = field(default_factory=list)
    """Names imported from modules, alone and as `module.name`."""
    classes: list[Class] = field(default_factory=list)
    functions: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    """Functions called by a plain name."""
    mentioned: set[str] = field(default_factory=set)
    """Every name, attribute and definition."""
    defined: list[tuple[int, str]] = field(default_factory=list)
    """Line and name of arguments, classes and functions."""
    signatures: list[tuple[int, list[str]]] = field(default_factory=list)
    """Line of a function, and the types of its arguments and result."""
    texts: list[tuple[int, str]] = field(default_factory=list)
    """Line and text of docstrings, of fields too."""


def modules() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def shipped() -> Iterator[tuple[str, Source]]:
    """Path in the repository and names of each module of the five packages."""
    for path in modules():
        yield path.relative_to(ROOT).as_posix(), source_names(path.read_text(encoding="utf-8"))


@functools.cache
def source_names(text: str) -> Source:
    gc.disable()  # parsing makes no cycles, and the collector doubles its time
    try:
        return _names(ast.parse(text))
    finally:
        gc.enable()


_READ = {
    *(ast.Name, ast.Attribute, ast.Call, ast.arg, ast.Import, ast.ImportFrom),
    *(ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Expr),
}


def _names(tree: ast.Module) -> Source:
    found = Source()
    for node in ast.walk(tree):
        if type(node) not in _READ:
            continue
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.mentioned.add(name)
            case ast.Call(func=ast.Name(id=name)):
                found.calls.append(name)
            case ast.arg(arg=name):
                found.defined.append((node.lineno, name))
            case ast.Import(names=names):
                found.imports.extend(alias.name for alias in names)
                found.mentioned.update(alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names):
                if node.level == 0 and module:
                    found.imports.append(module)
                found.mentioned.update(alias.name for alias in names)
                for alias in names:
                    found.imported.extend((alias.name, f"{module}.{alias.name}"))
            case ast.ClassDef():
                found.mentioned.add(node.name)
                found.defined.append((node.lineno, node.name))
                found.classes.append(_class(node))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.mentioned.add(node.name)
                found.defined.append((node.lineno, node.name))
                found.functions.append(node.name)
                found.signatures.append((node.lineno, _types(node)))
            case ast.Expr(value=ast.Constant(value=str(text))):
                found.texts.append((node.lineno, text))
    return found


def _class(node: ast.ClassDef) -> Class:
    fields = {
        ast.unparse(each.target): ast.unparse(each.annotation)
        for each in node.body
        if isinstance(each, ast.AnnAssign)
    }
    methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
    return Class(node.name, fields, tuple(methods))


def _types(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    found = node.args
    annotations = [one.annotation for one in (*found.posonlyargs, *found.args, *found.kwonlyargs)]
    return [ast.unparse(one) for one in (*annotations, node.returns) if one is not None]
