"""Predictions: what a plan would do."""
