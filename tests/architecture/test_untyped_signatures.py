"""Signatures hold typed values: `dict[str, Any]` stays at file borders.

File borders write or read JSON, TOML, YAML or rows of tables, and are listed by their folders or
names. Elsewhere each package has a ceiling, which may only fall:

    python -m tests.architecture.test_untyped_signatures
"""

from __future__ import annotations

import re

import pytest

from tests.architecture.sources import Source, shipped, source_names

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


def untyped(source: Source) -> list[int]:
    """Lines of the functions with such a type in their signature."""
    return [line for line, types in source.signatures if any(map(_UNTYPED.search, types))]


def by_package() -> dict[str, list[str]]:
    """Places of such signatures outside of file borders."""
    found: dict[str, list[str]] = {package: [] for package in CEILINGS}
    for name, source in shipped():
        if not _BORDERS.search(name):
            found[name.split("/")[0]] += [f"{name}:{line}" for line in untyped(source)]
    return found


def test_no_package_exceeds_its_ceiling() -> None:
    for package, places in by_package().items():
        assert len(places) <= CEILINGS[package], "\n".join(places)


@pytest.mark.parametrize(
    ("signature", "seen"),
    [
        ("f(x: dict[str, Any]) -> None", [1]),
        ("f() -> Mapping[str, object]", [1]),
        ("f(x: dict[str, int]) -> None", []),
    ],
)
def test_the_check_sees_parameters_and_results(signature: str, seen: list[int]) -> None:
    assert untyped(source_names(f"def {signature}: ...")) == seen


if __name__ == "__main__":
    for name, places in by_package().items():
        print(name, len(places), *places, sep="\n  ")
