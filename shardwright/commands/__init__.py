"""What each command does: one file per command, called by shardwright/cli.py."""
