"""Runs a plan on torch.distributed and measures it."""
