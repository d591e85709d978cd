"""The core imports no plug-in and works without any; plugins/test_imports.py has the other side."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib

import pytest

from profiles.errors import InputError
from shardwright.cli import PLUGIN_FOLDERS
from shardwright.plugins.plugin import GROUP, PUBLIC_MODULES, Hook, hook, plugins
from tests.architecture.test_imports import ROOT, imported_names, modules


def test_public_modules_exist() -> None:
    names = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in modules()}
    assert PUBLIC_MODULES - names == set()


def test_the_core_imports_no_plugin() -> None:
    """The package `shardwright` names functions of plug-ins under TYPE_CHECKING, for their types;
    the next test runs it without plug-ins."""
    importers = {
        str(path.relative_to(ROOT))
        for path in modules()
        for name in imported_names(path.read_text(encoding="utf-8"))
        if name.startswith("shardwright_") or name.split(".")[0] == "evidence"
    }
    assert importers == {"shardwright/__init__.py"}


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


@pytest.mark.parametrize(("command", "folder"), PLUGIN_FOLDERS.items())
def test_a_command_that_is_not_installed_names_its_plugin(command: str, folder: str) -> None:
    """Each folder provides its command; without it one line says what to install."""
    assert tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
    code = (
        "import importlib.metadata, sys\n"
        "importlib.metadata.entry_points = lambda **_: ()\n"
        "from shardwright.cli import main\n"
        f"sys.argv = ['shardwright', {command!r}]\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"pip install ./{folder}`" in " ".join(done.stderr.split())


def test_an_entry_point_that_is_no_plugin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("odd", "profiles.units:format_usd", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (point,))
    with pytest.raises(InputError, match="'odd'"):
        plugins.__wrapped__()


def test_an_option_without_its_plugin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.plugins.plugin.plugins", lambda: ())
    with pytest.raises(InputError, match=r"`compare --log` is not installed.*plugins/frameworks"):
        hook(Hook.COMPARE_LOG)
