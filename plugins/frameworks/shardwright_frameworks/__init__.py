"""Plug-in of Shardwright: configurations, logs and exports of other training frameworks
(docs/importing.md, docs/frameworks.md, docs/logs.md)."""

from shardwright.plugins.plugin import Command, Hook, Plugin

_HELP = {
    "import": (
        "Read the configuration or logs of another framework without running it. Megatron-LM, "
        "torchtitan, DeepSpeed, accelerate, nanotron, MaxText, NeMo and others are known."
    ),
    "export": (
        "Write the files that run a plan with a framework and a launcher. They say what to expect "
        "of the first steps, and the cost of what the framework cannot express."
    ),
    "check": (
        "Judge configurations of other frameworks, or compare one with its plan (--against). "
        "Reports what cannot start or does not fit, keys without effect, and faster layouts."
    ),
    "watch": "Compare the log of a running training with its plan, and report deviations.",
}
_FILES = {"import": "import_config"}  # `import` is a keyword of Python
_API = ("changes", "check", "compare_log", "export", "import_config", "read_log", "watch")


def _command(name: str) -> Command:
    file = _FILES.get(name, name)
    return Command(
        help=_HELP[name], module=f"shardwright_frameworks.commands.{file}", function=file
    )


PLUGIN = Plugin(
    commands={name: _command(name) for name in _HELP},
    functions={name: f"shardwright_frameworks.api:{name}" for name in _API},
    hooks={
        Hook.PLAN_FROM: "shardwright_frameworks.commands.ranked_changes:plan_from_import",
        Hook.COMPARE_LOG: "shardwright_frameworks.commands.compare_log:compare_with_logs",
        Hook.PREDICT_IMPORTED: (
            "shardwright_frameworks.commands.predict_imported:predict_imported"
        ),
        Hook.STEP_OF_IMPORTED: "shardwright_frameworks.requests.imported_step:step_of",
        Hook.PROFILE_FROM: "shardwright_frameworks.commands.calibrate_logs:calibrate_from_logs",
    },
)
"""Named by the entry point in pyproject.toml."""
