"""Plug-in of Shardwright: one sharding strategy per operation of a model, as DTensor placements."""

from shardwright.plugins.plugin import Command, Plugin

_SHARD = Command(
    help=(
        "Split every op of a model, or of one block, over a mesh of devices. Writes DTensor "
        "placements with a bound, compared with Megatron's layout; `run` applies the file."
    ),
    module="shardwright_placements.command",
    function="shard",
)
PLUGIN = Plugin(
    commands={"shard": _SHARD},
    runs={"shardwright/op-sharding@1": "shardwright_placements.command:run_file"},
    functions={
        "shard": "shardwright_placements.api:shard",
        "run_sharding": "shardwright_placements.api:run_sharding",
        "load_sharding": "shardwright_placements.api:load_sharding",
    },
)
"""Named by the entry point in pyproject.toml."""
