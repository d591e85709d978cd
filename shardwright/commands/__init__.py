"""The commands, one per file, called by shardwright/cli.py."""
