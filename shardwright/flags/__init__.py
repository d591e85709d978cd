"""The flags of every command, by group; what a command does is in shardwright/commands."""
