"""Comparisons: with measurements, between plans, between answers."""
