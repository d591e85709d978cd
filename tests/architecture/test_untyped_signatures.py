"""Signatures hold typed values: `dict[str, Any]` stays at file borders.

File borders write or read JSON, TOML, YAML or rows of tables, and are listed by their folders or
names. Elsewhere each package has a ceiling, which may only fall:

    python -m tests.architecture.test_untyped_signatures
"""

from __future__ import annotations

import ast
import re

from tests.architecture.test_imports import ROOT, modules

_UNTYPED = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, (Any|object)\]")
_BORDERS = re.compile(
    r"_json\.py$|_file\.py$|_files\.py$|_table\.py$|_columns\.py$|_row\.py$|document\.py$|config"
    r"|shardwright/(results|sweeps)/|reports/brief/|chrome_trace|exports/|logs/|traces/|reading/"
    r"|/configs/|/shell/|^bench/|^tools/|^evidence/"
)
CEILINGS = {
    "executor": 12,
    "planner": 1,
    "plugins": 0,
    "profiles": 23,
    "shardwright": 22,
    "simulator": 4,
}


def untyped(source: str) -> list[int]:
    """Lines of the functions with such a type in their signature."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            each = [*arguments.args, *arguments.posonlyargs, *arguments.kwonlyargs]
            types = [one.annotation for one in each if one.annotation] + [node.returns]
            if any(_UNTYPED.search(ast.unparse(one)) for one in types if one is not None):
                found.append(node.lineno)
    return found


def by_package() -> dict[str, list[str]]:
    """Places of such signatures outside of file borders."""
    found: dict[str, list[str]] = {package: [] for package in CEILINGS}
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        package = name.split("/")[0]
        if package in found and not _BORDERS.search(name):
            lines = untyped(path.read_text(encoding="utf-8"))
            found[package] += [f"{name}:{line}" for line in lines]
    return found


def test_no_package_exceeds_its_ceiling() -> None:
    for package, places in by_package().items():
        assert len(places) <= CEILINGS[package], "\n".join(places)


def test_the_check_sees_parameters_and_results() -> None:
    assert untyped("def f(x: dict[str, Any]) -> None: ...") == [1]
    assert untyped("\ndef f() -> Mapping[str, object]: ...") == [2]
    assert untyped("def f(x: dict[str, int]) -> None: ...") == []


if __name__ == "__main__":
    for name, places in by_package().items():
        print(name, len(places), *places, sep="\n  ")
