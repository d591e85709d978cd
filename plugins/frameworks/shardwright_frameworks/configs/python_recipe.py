"""The configuration that a Python function gives, through the functions and modules that it calls.

Recipes call others, change the result, and pass it to functions of other files. All of it is read
from syntax trees; nothing is run. Files are found by their modules' names in the folders above.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from profiles.errors import DocumentError
from shardwright_frameworks.configs.python_values import (
    FunctionCall,
    ImportedName,
    PythonFile,
    PythonValues,
    read_python,
)
from shardwright_frameworks.shell.config_folder import read_config_text

_MOST_CALLS = 200
_MOST_FILES = 100
_MOST_IMPORTS = 10


@dataclass(slots=True)
class PythonRecipes:
    """The Python files of a source tree.

    missing  imported functions that give or change a configuration and are in no file
    """

    files: dict[Path, PythonFile | None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    _calls: int = 0
    _parameters: set[str] = field(default_factory=set)

    def configuration(self, path: Path, file: PythonFile, function: str) -> PythonValues:
        """The values of a function of the file at a path."""
        self.files[path] = file
        found = PythonValues(function)
        found.values |= {
            key: value for key, value in file.functions[function].values.items() if len(key) == 1
        }
        self._carry_out(path, file, FunctionCall(name=function, arguments={}), found)
        # Arguments of functions that were followed have their effect there, and variables with
        # the name of a key have it in that key.
        keys = {key[-1] for key in found.values if len(key) > 1}
        for name in self._parameters | keys:
            found.values.pop((name,), None)
        return found

    def defined(
        self, path: Path, file: PythonFile, name: str
    ) -> tuple[Path, PythonFile, str] | None:
        """Where a function of that name is defined: in the file, or where the file imports it
        from. None where no file has it."""
        self.files[path] = file
        for _ in range(_MOST_IMPORTS):
            if name in file.functions:
                return path, file, name
            imported = file.imports.get(name)
            sources = file.stars if imported is None else (imported,)
            found = (self._imported(path, each) for each in sources)
            origin = next((each for each in found if each is not None), None)
            if origin is None:
                return None
            name = name if imported is None else imported.name
            path, file = origin
        return None

    def _carry_out(
        self, path: Path, file: PythonFile, call: FunctionCall, found: PythonValues
    ) -> None:
        self._calls += 1
        if self._calls > _MOST_CALLS:
            return
        for step in file.called(call).steps:
            if not isinstance(step, FunctionCall):
                step(found)
                continue
            origin = self.defined(path, file, step.name)
            if origin is not None:
                where, other, name = origin
                inner = FunctionCall(name=name, arguments=step.arguments)
                self._parameters |= other.parameters(name)
                self._carry_out(where, other, inner, found)
            elif step.name in file.imports and not step.name[0].isupper():  # no class
                self.missing.append(step.name)

    def _imported(self, near: Path, imported: ImportedName) -> tuple[Path, PythonFile] | None:
        """The file of an imported module: below the folder of the importing file's package, or
        below a folder above it."""
        parts = [part for part in imported.module.split(".") if part]
        level, roots = imported.level, list(near.parents)
        for root in roots[level - 1 : level] if level else roots:
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
