"""Solvers of one cell: its best plan and prediction."""
