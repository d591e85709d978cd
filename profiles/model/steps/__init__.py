"""Traced steps of modules, kernel by kernel."""
