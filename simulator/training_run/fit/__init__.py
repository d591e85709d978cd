"""Uncertainty of the fitted coefficients, and recalibration."""
