"""Scripts that made the shipped data from tables of measurements: ``python -m tools.NAME``."""
