"""Failures, checkpoints and spare nodes of a long run."""
