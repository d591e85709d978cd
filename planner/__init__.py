"""Searches for the best plan, and explanations of its answer."""
