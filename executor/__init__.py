"""Actions: run a plan on torch.distributed and measure it."""
