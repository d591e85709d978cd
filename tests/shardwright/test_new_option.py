"""A new option is one field: its flag, keyword, sweep key, page field and docs row follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from profiles.errors import InputError
from shardwright.console.option_flags import with_options
from shardwright.options.option import PageField, SweepKey, option, options_of, values_of
from shardwright.options.plan_options import LAYOUT_OPTIMIZERS, USUAL_OPTIMIZER, PlanOptions
from shardwright.options.read_text import whole
from shardwright.page.option_fields import fields_of
from simulator.training_run.run import low_bits
from tools import option_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(PlanOptions):
    """The options of `plan` and a new one."""

    max_tp: int = option(
        0,
        help="largest tensor-parallel degree",
        unit="devices",
        read=whole,
        sweep=SweepKey.OPTION,
        page=PageField(label="Largest tp"),
    )


def _seen(*arguments: str) -> Extended:
    found: list[Extended] = []

    @with_options(Extended)
    def command(
        options: Extended, explain: Annotated[bool, typer.Option("--explain")] = False
    ) -> None:
        found.append(options)

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return found[0]


def test_its_flag_has_the_type_of_the_field() -> None:
    options = _seen("gpt2", "--on", "8xh100-sxm", "--max-tp", "4", "--tp", "1,2", "--seq", "4k")
    assert options == Extended(model="gpt2", on="8xh100-sxm", max_tp=4, tp=(1, 2), seq=4096)
    assert _seen("gpt2").max_tp == 0
    with pytest.raises(InputError, match=r"--max-tp 'x' is not a whole number"):
        _seen("gpt2", "--max-tp", "x")


def test_its_sweep_key_page_field_and_row_follow() -> None:
    assert values_of(Extended, {"max_tp": "8"}) == {"max_tp": 8}
    assert fields_of(Extended)["max_tp"].label == "Largest tp"
    (new,) = (each for each in options_of(Extended) if each.name == "max_tp")
    assert option_files.keywords_of(Extended, "More", "").endswith("    max_tp: int\n")
    row = option_files.table_of(Extended, "plan").splitlines()[-1].split(" | ")
    assert row[:4] == ["| `--max-tp`", "largest tensor-parallel degree", "devices", "`0`"]
    assert row[5:] == ["`max_tp: int`", "`options`", "yes |"]
    assert new.sweep is SweepKey.OPTION


def test_the_optimizers_are_those_of_the_cost_model() -> None:
    assert (USUAL_OPTIMIZER, *LAYOUT_OPTIMIZERS) == low_bits.OPTIMIZERS


def test_the_written_files_follow_the_declarations() -> None:
    assert option_files.KEYWORDS.read_text(encoding="utf-8") == option_files.keywords_text()
    assert option_files.TABLE.read_text(encoding="utf-8") == option_files.tables_text()
