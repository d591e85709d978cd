"""How accurate the predictions are: the command `validate`, its tables and its pages, and `size
--cases`, which predicts whole published runs.

Not part of the core: it holds what compares predictions with measured runs and what fits the
coefficients that the core ships (with the scripts in tools/).
"""

from shardwright.plugins.plugin import Command, Hook, Plugin

_VALIDATE = Command(
    help="Compare predictions with published measurements, by source.",
    module="evidence.command",
    function="validate",
)
PLUGIN = Plugin(
    commands={"validate": _VALIDATE},
    hooks={
        Hook.SIZE_CASES: "evidence.size_cases:size_cases",
        Hook.PREDICT_TRACED: "evidence.traced_runs:traced_predictions",
    },
)
"""Named by the entry point in pyproject.toml."""
