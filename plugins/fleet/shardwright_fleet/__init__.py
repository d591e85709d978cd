"""Plug-in of Shardwright: several training runs on shared clusters over time (docs/fleets.md)."""

from shardwright.plugins.plugin import Command, Plugin

_FLEET = Command(
    help=(
        "Several training runs on one or more clusters over time: which nodes each gets, when, "
        "with which plan; what is late, what it costs, what to buy next."
    ),
    module="shardwright_fleet.command",
    function="fleet",
)
PLUGIN = Plugin(commands={"fleet": _FLEET})
"""Named by the entry point in pyproject.toml."""
