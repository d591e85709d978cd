"""Optional packages: each belongs to an extra of pyproject.toml, and errors name it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.extras import EXTRA_OF, need_package
from profiles.model.loaders import need_to_build, resolve_model

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def package_names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[><=~ ]", one)[0] for one in requirements}


@pytest.mark.parametrize(("package", "extra"), EXTRA_OF.items())
def test_each_package_is_in_its_extra_and_not_in_the_core(package: str, extra: str) -> None:
    assert package in package_names(PROJECT["optional-dependencies"][extra])
    assert package not in package_names(PROJECT["dependencies"])


def test_the_page_lists_every_extra() -> None:
    page = (ROOT / "docs/installing.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \|", page.split("## Extras")[1], re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    plugins = {name for name, (first, *_) in extras.items() if first == f"shardwright-{name}"}
    assert len(plugins) == 3
    assert listed == set(extras) - plugins - {"dev"}


def test_hf_contains_torch() -> None:
    """Errors of models by name give one extra, `hf`, also if torch is missing."""
    assert "shardwright[torch]" in PROJECT["optional-dependencies"]["hf"]


def test_an_installed_package_is_no_error() -> None:
    need_package("json", "this test", extra="none")


def test_a_missing_package_names_request_extra_and_alternative(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError) as caught:
        need_package("ray", "--ray", otherwise="use --workers N")
    assert str(caught.value) == (
        "--ray needs ray, which is missing: pip install 'shardwright[cluster]', or use --workers N"
    )
    assert caught.value.exit_code == 2


def test_models_by_name_need_hf_and_factories_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"tracing llama-3.1-8b needs torch.*shardwright\[hf\]"):
        need_to_build(resolve_model("llama-3.1-8b"))
    with pytest.raises(InputError, match=r"tracing mine:make needs torch.*shardwright\[torch\]"):
        need_to_build(resolve_model("mine:make"))
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "transformers", None)
    need_to_build(resolve_model("mine:make"))
    with pytest.raises(InputError, match="needs transformers"):
        need_to_build(resolve_model("llama-3.1-8b"))


@pytest.mark.parametrize(
    ("arguments", "request_text", "extra"),
    [
        (("fit", "llama-3.1-8b"), "tracing llama-3.1-8b needs torch", "hf"),
        (("demo",), "`shardwright demo` needs torch", "hf"),
        (("profile", "--quick"), "measuring this machine needs torch", "hf"),
        (("predict", "--runs", "runs.csv", "--traced"), "--traced needs torch", "hf"),
        (
            (
                *("plan", "llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "64"),
                *("--stack", "torch", "-o", "plan.json"),
            ),
            "tracing llama-3.1-8b needs torch",
            "hf",
        ),
        (("ui",), "`shardwright ui` needs streamlit", "ui"),
        (
            (
                *("plan", "llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "64"),
                *("--seq", "4096", "--figure", "page.pdf"),
            ),
            "the figure page.pdf needs matplotlib",
            "plot",
        ),
    ],
)
def test_commands_name_the_missing_extra(
    arguments: tuple[str, ...], request_text: str, extra: str, tmp_path: Path
) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'matplotlib', 'streamlit'): sys.modules[name] = None\n"
        f"sys.argv = ['shardwright', *{arguments!r}]\n"
        "from shardwright.cli import main\nmain()\n"
    )
    path = ":".join(entry for entry in (str(ROOT), *sys.path) if entry)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": path, "HOME": str(tmp_path), "COLUMNS": "300"},
    )
    assert done.returncode == 2, done.stderr
    command = f"pip install 'shardwright[{extra}]'"
    assert done.stderr == f"error: {request_text}, which is missing: {command}\n"
