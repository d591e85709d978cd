"""Output of `size`."""
