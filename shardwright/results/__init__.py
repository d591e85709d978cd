"""Results of the Python functions."""
