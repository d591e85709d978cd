"""What needs no extra: importing the package, and plan, size, predict and compare from figures."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from shardwright.cli import COMMANDS
from shardwright.plugins.plugin import plugin_commands
from tests.architecture.sources import ROOT, shipped
from tests.architecture.test_imports import HEAVY
from tests.fresh import Ran, python, run_in_turn, without

OPTIONAL = ("torch", "transformers", "ortools", "networkx", "matplotlib", "pandas", "pyarrow")
CORE = ("numpy", "scipy", "typer", "rich", "jinja2", "platformdirs")
PLAN = ("plan", "llama-3.1-8b", "--on", "2x8xh100-sxm", "--global-batch", "64", "--seq", "4096")
HELPS = sorted({*COMMANDS, *plugin_commands()} - {"validate"})
RUNS = """id,num_layers,hidden_size,num_heads,seq_len,device,num_devices,dp,tp,pp,micro_batch,\
global_batch,framework
gpt,24,2048,16,1024,a100-sxm-80gb,8,2,2,2,4,32,Megatron-LM
"""


@pytest.fixture(scope="module")
def helped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Help of the program ("") and of each command, in one process."""
    words = [("--help",), *((name, "--help") for name in HELPS)]
    return dict(zip(("", *HELPS), run_in_turn(words, tmp_path_factory.mktemp("help")), strict=True))


def test_the_core_requires_no_optional_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {one.partition(">")[0] for one in project["dependencies"]} == set(CORE)


def test_what_the_core_imports_is_required_or_optional() -> None:
    """No import of a package that nothing installs."""
    found = {name.partition(".")[0] for _, source in shipped() for name in source.imports}
    own = {"profiles", "simulator", "planner", "executor", "shardwright", "__future__"}
    plugins = {name for name in found if name.startswith("shardwright_")}  # types of functions
    assert found - set(sys.stdlib_module_names) - own - plugins <= set(CORE) | set(HEAVY)


def test_planning_by_figures_loads_no_optional_package(tmp_path: Path) -> None:
    """With every package installed and none blocked."""
    code = (
        "import sys\nimport shardwright, shardwright.api\n"
        "work = shardwright.Workload(global_batch=64, sequence_length=4096)\n"
        "found = shardwright.plan('llama-3.1-8b', '2x8xh100-sxm', work, stack='megatron-core')\n"
        "assert found.chosen is not None\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    assert set(python(code, tmp_path).split()) & set(OPTIONAL) == set()


def test_help_loads_few_modules(helped: dict[str, Ran]) -> None:
    """Start-up is counted in modules, not timed: typer and rich are about 400."""
    assert len(helped[""].loaded) < 600


@pytest.mark.parametrize("name", HELPS)
def test_help_imports_no_search(helped: dict[str, Ran], name: str) -> None:
    """Measured 0.3 to 0.45 s; 0.7 s and more with numpy and the searches imported."""
    ran = helped[name]
    assert f"Usage: shardwright {name}" in ran.stdout
    assert ran.packages & {"numpy", "scipy", *OPTIONAL} == set()
    searches = ("planner.layout", "planner.blocks")
    assert not [module for module in ran.loaded if module.startswith(searches)]


def test_commands_without_optional_packages(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text(RUNS, encoding="utf-8")
    on = ("--on", "h100-sxm", "--stack", "megatron-core", "--html", "size.html")
    commands = [
        (*PLAN, "-o", "free.json", "--html", "page.html", "--csv", "table.csv"),
        (*PLAN, "--stack", "megatron-core", "--tp", "8", "-o", "tp8.json"),
        ("predict", "tp8.json", "--explain"),
        ("compare", "free.json", "tp8.json"),
        ("predict", "--runs", "runs.csv", "-o", "out.csv"),
        ("size", "llama-3.1-8b", "--tokens", "20B", "--deadline", "30d", *on),
    ]
    ran = run_in_turn(commands, tmp_path, without(*OPTIONAL))
    assert [each.stderr for each in ran if each.status] == []
    texts = ("proven optimal", "", "Step", "needed", "", "Rent")
    for each, text in zip(ran, texts, strict=True):
        assert text in each.stdout
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")
    header, row = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    found = dict(zip(header.split(","), row.split(","), strict=False))
    assert float(found["step_time_s"]) > 0
