"""Runs of a sharding file, compared with the unsplit model."""
