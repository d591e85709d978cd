"""Solvers: one strategy per node at least cost within a memory limit."""
