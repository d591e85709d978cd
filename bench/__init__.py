"""Benchmarks: `python -m bench`. Every figure is a ratio to something run at the same time."""
