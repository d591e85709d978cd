"""Sweeps over many requests: workers, cached answers, stored results."""
