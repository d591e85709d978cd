"""Predictions of plans."""
