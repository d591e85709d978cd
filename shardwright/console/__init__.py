"""Shared by commands: flags, output, report files."""
