"""Sailor's measured runs (SOSP 2025), predicted: ``python -m bench.sailor [FOLDER]``."""
