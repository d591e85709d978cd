"""Optional packages: each belongs to an extra of pyproject.toml, and errors name it."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.extras import EXTRA_OF, need_package
from profiles.model.loaders import need_to_build, resolve_model
from tests.fresh import run_in_turn, without

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


PLAN = ("plan", "llama-3.1-8b", "--on", "8xh100-sxm", "--global-batch", "64")
MISSING = {
    ("fit", "llama-3.1-8b"): ("tracing llama-3.1-8b needs torch", "hf"),
    ("demo",): ("`shardwright demo` needs torch", "hf"),
    ("profile", "--quick"): ("measuring this machine needs torch", "hf"),
    ("predict", "--runs", "runs.csv", "--traced"): ("--traced needs torch", "hf"),
    (*PLAN, "--stack", "torch", "-o", "plan.json"): ("tracing llama-3.1-8b needs torch", "hf"),
    ("ui",): ("`shardwright ui` needs streamlit", "ui"),
    (*PLAN, "--seq", "4096", "--figure", "page.pdf"): (
        "the figure page.pdf needs matplotlib",
        "plot",
    ),
}


def test_commands_name_the_missing_extra(tmp_path: Path) -> None:
    ran = run_in_turn(list(MISSING), tmp_path, without("torch", "matplotlib", "streamlit"))
    assert [(each.status, each.stderr) for each in ran] == [
        (2, f"error: {request}, which is missing: pip install 'shardwright[{extra}]'\n")
        for request, extra in MISSING.values()
    ]
