"""Predictions of published runs beside what was measured: errors, choices, pages."""
