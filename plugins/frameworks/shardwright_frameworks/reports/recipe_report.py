"""Reports of judged configurations for the terminal and, as a table, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright_frameworks.recipes.finding import Finding, JudgedRecipe, Verdict

_FINE = "nothing found"


def recipe_words(recipes: Sequence[JudgedRecipe]) -> str:
    """A block per configuration, and their count."""
    lines: list[str] = []
    for each in recipes:
        lines.append(f"{each.recipe} ({each.framework}): {_verdict(each)}")
        if each.summary:
            lines.append(f"  {each.summary}")
        for found in each.findings:
            where = f" ({found.where})" if found.where and found.where not in found.text else ""
            lines.append(f"  {found.verdict}: {found.text}{where}")
            if found.patch:
                lines.append(f"    change {found.patch}")
    return "\n".join([*lines, _count(recipes)])


def recipe_markdown(recipes: Sequence[JudgedRecipe]) -> str:
    """Judged configurations as a Markdown table."""
    rows = [row for each in recipes for row in _rows(each)]
    head = ["| configuration | finding | reason | change |", "|---|---|---|---|"]
    return "\n".join(["### Training configurations", "", *head, *rows, "", _count(recipes)])


def _rows(recipe: JudgedRecipe) -> Iterator[str]:
    name = f"`{_cell(recipe.recipe)}`"
    if not recipe.findings:
        yield f"| {name} | {_FINE} | {_cell(recipe.summary)} | |"
    for found in recipe.findings:
        reason = _cell(found.text) + (f" ({_cell(found.where)})" if found.where else "")
        patch = f"`{_cell(found.patch)}`" if found.patch else ""
        yield f"| {name} | {found.verdict} | {reason} | {patch} |"


def _cell(text: str) -> str:
    """Text of a file that cannot leave its cell or become HTML."""
    plain = text.replace("`", "'").replace("|", "\\|").replace("\n", " ")
    return plain.replace("<", "&lt;")


def _verdict(recipe: JudgedRecipe) -> str:
    grave: list[Finding] = [each for each in recipe.findings if each.exit_code]
    if grave:
        return str(grave[0].verdict)
    open_ones = [each.verdict for each in recipe.findings if each.verdict is Verdict.NOT_JUDGED]
    return str(open_ones[0]) if open_ones else _FINE


def _count(recipes: Sequence[JudgedRecipe]) -> str:
    bad = sum(each.exit_code != 0 for each in recipes)
    many = "1 configuration" if len(recipes) == 1 else f"{len(recipes)} configurations"
    return f"{many}, {bad} with findings."
