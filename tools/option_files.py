"""Writes the files that follow from declared options: Python keywords and docs/options.md.

python -m tools.option_files
"""

from __future__ import annotations

from pathlib import Path

from planner.axes import AXES
from shardwright.options.option import Option, SweepKey, options_of
from shardwright.options.plan_options import PlanOptions
from shardwright.options.size_options import SizeOptions

ROOT = Path(__file__).parents[1]
KEYWORDS = ROOT / "shardwright" / "options" / "keywords.py"
TABLE = ROOT / "docs" / "options.md"

_KEYWORDS_HEAD = '''"""Keywords of Python's functions, written by `python -m tools.option_files`."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict
'''
_TABLE_HEAD = """# Options of `plan` and `size`

The commands take each option as a flag. The functions of Python take those with a keyword, the
[page](ui.md) those marked so, and a [sweep](sweeps.md) of plans those with a place in its file.
`python -m tools.option_files` writes this file.
"""
_SWEEP = {SweepKey.GRID: "a key of its own", SweepKey.PIN: "`pins`", SweepKey.OPTION: "`options`"}


def keywords_text() -> str:
    """The file of Python keywords."""
    pins = "Options of `plan`. One value pins an axis, a tuple allows only its values."
    return (
        _KEYWORDS_HEAD
        + keywords_of(PlanOptions, "PlanKeywords", pins)
        + keywords_of(SizeOptions, "SizeKeywords", "Options of `size`, as texts of its flags.")
    )


def keywords_of(record: type, name: str, doc: str) -> str:
    """A class of keywords for the options of `record`."""
    lines = [
        f"    {each.keyword}: {_keyword_type(each)}\n"
        for each in options_of(record)
        if each.keyword
    ]
    return f'\n\nclass {name}(TypedDict, total=False):\n    """{doc}"""\n\n' + "".join(lines)


def tables_text() -> str:
    """docs/options.md."""
    return _TABLE_HEAD + table_of(PlanOptions, "plan") + table_of(SizeOptions, "size")


def table_of(record: type, command: str) -> str:
    """The table of the options of `record`."""
    head = "| flag | meaning | unit | default | values | Python | sweep file | page |\n"
    rows = "".join(_row(each) for each in options_of(record))
    return f"\n## `{command}`\n\n{head}|---|---|---|---|---|---|---|---|\n{rows}"


def _keyword_type(each: Option) -> str:
    if each.name in AXES:
        kind = "str" if "str" in each.type else "int"
        return f"{kind} | {each.type}"
    return each.type.replace("Path", "str | Path")


def _row(each: Option) -> str:
    needs = "; needs `--stack`" if each.needs_framework else ""
    default = "" if each.default in ("", None, ()) else f"`{each.default}`"
    python = f"`{each.keyword}: {_keyword_type(each)}`".replace("|", "\\|")
    cells = (
        f"`{'MODEL' if each.argument else each.flag}`",
        each.help + needs,
        each.unit,
        default,
        ", ".join(f"`{one}`" for one in each.choices),
        python if each.keyword else "",
        _SWEEP.get(each.sweep, ""),
        "yes" if each.page else "",
    )
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    """Write both files."""
    KEYWORDS.write_text(keywords_text(), encoding="utf-8")
    TABLE.write_text(tables_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
