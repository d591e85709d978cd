"""Text reports of an exported folder, and of a configuration compared with its plan."""

from __future__ import annotations

from shardwright_frameworks.exports.export_plan import ExportFolder
from shardwright_frameworks.requests.checked_config import CheckedConfig


def export_words(folder: ExportFolder) -> str:
    """Decisions of the plan without an option in the exported files, with their cost."""
    gaps = folder.costs.gaps
    if not gaps:
        return "all of the plan is expressed"
    lines = [f"not expressed ({len(gaps)}), see README.md:"]
    for priced in gaps:
        cost = "not priced" if priced.slower is None else f"step {priced.slower:+.1%}"
        lines.append(f"  {priced.gap.option}: {priced.gap.planned} -> {priced.gap.written}; {cost}")
    if folder.costs.fits is False:
        lines.append("  the exported run needs more memory than the device has")
    return "\n".join(lines)


def check_words(checked: CheckedConfig) -> str:
    """Number of settings as planned, different settings with their place, and missing settings."""
    agreement = checked.agreement
    lines = [
        f"{checked.against} ({checked.framework}): {len(agreement.same)} settings as planned, "
        f"{len(agreement.different)} not"
    ]
    for each in agreement.different:
        where = f"  {each.where}" if each.where else ""
        lines.append(f"  {each.key}: planned {each.planned}, found {each.found}{where}")
    if agreement.silent:
        lines.append("  not set: " + ", ".join(agreement.silent))
    lines += [f"  not expressed, as exported: {words}" for words in checked.not_expressed]
    return "\n".join(lines)
