"""Plug-ins import only what the core declares public, and all that it declares."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

from shardwright.plugins.plugin import plugin_commands, plugins
from tests.architecture.public_modules import PUBLIC_MODULES
from tests.architecture.test_imports import PACKAGES, ROOT, imported_names

PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))


def package_of(plugin: Path) -> str:
    settings = tomllib.loads((plugin / "pyproject.toml").read_text(encoding="utf-8"))
    (package,) = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    return str(package)


def private_imports(source: str) -> list[str]:
    """Imports of the core that are not public."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.split(".")[0] not in PACKAGES:
            continue
        names = [alias.name for alias in node.names]
        if node.module not in PUBLIC_MODULES:
            found.append(node.module)
        found += [f"{node.module}.{name}" for name in names if name.startswith("_")]
    return found


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name)
def test_a_plugin_imports_public_names_only(plugin: Path) -> None:
    faults = {
        str(path.relative_to(ROOT)): private
        for path in sorted((plugin / package_of(plugin)).rglob("*.py"))
        if (private := private_imports(path.read_text(encoding="utf-8")))
    }
    assert faults == {}


def test_the_check_sees_a_private_import() -> None:
    assert private_imports("from planner.chain.problem import Array") == ["planner.chain.problem"]
    assert private_imports("from profiles.units import _scale") == ["profiles.units._scale"]
    assert private_imports("from profiles.units import format_usd") == []


def test_every_public_module_is_used() -> None:
    used = {
        name
        for plugin in PLUGINS
        for path in (plugin / package_of(plugin)).rglob("*.py")
        for name in imported_names(path.read_text(encoding="utf-8"))
    }
    assert PUBLIC_MODULES - used == set()


def test_installed_plugins_are_found_and_what_they_name_exists() -> None:
    assert len(plugins()) == len(PLUGINS) + 1  # and evidence/
    for plugin in plugins():
        places = [*plugin.runs.values(), *plugin.functions.values(), *plugin.hooks.values()]
        places += [f"{each.module}:{each.function}" for each in plugin.commands.values()]
        for place in places:
            module, _, name = place.partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_the_help_of_a_command_ends_with_two_examples() -> None:
    for name, command in plugin_commands().items():
        examples = importlib.import_module(command.module).EXAMPLES
        assert examples.replace("\n\n  ", " ").count(f"shardwright {name}") == 2, name
