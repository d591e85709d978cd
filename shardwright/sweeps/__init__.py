"""Sweeps: requests of a file, and tables of their answers."""
