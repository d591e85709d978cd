"""`shardwright check`: finds faults in configurations, or differences from their plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from profiles.document import encode
from profiles.errors import (
    DocumentError,
    InfeasibleError,
    InputError,
    ShardwrightError,
    ToleranceError,
)
from shardwright.console.flags import Json
from shardwright.console.output import note, print_json, show

if TYPE_CHECKING:
    from shardwright_frameworks.recipes.finding import JudgedRecipe

EXAMPLES = (
    "Examples:\n\n  shardwright check recipes/ --on 8x8xh100-sxm-80gb\n\n  shardwright check "
    "plan.json --against run/"
)
_SEARCH_S = 30.0
_ERRORS: dict[int, type[ShardwrightError]] = {2: InputError, 3: InfeasibleError, 4: ToleranceError}


def check(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="configurations or folders; with --against a plan"),
    ],
    against: Annotated[
        Path | None, typer.Option("--against", help="configuration file or folder of this plan")
    ] = None,
    on: Annotated[str, typer.Option("--on", help="cluster or device, as for plan")] = "",
    time_limit: Annotated[
        float,
        typer.Option("--time-limit", help="seconds of the search for the best layout; 0: none"),
    ] = _SEARCH_S,
    markdown: Annotated[bool, typer.Option("--markdown", help="print a Markdown table")] = False,
    skip_unknown: Annotated[
        bool, typer.Option("--skip-unknown", help="skip files of unknown frameworks")
    ] = False,
    json_output: Json = False,
) -> None:
    """`shardwright check`."""
    # Here, since --help needs none of them.
    from shardwright_frameworks.reports.recipe_report import recipe_markdown, recipe_words

    if against is not None:
        _check_plan(paths, against, json_output)
        return
    if time_limit < 0:
        raise InputError(f"--time-limit {time_limit:g} must be 0 or more")
    recipes = _judged(paths, on, time_limit, skip_unknown)
    if json_output:
        print_json({"recipes": [_data(each) for each in recipes]})
    elif markdown:
        typer.echo(recipe_markdown(recipes))
    else:
        show(Text(recipe_words(recipes)))
    codes = [each.exit_code for each in recipes if each.exit_code]
    if codes:
        worst = min(codes)
        names = ", ".join(each.recipe for each in recipes if each.exit_code == worst)
        reasons = {2: "cannot start", 3: "does not fit", 4: "has findings"}
        raise _ERRORS[worst](f"{reasons[worst]}: {names}. The changes are named above")


def _judged(paths: list[str], on: str, time_limit: float, skip: bool) -> list[JudgedRecipe]:
    from shardwright_frameworks.recipes.judged_recipe import judged
    from shardwright_frameworks.recipes.recipe_list import recipes_in

    found = []
    for path in paths:
        try:
            found += [judged(each, on, time_limit_s=time_limit) for each in recipes_in(path)]
        except DocumentError as error:
            if not skip:
                raise
            note(str(error).partition(";")[0])
    return found


def _data(recipe: JudgedRecipe) -> dict[str, Any]:
    data: dict[str, Any] = encode(recipe)
    return {**data, "exit_code": recipe.exit_code}


def _check_plan(paths: list[str], against: Path, json_output: bool) -> None:
    """Compares a configuration with its plan."""
    from shardwright.requests.opened_plan import open_plan
    from shardwright_frameworks.reports.export_report import check_words
    from shardwright_frameworks.requests.checked_config import check_config
    from shardwright_frameworks.requests.planned_run import planned_run

    if len(paths) != 1:
        raise InputError(f"--against takes one plan file before it, got {len(paths)}")
    checked = check_config(planned_run(open_plan(Path(paths[0]))), against)
    different = checked.agreement.different
    if json_output:
        print_json(encode(checked))
    else:
        show(Text(check_words(checked)))
    if different:
        keys = ", ".join(each.key for each in different)
        raise ToleranceError(
            f"{against} is not what {paths[0]} planned: {keys}. Change it back, or plan again and "
            "check against the new plan"
        )
