"""`mypy --strict` in a user's project sees the types of every public function (py.typed)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import shardwright
from shardwright.plugins.plugin import plugins

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("user_script.py")
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/*/__init__.py"))
CORE_FUNCTIONS = [
    name
    for name in shardwright.__all__
    if name != "__version__" and not inspect.isclass(getattr(shardwright, name))
]

WRONG = """\
import shardwright
work = shardwright.Workload(global_batch=64, sequence_length=8192)
shardwright.plan("m", "c", work, tpp=3)
shardwright.plan("m", "c", work, tp="3")
shardwright.plan("m", "c", work, stack="torchtitan", zeros=1)
shardwright.size("m", "c", deadlin="60d")
shardwright.size("m", "c", deadline=60)
shardwright.fit("m", seq=4096)
shardwright.trace("m", tps=(1, 2))
shardwright.predict("plan.json", devices="8xh100-sxm")
shardwright.profile("m", micro_batch=2)
shardwright.run("plan.json", step=5)
shardwright.compare("plan.json", logs="train.log")
shardwright.report("plan.json", html="page.html")
shardwright.export("plan.json", "megatron", folder="run")
shardwright.shard("m", "c", (2, 4), sequence=4096)
shardwright.planned("m", "c", work)
answer: int = shardwright.plan("m", "c", work)
shardwright.plan("m", "c", work).step_time
"""
FIRST_WRONG = 3


WITH_PLUGINS = pytest.mark.skipif(not PLUGINS, reason="the script calls functions of plug-ins")


@pytest.fixture(
    scope="module", params=["numpy", pytest.param("everything", marks=pytest.mark.slow)]
)
def messages(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy prints for the user's script and the wrong calls, with the packages installed in
    an environment of their own: mypy takes types of installed packages only with py.typed. Beside
    them stands numpy, whose arrays the public functions return, or torch and all others as well."""
    folder = tmp_path_factory.mktemp("user")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = folder / "venv" / "lib" / version / "site-packages"
    others = Path(sysconfig.get_path("purelib"))
    if request.param == "numpy":
        (installed / "numpy").symlink_to(others / "numpy")
    paths = [ROOT, *(package.parent for package in PLUGINS)]
    paths += [others] if request.param == "everything" else []
    (installed / "user.pth").write_text("\n".join(map(str, paths)), encoding="utf-8")
    (folder / "user_script.py").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"),
            *("--python-executable", str(folder / "venv" / "bin" / "python")),
            *("--cache-dir", str(ROOT / ".mypy_cache" / request.param)),
            *("user_script.py", "wrong.py"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("package", [*(ROOT / name for name in PACKAGES), *PLUGINS])
def test_every_package_ships_its_types(package: Path) -> None:
    folder = package if package.is_dir() else package.parent
    assert (folder / "py.typed").is_file()


def test_the_script_calls_every_public_function() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    of_plugins = {name for plugin in plugins() for name in plugin.functions}
    names = {*CORE_FUNCTIONS, *of_plugins}
    assert [name for name in sorted(names) if f"shardwright.{name}(" not in text] == []


@WITH_PLUGINS
def test_a_correct_script_passes(messages: str) -> None:
    assert [line for line in messages.splitlines() if line.startswith("user_script.py")] == []


@WITH_PLUGINS
def test_every_wrong_call_is_an_error(messages: str) -> None:
    found = {int(line) for line in re.findall(r"^wrong\.py:(\d+): error", messages, re.MULTILINE)}
    assert found == set(range(FIRST_WRONG, len(WRONG.splitlines()) + 1))


def test_a_wrong_keyword_is_named(messages: str) -> None:
    assert 'wrong.py:3: error: Unexpected keyword argument "tpp"' in messages
