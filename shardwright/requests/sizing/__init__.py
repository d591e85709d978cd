"""Requests of `size`: from flags to answers."""
