"""A file of runs and clusters, and its answer."""
