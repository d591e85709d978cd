"""Predictions of published runs against measurements: errors, choices, pages."""
