"""Plug-in of Shardwright: several training runs on shared clusters over time (docs/fleets.md)."""

from shardwright.plugins import Command

COMMAND = Command(
    help=(
        "Several training runs on one or more clusters over time: which nodes each gets, when, "
        "with which plan; what is late, what it costs, what to buy next."
    ),
    module="shardwright_fleet.command",
    function="fleet",
)
"""Found through the entry point `fleet` of the group `shardwright.commands` (pyproject.toml)."""
