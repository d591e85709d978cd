"""Plug-in of Shardwright: several training runs on shared clusters over time (docs/fleets.md)."""

from shardwright.plugins.plugin import Command, Plugin

_FLEET = Command(
    help=(
        "Schedule several training runs on shared clusters. Shows nodes, times and plan of each "
        "run, lateness and cost, and what to buy next."
    ),
    module="shardwright_fleet.command",
    function="fleet",
)
PLUGIN = Plugin(commands={"fleet": _FLEET})
"""Named by the entry point in pyproject.toml."""
