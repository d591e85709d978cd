"""`PythonFile`: a Python file's functions, classes, imports and the names that it writes, from its
syntax tree; nothing of it is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from profiles.errors import DocumentError

# Names of the object that a function fills in.
OBJECTS = frozenset({"config", "cfg", "recipe", "base", "c"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedName:
    """A name of another module: `from ..recipes import name as other`; a module has no name."""

    module: str
    level: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFile:
    """A file's definitions.

    body     top-level statements that define neither a function nor a class, including those under
             `if __name__ == "__main__"`
    imports  names of other modules, by the local name;  stars  modules of `from x import *`
    """

    name: str
    modules: tuple[str, ...]
    body: tuple[ast.stmt, ...]
    functions: Mapping[str, ast.FunctionDef]
    classes: Mapping[str, ast.ClassDef]
    imports: Mapping[str, ImportedName]
    stars: tuple[ImportedName, ...]

    def keys(self, function: str | None = None) -> frozenset[str]:
        """The names of keywords, attributes, entries and parameters set in a function; without one,
        at the top of the file."""
        nodes = self.body if function is None else (self.functions[function],)
        return frozenset(key for node in nodes for key in _written(node))

    def nodes(self) -> tuple[ast.stmt, ...]:
        """The statements, functions and classes."""
        return (*self.body, *self.functions.values(), *self.classes.values())

    def calls(self) -> frozenset[str]:
        """The dotted names of everything that the file calls."""
        walked = (each for node in self.nodes() for each in ast.walk(node))
        calls = (each for each in walked if isinstance(each, ast.Call))
        return frozenset(dotted(call.func) for call in calls)

    def changes_another(self, function: str) -> bool:
        """Whether a function returns or changes the configuration of another one."""
        for node in ast.walk(self.functions[function]):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                target = dotted(node.targets[0])
                if target in OBJECTS and isinstance(node.value.func, ast.Name):
                    return True
        return False


def read_python(name: str, text: str) -> PythonFile:
    """A file's definitions; raises DocumentError if it is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise DocumentError(
            f"{name}{f':{line}' if line else ''}: not valid Python: {error}"
        ) from error
    body: list[ast.stmt] = []
    imports: dict[str, ImportedName] = {}
    stars: list[ImportedName] = []
    modules: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.If) and _is_main(node):
            body += node.body
        elif isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
            for alias in node.names:
                if alias.asname:
                    imports[alias.asname] = ImportedName(module=alias.name, level=0, name="")
        elif isinstance(node, ast.ImportFrom):
            modules.append(node.module or "")
            for alias in node.names:
                one = ImportedName(module=node.module or "", level=node.level, name=alias.name)
                if alias.name == "*":
                    stars.append(one)
                else:
                    imports[alias.asname or alias.name] = one
        elif not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            body.append(node)
    return PythonFile(
        name=name,
        modules=tuple(modules),
        body=tuple(body),
        functions={node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)},
        classes={node.name: node for node in tree.body if isinstance(node, ast.ClassDef)},
        imports=imports,
        stars=tuple(stars),
    )


def dotted(node: ast.expr) -> str:
    """`a.b.c` of an attribute; "" for other expressions, and for attributes of a call."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else node.attr
    return ""


def _is_main(node: ast.If) -> bool:
    return isinstance(node.test, ast.Compare) and any(
        isinstance(part, ast.Name) and part.id == "__name__" for part in ast.walk(node.test)
    )


def _written(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.keyword) and each.arg is not None:
            yield each.arg
        elif isinstance(each, (ast.Attribute, ast.Name)) and isinstance(each.ctx, ast.Store):
            yield each.attr if isinstance(each, ast.Attribute) else each.id
        elif isinstance(each, ast.Dict):
            yield from (str(key.value) for key in each.keys if isinstance(key, ast.Constant))
        elif isinstance(each, ast.arg):
            yield each.arg
