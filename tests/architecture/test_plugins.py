"""The core imports no plug-in and works without any; plugins/test_imports.py has the other side."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest

from profiles.errors import InputError
from shardwright.cli import COMMANDS, PLUGIN_FOLDERS
from shardwright.plugins.plugin import GROUP, Hook, hook, plugins
from tests.architecture.public_modules import PUBLIC_MODULES
from tests.architecture.sources import ROOT, modules, shipped
from tests.fresh import run_in_turn


def test_public_modules_exist() -> None:
    names = {str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in modules()}
    assert PUBLIC_MODULES - names == set()


def test_the_core_imports_no_plugin() -> None:
    """The package `shardwright` names functions of plug-ins under TYPE_CHECKING, for their types;
    the next test runs it without plug-ins."""
    importers = {
        path
        for path, source in shipped()
        for name in source.imports
        if name.startswith("shardwright_") or name.split(".")[0] == "evidence"
    }
    assert importers == {"shardwright/__init__.py"}


def test_the_core_works_without_plugins(tmp_path: Path) -> None:
    """With no entry points the commands are those of the core; for the command of a plug-in one
    line says what to install, which provides it."""
    commands = [("--help",), *((command,) for command in PLUGIN_FOLDERS)]
    before = "import importlib.metadata\nimportlib.metadata.entry_points = lambda **_: ()"
    core, *missing = run_in_turn(commands, tmp_path, before)
    listed = core.stdout.partition("Commands:")[2].splitlines()
    assert {line.split()[0] for line in listed if line.strip()} == set(COMMANDS)
    for ran, folder in zip(missing, PLUGIN_FOLDERS.values(), strict=True):
        assert tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        assert ran.status == 2
        assert f"pip install ./{folder}`" in " ".join(ran.stderr.split())


def test_an_entry_point_that_is_no_plugin_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("odd", "profiles.units:format_usd", GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: (point,))
    with pytest.raises(InputError, match="'odd'"):
        plugins.__wrapped__()


def test_an_option_without_its_plugin_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.plugins.plugin.plugins", lambda: ())
    with pytest.raises(InputError, match=r"`compare --log` is not installed.*plugins/frameworks"):
        hook(Hook.COMPARE_LOG)
