"""Plug-ins import only what the core declares public; the core imports no plug-in."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shardwright.plugins.plugin import GROUP, PUBLIC_MODULES, plugins
from tests.architecture.test_imports import PACKAGES, ROOT, imported_names, modules

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


def test_public_modules_exist_and_are_used() -> None:
    names = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in modules()}
    assert PUBLIC_MODULES - names == set()
    used = {
        name
        for plugin in PLUGINS
        for path in (plugin / package_of(plugin)).rglob("*.py")
        for name in imported_names(path.read_text(encoding="utf-8"))
    }
    assert PUBLIC_MODULES - used == set()


def test_the_core_imports_no_plugin() -> None:
    plugins = {package_of(plugin) for plugin in PLUGINS}
    faults = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        for name in imported_names(path.read_text(encoding="utf-8"))
        if name.split(".")[0] in plugins
    ]
    assert faults == []


def test_installed_plugins_are_found_and_what_they_name_exists() -> None:
    assert len(plugins()) == len(PLUGINS)
    for plugin in plugins():
        places = [*plugin.runs.values(), *plugin.functions.values()]
        places += [f"{each.module}:{each.function}" for each in plugin.commands.values()]
        for place in places:
            module, _, name = place.partition(":")
            assert callable(getattr(importlib.import_module(module), name))


def test_the_core_works_without_plugins() -> None:
    """With no entry points the commands are those of the core."""
    code = (
        "import importlib.metadata\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"
        "from shardwright.cli import COMMANDS, app\n"
        "import typer\n"
        "group = typer.main.get_command(app)\n"
        "assert set(group.commands) == set(COMMANDS), group.commands\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_an_entry_point_that_is_no_plugin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from profiles.errors import InputError

    point = importlib.metadata.EntryPoint("odd", "profiles.units:format_usd", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (point,))
    with pytest.raises(InputError, match="'odd'"):
        plugins.__wrapped__()
