"""Training logs: steps and steady step time."""
