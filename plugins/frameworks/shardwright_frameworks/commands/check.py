"""`shardwright check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from profiles.document import encode
from profiles.errors import ToleranceError
from shardwright.asking.opened_plan import open_plan
from shardwright.console.flags import Json
from shardwright.console.output import print_json, show
from shardwright_frameworks.reports.export_report import check_words
from shardwright_frameworks.requests.checked_config import check_config
from shardwright_frameworks.requests.planned_run import planned_run

EXAMPLES = (
    "Examples:\n\n  shardwright check plan.json --against run/\n\n  shardwright check plan.json "
    "--against train.sh --json"
)


def check(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="plan file")],
    against: Annotated[Path, typer.Option("--against", help="configuration file or its folder")],
    json_output: Json = False,
) -> None:
    """`shardwright check`."""
    checked = check_config(planned_run(open_plan(plan_file)), against)
    different = checked.agreement.different
    if json_output:
        print_json(encode(checked))
    else:
        show(Text(check_words(checked)))
    if different:
        keys = ", ".join(each.key for each in different)
        raise ToleranceError(
            f"{against} is not what {plan_file} planned: {keys}. Change it back, or plan again and "
            "check against the new plan"
        )
