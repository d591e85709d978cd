"""Writes the files that follow from declared options: Python keywords and docs/options.md.

python -m tools.option_files
"""

from __future__ import annotations

from pathlib import Path

from planner.axes import AXES
from shardwright.options.option import Option, SweepKey, options_of
from shardwright.options.plan_options import PlanOptions

ROOT = Path(__file__).parents[1]
KEYWORDS = ROOT / "shardwright" / "options" / "keywords.py"
TABLE = ROOT / "docs" / "options.md"

_KEYWORDS_HEAD = '''"""Keywords of Python's `plan`, written by `python -m tools.option_files`."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict


class PlanKeywords(TypedDict, total=False):
    """One value pins an axis, a tuple allows only its values, None leaves it free."""

'''
_TABLE_HEAD = """# Options of `plan`

`shardwright plan` takes each option as a flag. Python's `shardwright.plan` takes those with a
Python type, a [sweep](sweeps.md) those with a place in its file, and the [page](ui.md) those marked
so. This file is written by `python -m tools.option_files`.

| flag | meaning | unit | default | values | Python | sweep file | page |
|---|---|---|---|---|---|---|---|
"""
_SWEEP = {
    SweepKey.GRID: "a key of its own",
    SweepKey.PIN: "`pins`",
    SweepKey.OPTION: "`options`",
    SweepKey.FLAG: "",
    SweepKey.NONE: "",
}


def keywords_text(record: type = PlanOptions) -> str:
    """The file of Python keywords."""
    lines = [
        f"    {each.name}: {_keyword_type(each)}\n" for each in options_of(record) if each.keyword
    ]
    return _KEYWORDS_HEAD + "".join(lines)


def table_text(record: type = PlanOptions) -> str:
    """docs/options.md."""
    return _TABLE_HEAD + "".join(_row(each) for each in options_of(record))


def _keyword_type(each: Option) -> str:
    if each.name in AXES:
        kind = "str" if "str" in each.type else "int"
        return f"{kind} | {each.type}"
    return each.type.replace("Path", "str | Path")


def _row(each: Option) -> str:
    needs = "; needs `--stack`" if each.needs_framework else ""
    default = "" if each.default in ("", None, ()) else f"`{each.default}`"
    cells = (
        f"`{'MODEL' if each.argument else each.flag}`",
        each.help + needs,
        each.unit,
        default,
        ", ".join(f"`{one}`" for one in each.choices),
        f"`{_keyword_type(each)}`".replace("|", "\\|") if each.keyword else "",
        _SWEEP[each.sweep],
        "yes" if each.page else "",
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Write both files."""
    KEYWORDS.write_text(keywords_text(), encoding="utf-8")
    TABLE.write_text(table_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
