"""How accurate the predictions are: the command `validate`, its tables and its pages.

Not part of the core: it holds what compares predictions with measured runs and what fits the
coefficients that the core ships (with the scripts in tools/).
"""

from shardwright.plugins.plugin import Command, Plugin

_VALIDATE = Command(
    help="Compare predictions with published measurements, by source.",
    module="evidence.command",
    function="validate",
)
PLUGIN = Plugin(commands={"validate": _VALIDATE})
"""Named by the entry point in pyproject.toml."""
